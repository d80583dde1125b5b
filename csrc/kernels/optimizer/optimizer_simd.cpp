// Optimizer steps: each element is read and written once, every rule is one expression.
#include "kernels/optimizer/optimizer_simd.hpp"

#include <math.h>

#include "cpu/simd/simd.hpp"

// The arrays of a run are the same or apart, element by element, so iterations never depend on each
// other; without the hint an update in place would fail the compiler's overlap test and run scalar.
#if defined(__clang__)
#define MPSGRAD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define MPSGRAD_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace mpsgrad::MPSGRAD_ISA {
namespace {

// What the penalty adds to the gradient of `value`. L1 adds the scale itself, whatever the sign of
// the value: the literal reading of Apple's text.
struct NoPenalty {
  MPSGRAD_INLINE float add(float g, float /*value*/, float /*scale*/) const { return g; }
};
struct L1Penalty {
  MPSGRAD_INLINE float add(float g, float /*value*/, float scale) const { return g + scale; }
};
struct L2Penalty {
  MPSGRAD_INLINE float add(float g, float value, float scale) const { return g + scale * value; }
};

// Bounds that let a NaN through.
MPSGRAD_INLINE float limit(float g, float lower, float upper) {
  const float above = g < lower ? lower : g;
  return above > upper ? upper : above;
}

// new value = update(s, g, value, element of each history), histories updated on the way.
struct Plain {
  static constexpr int kHistories = 0;
  MPSGRAD_INLINE float update(const OptimizerStep& s, float g, float w, float*) const {
    return w - s.rate * g;
  }
};
struct Momentum {
  static constexpr int kHistories = 1;
  MPSGRAD_INLINE float update(const OptimizerStep& s, float g, float w, float* h) const {
    h[0] = s.keep1 * h[0] + s.rate * g;
    return w - h[0];
  }
};
struct Nesterov {
  static constexpr int kHistories = 1;
  MPSGRAD_INLINE float update(const OptimizerStep& s, float g, float w, float* h) const {
    h[0] = s.keep1 * h[0] + g;
    return w - s.rate * (g + s.keep1 * h[0]);
  }
};
struct RMSProp {
  static constexpr int kHistories = 1;
  MPSGRAD_INLINE float update(const OptimizerStep& s, float g, float w, float* h) const {
    h[0] = s.keep1 * h[0] + s.add1 * (g * g);
    return w - s.rate * g / (sqrtf(h[0]) + s.epsilon);
  }
};
struct Adam {
  static constexpr int kHistories = 2;
  MPSGRAD_INLINE float update(const OptimizerStep& s, float g, float w, float* h) const {
    h[0] = s.keep1 * h[0] + s.add1 * g;
    h[1] = s.keep2 * h[1] + s.add2 * (g * g);
    return w - s.rate * h[0] / (sqrtf(h[1]) + s.epsilon);
  }
};
struct AMSGrad {
  static constexpr int kHistories = 3;
  MPSGRAD_INLINE float update(const OptimizerStep& s, float g, float w, float* h) const {
    h[0] = s.keep1 * h[0] + s.add1 * g;
    h[1] = s.keep2 * h[1] + s.add2 * (g * g);
    h[2] = h[2] > h[1] ? h[2] : h[1];  // a NaN velocity shows
    return w - s.rate * h[0] / (sqrtf(h[2]) + s.epsilon);
  }
};

template <class Rule, class Penalty>
void run_step(const OptimizerStep& step, const OptimizerRun& run, std::int64_t count) {
  const OptimizerStep s = step;
  const float lower = s.clip ? s.clip_min : -HUGE_VALF;
  const float upper = s.clip ? s.clip_max : HUGE_VALF;
  const float* gradient = run.gradient;
  const float* values = run.values;
  float* first = run.history[0];
  float* second = run.history[1];
  float* third = run.history[2];
  float* out = run.out;
  MPSGRAD_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) {
    const float w = values[i];
    const float clipped = limit(gradient[i], lower, upper) * s.rescale;
    const float g = Penalty{}.add(clipped, w, s.regularization_scale);
    float h[3] = {};
    if constexpr (Rule::kHistories > 0) {
      h[0] = first[i];
    }
    if constexpr (Rule::kHistories > 1) {
      h[1] = second[i];
    }
    if constexpr (Rule::kHistories > 2) {
      h[2] = third[i];
    }
    out[i] = Rule{}.update(s, g, w, h);
    if constexpr (Rule::kHistories > 0) {
      first[i] = h[0];
    }
    if constexpr (Rule::kHistories > 1) {
      second[i] = h[1];
    }
    if constexpr (Rule::kHistories > 2) {
      third[i] = h[2];
    }
  }
}

template <class Rule>
void with_penalty(const OptimizerStep& step, const OptimizerRun& run, std::int64_t count) {
  switch (step.regularization) {
    case RegularizationType::L1:
      return run_step<Rule, L1Penalty>(step, run, count);
    case RegularizationType::L2:
      return run_step<Rule, L2Penalty>(step, run, count);
    default:
      return run_step<Rule, NoPenalty>(step, run, count);
  }
}

void step(const OptimizerStep& step, const OptimizerRun& run, std::int64_t count) {
  switch (step.rule) {
    case OptimizerStep::kMomentum:
      return with_penalty<Momentum>(step, run, count);
    case OptimizerStep::kNesterov:
      return with_penalty<Nesterov>(step, run, count);
    case OptimizerStep::kRMSProp:
      return with_penalty<RMSProp>(step, run, count);
    case OptimizerStep::kAdam:
      return with_penalty<Adam>(step, run, count);
    case OptimizerStep::kAMSGrad:
      return with_penalty<AMSGrad>(step, run, count);
    default:
      return with_penalty<Plain>(step, run, count);
  }
}

}  // namespace

const OptimizerLoops optimizer_loops{&step};

}  // namespace mpsgrad::MPSGRAD_ISA
