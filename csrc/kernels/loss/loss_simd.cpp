// Loops over the ten losses: each is written once as a function of one element; only the softmax
// cross entropy sees whole pixels.
#include "kernels/loss/loss_simd.hpp"

#include "cpu/simd/pack_loops.hpp"
#include "cpu/simd/softmax_rows.hpp"
#include "cpu/simd/vector_math.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// t * factor, and 0 where t is, whatever the factor.
MPSGRAD_INLINE auto times(const auto& t, const auto& factor) {
  return choose(t == 0.0F, 0.0F, t * factor);
}

MPSGRAD_INLINE auto limit(const auto& x, float bound) {
  return at_most(at_least(x, -bound), bound);
}

struct AbsoluteError {
  MPSGRAD_INLINE auto value(const auto& y, const auto& t) const { return abs(y - t); }
  MPSGRAD_INLINE auto slope(const auto& y, const auto& t) const { return sign(y - t); }
  MPSGRAD_INLINE auto label_slope(const auto& y, const auto& t) const { return -slope(y, t); }
};
struct SquaredError {
  MPSGRAD_INLINE auto value(const auto& y, const auto& t) const { return (y - t) * (y - t); }
  MPSGRAD_INLINE auto slope(const auto& y, const auto& t) const { return 2.0F * (y - t); }
  MPSGRAD_INLINE auto label_slope(const auto& y, const auto& t) const { return -slope(y, t); }
};
struct SigmoidCrossEntropy {
  float keep, add;
  MPSGRAD_INLINE auto label(const auto& t) const { return multiply_add(t, keep, add); }
  MPSGRAD_INLINE auto value(const auto& y, const auto& t) const {
    return multiply_add(-y, label(t), choose(y > 0.0F, y, 0.0F)) +
           log1p(exp_of_negative(minus_abs(y)));
  }
  MPSGRAD_INLINE auto slope(const auto& y, const auto& t) const { return sigmoid(y) - label(t); }
  MPSGRAD_INLINE auto label_slope(const auto& y, const auto& /*t*/) const { return -keep * y; }
};
struct CategoricalCrossEntropy {
  MPSGRAD_INLINE auto value(const auto& y, const auto& t) const { return times(-t, log(y)); }
  MPSGRAD_INLINE auto slope(const auto& y, const auto& t) const {
    return choose(t == 0.0F, 0.0F, -t / y);
  }
  MPSGRAD_INLINE auto label_slope(const auto& y, const auto& /*t*/) const { return -log(y); }
};
struct Hinge {  // labels 0 and 1 stand for -1 and 1
  MPSGRAD_INLINE auto margin(const auto& y, const auto& t) const {
    return multiply_add(-multiply_add(2.0F, t, -1.0F), y, 1.0F);
  }
  MPSGRAD_INLINE auto value(const auto& y, const auto& t) const {
    return at_least(margin(y, t), 0.0F);
  }
  MPSGRAD_INLINE auto slope(const auto& y, const auto& t) const {
    return choose(margin(y, t) > 0.0F, multiply_add(-2.0F, t, 1.0F), 0.0F);
  }
  MPSGRAD_INLINE auto label_slope(const auto& y, const auto& t) const {
    return choose(margin(y, t) > 0.0F, -2.0F * y, 0.0F);
  }
};
struct Huber {
  float delta;
  MPSGRAD_INLINE auto value(const auto& y, const auto& t) const {
    const auto e = abs(y - t);
    return choose(e <= delta, 0.5F * e * e, delta * (0.5F * delta + (e - delta)));
  }
  MPSGRAD_INLINE auto slope(const auto& y, const auto& t) const { return limit(y - t, delta); }
  MPSGRAD_INLINE auto label_slope(const auto& y, const auto& t) const { return -slope(y, t); }
};
struct CosineDistance {  // without the 1 of each image
  MPSGRAD_INLINE auto value(const auto& y, const auto& t) const { return -y * t; }
  MPSGRAD_INLINE auto slope(const auto& /*y*/, const auto& t) const { return -t; }
  MPSGRAD_INLINE auto label_slope(const auto& y, const auto& /*t*/) const { return -y; }
};
struct LogLoss {
  float epsilon;
  MPSGRAD_INLINE auto value(const auto& y, const auto& t) const {
    return times(-t, log(y + epsilon)) - times(1.0F - t, log(1.0F - y + epsilon));
  }
  // Of labels of 0 and 1 one of the two logarithms counts, whatever the other is.
  MPSGRAD_INLINE auto slope(const auto& y, const auto& t) const {
    const auto is_zero = t == 0.0F;
    const auto is_one = t == 1.0F;
    const auto both = multiply_add(-2.0F * epsilon, t, y - t + epsilon);
    const auto below = multiply_add(y, 1.0F - y, epsilon * (epsilon + 1.0F));
    const auto above = choose(is_one, -1.0F, choose(is_zero, 1.0F, both));
    return above / choose(is_one, y + epsilon, choose(is_zero, 1.0F - y + epsilon, below));
  }
  MPSGRAD_INLINE auto label_slope(const auto& y, const auto& /*t*/) const {
    return log((1.0F - y + epsilon) / (y + epsilon));
  }
};
struct KullbackLeibler {
  MPSGRAD_INLINE auto value(const auto& y, const auto& t) const { return times(t, log(t) - y); }
  MPSGRAD_INLINE auto slope(const auto& /*y*/, const auto& t) const { return -t; }
  MPSGRAD_INLINE auto label_slope(const auto& y, const auto& t) const { return log(t) - y + 1.0F; }
};

