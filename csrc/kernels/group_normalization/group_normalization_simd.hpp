// What instance and group normalization compute once a channel, in double: with few pixels of many
// channels it is as much work as the images.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"

namespace mpsgrad {

// Of the values of a group in one image.
struct GroupStatistics {
  double mean, r;  // r = 1 / sqrt(variance + epsilon)
};

// The channels of one image in groups; a group has `count` values. Arrays of numbers here and below
// hold one a channel, `statistics` one of each group; gamma and beta may be null, which stands for
// ones and zeros.
struct ChannelGroups {
  std::int64_t groups, channels;  // channels of a group
  double count;
  const float* gamma;
  const double* shift;  // what sums over x are relative to, the same for all of a group
};

// The tiles' first pixels of what a gradient is computed with, and the sums that its state gets.
struct GroupGradientArrays {
  float *mean, *scale, *constant, *slope;
  float *beta_sums, *gamma_sums;
};

struct GroupNormalizationLoops {
  // From sums of x - shift and of its square.
  void (*statistics)(const ChannelGroups& in, const double* sums, const double* squares,
                     double epsilon, GroupStatistics* statistics);
  // scale = gamma * r, offset = beta less what rounding takes off the mean, times scale
  void (*forward)(const ChannelGroups& in, const GroupStatistics* statistics, const float* beta,
                  float* mean, float* scale, float* offset);
  // From sums of g and of g * (x - shift). Gamma varies within a group, so it belongs inside the
  // means that a gradient takes off: constant = r * mean of gamma * g and slope = r^2 * mean of
  // gamma * g * (x - mean) * r. The constant makes up for the mean's rounding.
  void (*gradient)(const ChannelGroups& in, const GroupStatistics* statistics, const double* sum_g,
                   const double* sum_gx, const GroupGradientArrays& out);
};

MPSGRAD_LOOPS(GroupNormalizationLoops, group_normalization_loops)

}  // namespace mpsgrad
