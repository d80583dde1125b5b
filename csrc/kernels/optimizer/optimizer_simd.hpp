// The arithmetic of one optimizer step over runs of float32.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "kernels/optimizer/regularization_type.hpp"

namespace mpsgrad {

struct OptimizerStep {
  enum Rule : int { kPlain, kMomentum, kNesterov, kRMSProp, kAdam, kAMSGrad };
  Rule rule = kPlain;
  RegularizationType regularization = RegularizationType::None;
  bool clip = false;
  float clip_min = 0.0F, clip_max = 0.0F;
  float rescale = 1.0F;
  float regularization_scale = 0.0F;
  float rate = 0.0F;                // bias corrections included
  float keep1 = 0.0F, add1 = 0.0F;  // momentum scale; decay; beta1; and the factor of the gradient
  float keep2 = 0.0F, add2 = 0.0F;  // beta2
  float epsilon = 0.0F;
};

// The arrays of one parameter; `out` may be `values` or `gradient`, the rest are apart. Histories
// that the rule does not have are not touched.
struct OptimizerRun {
  const float* gradient;
  const float* values;
  float* history[3];
  float* out;
};

struct OptimizerLoops {
  void (*step)(const OptimizerStep& step, const OptimizerRun& run, std::int64_t count);
};

MPSGRAD_LOOPS(OptimizerLoops, optimizer_loops)

}  // namespace mpsgrad