// Calls visit with the loss of every type but the softmax cross entropy.
template <class Visit>
MPSGRAD_INLINE void with_loss(const LossFunction& f, const Visit& visit) {
  switch (f.type) {
    case LossType::MeanAbsoluteError:
      return visit(AbsoluteError{});
    case LossType::SigmoidCrossEntropy:
      return visit(SigmoidCrossEntropy{f.smooth_keep, f.smooth_add});
    case LossType::CategoricalCrossEntropy:
      return visit(CategoricalCrossEntropy{});
    case LossType::Hinge:
      return visit(Hinge{});
    case LossType::Huber:
      return visit(Huber{f.delta});
    case LossType::CosineDistance:
      return visit(CosineDistance{});
    case LossType::Log:
      return visit(LogLoss{f.epsilon});
    case LossType::KullbackLeiblerDivergence:
      return visit(KullbackLeibler{});
    default:
      return visit(SquaredError{});
  }
}

// losses = -t logsoftmax(y), slopes = softmax(y) - t; `scratch` holds what no result has room for.
MPSGRAD_INLINE void softmax_piece(auto lanes, auto vectors, const LossFunction& f, const float* y,
                                  const float* t, float* losses, float* slopes, float* scratch,
                                  Index pixels, Index channels) {
  constexpr int kLanes = lanes, kVectors = vectors;
  using V = Floats<kLanes>;
  const auto label = [keep = f.smooth_keep, add = f.smooth_add](const float* from) {
    return load<V>(from) * keep + add;
  };
  float* powers = slopes ? slopes : scratch;
  float* below = losses ? losses : powers;
  subtract_largest<kLanes, kVectors>(y, below, pixels, channels);
  take_exponentials(below, powers, pixels * channels);
  if (losses) {
    float logarithms[kPiece];
    log_sums<kLanes, kVectors>(powers, logarithms, pixels, channels);
    for (Index p = 0; p < pixels; ++p) {
      const float log_sum = logarithms[p];
      const float* labels = t + p * channels;
      float* row = losses + p * channels;
      fill_row<kLanes, kVectors>(channels, row, [=](Index c) {
        const V smoothed = label(labels + c);
        const V loss = smoothed * (log_sum - load<V>(row + c));
        return smoothed == V{} ? V{} : loss;  // whatever the logarithm is
      });
    }
  }
  if (slopes) {
    for (Index p = 0; p < pixels; ++p) {
      const float* labels = t + p * channels;
      float* row = slopes + p * channels;
      const float scale = 1.0F / sum_of<kLanes, kVectors>(channels, row);
      fill_row<kLanes, kVectors>(
          channels, row, [=](Index c) { return load<V>(row + c) * scale - label(labels + c); });
    }
  }
}

// The same of few channels.
template <int kChannels>
MPSGRAD_INLINE void softmax_planes(const LossFunction& f, const float* y, const float* t,
                                   float* losses, float* slopes, Index pixels) {
  alignas(kLine) float below[kPiece];
  alignas(kLine) float powers[kPiece];
  alignas(kLine) float logarithms[kPlanePixels<kChannels>];
  subtract_largest<kChannels>(y, below, pixels);
  take_exponentials(below, powers, in_whole_vectors(pixels) * kChannels);
  if (losses) {
    log_sums<kChannels>(powers, logarithms, pixels);
  }
  for_planes(pixels, [&](Index p, Index some) MPSGRAD_MELT {
    auto labels = take_apart<kChannels>(t + p * kChannels, some);
    for (auto& label : labels.of) {
      label = label * f.smooth_keep + f.smooth_add;
    }
    if (losses) {
      auto planes = load_planes<kChannels>(below + p * kChannels);
      const auto log_sum = load<Floats<kWidest>>(logarithms + p);
      for (int c = 0; c < kChannels; ++c) {
        const auto loss = labels.of[c] * (log_sum - planes.of[c]);
        // Whatever the logarithm is.
        planes.of[c] = labels.of[c] == Floats<kWidest>{} ? Floats<kWidest>{} : loss;
      }
      put_together(planes, losses + p * kChannels, some);
    }
    if (slopes) {
      auto planes = load_planes<kChannels>(powers + p * kChannels);
      const auto scale = 1.0F / planes.sum();
      for (int c = 0; c < kChannels; ++c) {
        planes.of[c] = planes.of[c] * scale - labels.of[c];
      }
      put_together(planes, slopes + p * kChannels, some);
    }
  });
}

