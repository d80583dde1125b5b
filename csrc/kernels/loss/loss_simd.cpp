// Loops over the ten losses: each is written once as a function of one element; only the softmax
// cross entropy sees whole pixels.
#include "kernels/loss/loss_simd.hpp"

#include "cpu/simd/vector_math.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

// t * factor, and 0 where t is, whatever the factor.
MPSGRAD_INLINE float times(float t, float factor) { return t == 0.0F ? 0.0F : t * factor; }

MPSGRAD_INLINE float limit(float x, float bound) {
  const float above = x < -bound ? -bound : x;
  return above > bound ? bound : above;
}

struct AbsoluteError {
  MPSGRAD_INLINE float value(float y, float t) const { return abs(y - t); }
  MPSGRAD_INLINE float slope(float y, float t) const { return sign(y - t); }
  MPSGRAD_INLINE float label_slope(float y, float t) const { return -slope(y, t); }
};
struct SquaredError {
  MPSGRAD_INLINE float value(float y, float t) const { return (y - t) * (y - t); }
  MPSGRAD_INLINE float slope(float y, float t) const { return 2.0F * (y - t); }
  MPSGRAD_INLINE float label_slope(float y, float t) const { return -slope(y, t); }
};
struct SigmoidCrossEntropy {
  float keep, add;
  MPSGRAD_INLINE float value(float y, float t) const {
    return (y > 0.0F ? y : 0.0F) - y * (t * keep + add) + log1p(exp(-abs(y)));
  }
  MPSGRAD_INLINE float slope(float y, float t) const { return sigmoid(y) - (t * keep + add); }
  MPSGRAD_INLINE float label_slope(float y, float /*t*/) const { return -keep * y; }
};
struct CategoricalCrossEntropy {
  MPSGRAD_INLINE float value(float y, float t) const { return times(-t, log(y)); }
  MPSGRAD_INLINE float slope(float y, float t) const { return t == 0.0F ? 0.0F : -t / y; }
  MPSGRAD_INLINE float label_slope(float y, float /*t*/) const { return -log(y); }
};
struct Hinge {  // labels 0 and 1 stand for -1 and 1
  MPSGRAD_INLINE float margin(float y, float t) const { return 1.0F - (2.0F * t - 1.0F) * y; }
  MPSGRAD_INLINE float value(float y, float t) const {
    const float m = margin(y, t);
    return m < 0.0F ? 0.0F : m;
  }
  MPSGRAD_INLINE float slope(float y, float t) const {
    return margin(y, t) > 0.0F ? 1.0F - 2.0F * t : 0.0F;
  }
  MPSGRAD_INLINE float label_slope(float y, float t) const {
    return margin(y, t) > 0.0F ? -2.0F * y : 0.0F;
  }
};
struct Huber {
  float delta;
  MPSGRAD_INLINE float value(float y, float t) const {
    const float e = abs(y - t);
    return e <= delta ? 0.5F * e * e : delta * (0.5F * delta + (e - delta));
  }
  MPSGRAD_INLINE float slope(float y, float t) const { return limit(y - t, delta); }
  MPSGRAD_INLINE float label_slope(float y, float t) const { return -slope(y, t); }
};
struct CosineDistance {  // without the 1 of each image
  MPSGRAD_INLINE float value(float y, float t) const { return -y * t; }
  MPSGRAD_INLINE float slope(float /*y*/, float t) const { return -t; }
  MPSGRAD_INLINE float label_slope(float y, float /*t*/) const { return -y; }
};
struct LogLoss {
  float epsilon;
  MPSGRAD_INLINE float value(float y, float t) const {
    return times(-t, log(y + epsilon)) - times(1.0F - t, log(1.0F - y + epsilon));
  }
  MPSGRAD_INLINE float slope(float y, float t) const {
    return (y - t + epsilon - 2.0F * epsilon * t) / (y * (1.0F - y) + epsilon * (epsilon + 1.0F));
  }
  MPSGRAD_INLINE float label_slope(float y, float /*t*/) const {
    return log((1.0F - y + epsilon) / (y + epsilon));
  }
};
struct KullbackLeibler {
  MPSGRAD_INLINE float value(float y, float t) const { return times(t, log(t) - y); }
  MPSGRAD_INLINE float slope(float /*y*/, float t) const { return -t; }
  MPSGRAD_INLINE float label_slope(float y, float t) const { return log(t) - y + 1.0F; }
};

