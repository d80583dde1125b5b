// What batch normalization computes once a channel, in double: with few pixels of many channels it
// is as much work as the images.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"

namespace mpsgrad {

// Arrays hold `channels` values each. r is 1 / sqrt(variance + epsilon), and gamma may be null,
// which stands for ones.
struct BatchNormalizationLoops {
  // From sums of x - shift and of its square over all pixels.
  void (*statistics)(std::int64_t channels, const double* shift, const double* sum,
                     const double* squares, double samples, float* mean, float* variance);
  // scale = gamma * r
  void (*scales)(std::int64_t channels, const float* gamma, const float* variance, float epsilon,
                 float* scale);
  // beta_sum += sum of g and gamma_sum += r * sum of g * (x - mean), from sums of g and of g * x,
  // and both as float32.
  void (*add_sums)(std::int64_t channels, const double* sum_g, const double* sum_gx,
                   const float* mean, const float* variance, float epsilon, double* beta_sum,
                   double* gamma_sum, float* beta, float* gamma);
  // What a gradient takes off: constant = gamma * r * beta_sum / samples and
  // slope = gamma * r^2 * gamma_sum / samples.
  void (*corrections)(std::int64_t channels, const float* gamma, const float* variance,
                      float epsilon, const float* beta_sum, const float* gamma_sum, double samples,
                      float* constant, float* slope);
};

MPSGRAD_LOOPS(BatchNormalizationLoops, batch_normalization_loops)

}  // namespace mpsgrad