void softmax_elements(const LossFunction& f, const float* y, const float* t, float* losses,
                      float* slopes, float* scratch, Index pixels, Index channels) {
  constexpr int kMostPlanes = 7;  // more channels are faster as rows
  const auto from = [](float* result, Index first) { return result ? result + first : nullptr; };
  const auto planes = [&](auto count, Index i, Index some) {
    softmax_planes<static_cast<int>(count)>(f, y + i, t + i, from(losses, i), from(slopes, i),
                                            some);
  };
  if (in_planes<kMostPlanes>(pixels, channels, planes)) {
    return;
  }
  with_vectors_for(channels, [&](auto lanes, auto vectors) {
    for_pieces(pixels, channels, [&](Index first, Index some) {
      softmax_piece(lanes, vectors, f, y + first, t + first, from(losses, first),
                    from(slopes, first), scratch, some, channels);
    });
  });
}

void softmax_label_slopes(const LossFunction& f, const float* y, float* slopes, float* scratch,
                          Index pixels, Index channels) {
  with_vectors_for(channels, [&](auto lanes, auto vectors) {
    constexpr int kLanes = lanes, kVectors = vectors;
    for_pieces(pixels, channels, [&](Index first, Index some) {
      float logarithms[kPiece];
      subtract_largest<kLanes, kVectors>(y + first, slopes + first, some, channels);
      take_exponentials(slopes + first, scratch, some * channels);
      log_sums<kLanes, kVectors>(scratch, logarithms, some, channels);
      for (Index p = 0; p < some; ++p) {
        float* row = slopes + first + p * channels;
        fill_row<kLanes, kVectors>(channels, row, [=, keep = f.smooth_keep](Index c) {
          return keep * (logarithms[p] - load<Floats<kLanes>>(row + c));
        });
      }
    });
  });
}

void elements(const LossFunction& f, const float* y, const float* t, float* losses, float* slopes,
              float* scratch, Index pixels, Index channels) {
  if (f.type == LossType::SoftMaxCrossEntropy) {
    return softmax_elements(f, y, t, losses, slopes, scratch, pixels, channels);
  }
  with_loss(f, [=](const auto loss) {
    const auto value = [=](const auto& from, const auto& label)
                           MPSGRAD_MELT { return loss.value(from, label); };
    const auto slope = [=](const auto& from, const auto& label)
                           MPSGRAD_MELT { return loss.slope(from, label); };
    const Index count = pixels * channels;
    if (losses && slopes) {
      for_packs(count, [&](auto pack, Index i) MPSGRAD_MELT {
        const auto from = pack.load(y + i);
        const auto label = pack.load(t + i);
        pack.put(losses + i, value(from, label));
        pack.put(slopes + i, slope(from, label));
      });
    } else if (losses) {
      transform_packs(count, losses, value, y, t);
    } else {
      transform_packs(count, slopes, slope, y, t);
    }
  });
}

void label_slopes(const LossFunction& f, const float* y, const float* t, float* slopes,
                  float* scratch, Index pixels, Index channels) {
  if (f.type == LossType::SoftMaxCrossEntropy) {
    return softmax_label_slopes(f, y, slopes, scratch, pixels, channels);
  }
  with_loss(f, [=](const auto loss) {
    const auto slope = [=](const auto& from, const auto& label)
                           MPSGRAD_MELT { return loss.label_slope(from, label); };
    transform_packs(pixels * channels, slopes, slope, y, t);
  });
}

void weigh(float scale, const float* w, const float* g, float* x, Index count) {
  const float* MPSGRAD_RESTRICT weights = w;
  const float* MPSGRAD_RESTRICT gradient = g;
  float* MPSGRAD_RESTRICT out = x;
  if (weights && gradient) {
    for (Index i = 0; i < count; ++i) {
      out[i] *= scale * weights[i] * gradient[i];
    }
  } else if (weights) {
    for (Index i = 0; i < count; ++i) {
      out[i] *= scale * weights[i];
    }
  } else if (gradient) {
    for (Index i = 0; i < count; ++i) {
      out[i] *= scale * gradient[i];
    }
  } else if (scale != 1.0F) {
    for (Index i = 0; i < count; ++i) {
      out[i] *= scale;
    }
  }
}

constexpr Index kSums = 16;  // side by side

double sum(const float* x, Index count) {
  double lanes[kSums] = {};
  Index i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int k = 0; k < kSums; ++k) {
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

Index count_nonzero(const float* x, Index count) {
  Index result = 0;
  for (Index i = 0; i < count; ++i) {
    result += x[i] != 0.0F ? 1 : 0;
  }
  return result;
}

}  // namespace

const LossLoops loss_loops{&elements, &label_slopes, &weigh, &sum, &count_nonzero};

}  // namespace mpsgrad::MPSGRAD_ISA