// Calls visit with the loss of every type but the softmax cross entropy.
template <class Visit>
MPSGRAD_INLINE void with_loss(const LossFunction& f, const Visit& visit) {
  switch (f.type) {
    case 0:
      return visit(AbsoluteError{});
    case 3:
      return visit(SigmoidCrossEntropy{f.smooth_keep, f.smooth_add});
    case 4:
      return visit(CategoricalCrossEntropy{});
    case 5:
      return visit(Hinge{});
    case 6:
      return visit(Huber{f.delta});
    case 7:
      return visit(CosineDistance{});
    case 8:
      return visit(LogLoss{f.epsilon});
    case 9:
      return visit(KullbackLeibler{});
    default:
      return visit(SquaredError{});
  }
}

constexpr int kSoftMaxCrossEntropy = 2;

// Sixteen floats: one register of AVX-512, several of the others, the same order of additions in
// all of them.
constexpr std::int64_t kLanes = 16;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

// By pointer: passing such a vector by value would depend on the instruction set.
MPSGRAD_INLINE const Lanes* lanes_at(const float* x) { return reinterpret_cast<const Lanes*>(x); }

MPSGRAD_INLINE float largest(const float* x, std::int64_t count) {
  float result = x[0];
  std::int64_t i = 0;
  if (count >= kLanes) {
    Lanes lanes = *lanes_at(x);
    for (i = kLanes; i + kLanes <= count; i += kLanes) {
      const Lanes next = *lanes_at(x + i);
      lanes = next > lanes ? next : lanes;
    }
    for (int k = 0; k < kLanes; ++k) {
      result = lanes[k] > result ? lanes[k] : result;
    }
  }
  for (; i < count; ++i) {
    result = x[i] > result ? x[i] : result;
  }
  return result;
}

MPSGRAD_INLINE float total(const float* x, std::int64_t count) {
  float result = 0.0F;
  std::int64_t i = 0;
  if (count >= kLanes) {
    Lanes lanes = *lanes_at(x);
    for (i = kLanes; i + kLanes <= count; i += kLanes) {
      lanes += *lanes_at(x + i);
    }
    for (int k = 0; k < kLanes; ++k) {
      result += lanes[k];
    }
  }
  for (; i < count; ++i) {
    result += x[i];
  }
  return result;
}

// Writes y minus the largest value of its pixel, and the exponentials of that.
void softmax_parts(const float* MPSGRAD_RESTRICT y, float* MPSGRAD_RESTRICT below,
                   float* MPSGRAD_RESTRICT powers, std::int64_t pixels, std::int64_t channels) {
  for (std::int64_t p = 0; p < pixels; ++p) {
    const float peak = largest(y + p * channels, channels);
    for (std::int64_t i = p * channels; i < (p + 1) * channels; ++i) {
      below[i] = y[i] - peak;
    }
  }
  for (std::int64_t i = 0; i < pixels * channels; ++i) {
    powers[i] = exp(below[i]);
  }
}

// losses = -t logsoftmax(y), slopes = softmax(y) - t.
void softmax_elements(const LossFunction& f, const float* MPSGRAD_RESTRICT y,
                      const float* MPSGRAD_RESTRICT t, float* losses, float* slopes,
                      float* MPSGRAD_RESTRICT scratch, std::int64_t pixels, std::int64_t channels) {
  const float keep = f.smooth_keep;
  const float add = f.smooth_add;
  // One result holds what the other does not need any more.
  float* MPSGRAD_RESTRICT below = losses ? losses : scratch;
  float* MPSGRAD_RESTRICT powers = slopes ? slopes : scratch;
  softmax_parts(y, below, powers, pixels, channels);
  for (std::int64_t p = 0; p < pixels; ++p) {
    const std::int64_t first = p * channels;
    const float sum = total(powers + first, channels);
    if (losses) {
      const float log_sum = log(sum);
      for (std::int64_t i = first; i < first + channels; ++i) {
        below[i] = times(t[i] * keep + add, log_sum - below[i]);
      }
    }
    if (slopes) {
      const float scale = 1.0F / sum;
      for (std::int64_t i = first; i < first + channels; ++i) {
        powers[i] = powers[i] * scale - (t[i] * keep + add);
      }
    }
  }
}

