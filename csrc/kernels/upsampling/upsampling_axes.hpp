// One axis of an upsampling: which source pixels its results are made of, and the other way round.
#pragma once

#include <vector>

#include "cpu/interpolation.hpp"
#include "kernels/upsampling/upsampling.hpp"
#include "kernels/upsampling/upsampling_simd.hpp"

namespace mpsgrad::cpu::upsampling {

// What decides where the results of an axis lie.
struct AxisRule {
  UpsamplingKind kind = UpsamplingKind::Nearest;
  Index factor = 1;
  bool align_corners = false;
  InterpolationAxis source;  // its offset is the pixel under the first result
};

// The source pixels of the first `results` results.
std::vector<InterpolationTaps> taps_of_all(const AxisRule& rule, Index results);

// The transpose, of results that exist only in part.
class AxisSums {
 public:
  // Result i is pixel primary + i of an incoming gradient `given` pixels long; `pixels` pixels of
  // the source are wanted, which may be fewer than it has, or more: those get nothing.
  AxisSums(const std::vector<InterpolationTaps>& taps, Index primary, Index given, Index pixels);

  const UpsamplingSum* sums() const { return sums_.data(); }
  const float* weights() const { return weights_.data(); }
  Index most() const { return most_; }  // the largest count

 private:
  std::vector<UpsamplingSum> sums_;
  std::vector<float> weights_;
  Index most_ = 0;
};

}  // namespace mpsgrad::cpu::upsampling
