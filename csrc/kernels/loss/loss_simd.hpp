// Element losses and their derivatives over runs of pixels, before and after weights.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "kernels/loss/loss_type.hpp"

namespace mpsgrad {

struct LossFunction {
  LossType type = LossType::MeanAbsoluteError;
  float smooth_keep = 1.0F;  // labels are t * smooth_keep + smooth_add
  float smooth_add = 0.0F;
  float epsilon = 0.0F;
  float delta = 1.0F;
};

// y, t: predictions and labels, `pixels` pixels of `channels` values. Results may not be y or t.
struct LossLoops {
  // Losses and their derivatives by the predictions; either may be null. `scratch` has room for one
  // more run.
  void (*elements)(const LossFunction& f, const float* y, const float* t, float* losses,
                   float* slopes, float* scratch, std::int64_t pixels, std::int64_t channels);
  // Derivatives by the labels.
  void (*label_slopes)(const LossFunction& f, const float* y, const float* t, float* slopes,
                       float* scratch, std::int64_t pixels, std::int64_t channels);
  // x *= scale * w * g element by element; w and g may be null.
  void (*weigh)(float scale, const float* w, const float* g, float* x, std::int64_t count);
  // In a fixed order, in double.
  double (*sum)(const float* x, std::int64_t count);
  std::int64_t (*count_nonzero)(const float* x, std::int64_t count);
};

MPSGRAD_LOOPS(LossLoops, loss_loops)

}  // namespace mpsgrad