void softmax_label_slopes(const LossFunction& f, const float* y, float* MPSGRAD_RESTRICT slopes,
                          float* MPSGRAD_RESTRICT scratch, std::int64_t pixels,
                          std::int64_t channels) {
  softmax_parts(y, slopes, scratch, pixels, channels);
  for (std::int64_t p = 0; p < pixels; ++p) {
    const float log_sum = log(total(scratch + p * channels, channels));
    for (std::int64_t i = p * channels; i < (p + 1) * channels; ++i) {
      slopes[i] = f.smooth_keep * (log_sum - slopes[i]);
    }
  }
}

void elements(const LossFunction& f, const float* y, const float* t, float* losses, float* slopes,
              float* scratch, std::int64_t pixels, std::int64_t channels) {
  if (f.type == kSoftMaxCrossEntropy) {
    return softmax_elements(f, y, t, losses, slopes, scratch, pixels, channels);
  }
  with_loss(f, [=](const auto loss) {
    const float* MPSGRAD_RESTRICT from = y;
    const float* MPSGRAD_RESTRICT label = t;
    float* MPSGRAD_RESTRICT value = losses;
    float* MPSGRAD_RESTRICT slope = slopes;
    const std::int64_t count = pixels * channels;
    if (value && slope) {
      for (std::int64_t i = 0; i < count; ++i) {
        value[i] = loss.value(from[i], label[i]);
        slope[i] = loss.slope(from[i], label[i]);
      }
    } else if (value) {
      for (std::int64_t i = 0; i < count; ++i) {
        value[i] = loss.value(from[i], label[i]);
      }
    } else {
      for (std::int64_t i = 0; i < count; ++i) {
        slope[i] = loss.slope(from[i], label[i]);
      }
    }
  });
}

void label_slopes(const LossFunction& f, const float* y, const float* t, float* slopes,
                  float* scratch, std::int64_t pixels, std::int64_t channels) {
  if (f.type == kSoftMaxCrossEntropy) {
    return softmax_label_slopes(f, y, slopes, scratch, pixels, channels);
  }
  with_loss(f, [=](const auto loss) {
    const float* MPSGRAD_RESTRICT from = y;
    const float* MPSGRAD_RESTRICT label = t;
    float* MPSGRAD_RESTRICT slope = slopes;
    for (std::int64_t i = 0; i < pixels * channels; ++i) {
      slope[i] = loss.label_slope(from[i], label[i]);
    }
  });
}

void weigh(float scale, const float* w, const float* g, float* x, std::int64_t count) {
  const float* MPSGRAD_RESTRICT weights = w;
  const float* MPSGRAD_RESTRICT gradient = g;
  float* MPSGRAD_RESTRICT out = x;
  if (weights && gradient) {
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] *= scale * weights[i] * gradient[i];
    }
  } else if (weights) {
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] *= scale * weights[i];
    }
  } else if (gradient) {
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] *= scale * gradient[i];
    }
  } else if (scale != 1.0F) {
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] *= scale;
    }
  }
}

double sum(const float* x, std::int64_t count) {
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) {
      lanes[k] += static_cast<double>(x[i + k]);
    }
  }
  for (int k = 0; i < count; ++i, ++k) {
    lanes[k] += static_cast<double>(x[i]);
  }
  double result = 0.0;
  for (const double lane : lanes) {
    result += lane;
  }
  return result;
}

std::int64_t count_nonzero(const float* x, std::int64_t count) {
  std::int64_t result = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    result += x[i] != 0.0F ? 1 : 0;
  }
  return result;
}

}  // namespace

const LossLoops loss_loops{&elements, &label_slopes, &weigh, &sum, &count_nonzero};

}  // namespace mpsgrad::MPSGRAD_ISA
