// Softmax and log-softmax across channels, and their gradients.
#include <algorithm>
#include <cmath>

#include "internal.hpp"

using namespace emulated_metal;

namespace {

Work soft_max(const Operand& s, bool logarithm) {
  return [s, logarithm](const std::vector<Tensor>& in, Tensor& out, size_t) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        const auto value = [&](long k) {
          return fetch(in[0], y + s.offset.y, x + s.offset.x, k, s.edge);
        };
        float top = -INFINITY;
        for (long k = 0; k < out.c; ++k) top = std::max(top, value(k));
        double sum = 0;
        for (long k = 0; k < out.c; ++k) sum += std::exp(static_cast<double>(value(k) - top));
        for (long k = 0; k < out.c; ++k) {
          const auto shifted = static_cast<double>(value(k) - top);
          out.at(y, x, k) =
              static_cast<float>(logarithm ? shifted - std::log(sum) : std::exp(shifted) / sum);
        }
      }
    }
  };
}

// The secondary source is the forward result.
Work soft_max_gradient(const Operand& g, const Operand& s, bool logarithm) {
  return [g, s, logarithm](const std::vector<Tensor>& in, Tensor& out, size_t) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        const auto gradient = [&](long k) {
          return static_cast<double>(
              fetch(in[0], y + g.offset.y, x + g.offset.x, k, MPSImageEdgeModeZero));
        };
        const auto forward = [&](long k) {
          return static_cast<double>(fetch(in[1], y + s.offset.y, x + s.offset.x, k, s.edge));
        };
        double sum = 0;
        for (long k = 0; k < out.c; ++k) sum += gradient(k) * (logarithm ? 1.0 : forward(k));
        for (long k = 0; k < out.c; ++k) {
          out.at(y, x, k) = static_cast<float>(logarithm ? gradient(k) - std::exp(forward(k)) * sum
                                                         : forward(k) * (gradient(k) - sum));
        }
      }
    }
  };
}

}  // namespace

#define SOFT_MAX(name, logarithm)                     \
  @implementation name                                \
  -(Class)emulatedStateClass {                        \
    return [MPSNNGradientState class];                \
  }                                                   \
  -(Work)emulatedWork : (NSArray<MPSState*>*)states { \
    (void)states;                                     \
    return soft_max(body_->sources[0], logarithm);    \
  }                                                   \
  @end
#define SOFT_MAX_GRADIENT(name, forward, logarithm)                                  \
  @implementation name                                                               \
  -(instancetype)initWithDevice : (id<MTLDevice>)device {                            \
    return [super initWithDevice:device];                                            \
  }                                                                                  \
  -(instancetype)initWithCoder : (NSCoder*)aDecoder device : (id<MTLDevice>)device { \
    return [super initWithCoder:aDecoder device:device];                             \
  }                                                                                  \
  -(bool)emulatedAcceptsForwardClass : (Class)kernel {                               \
    return [kernel isSubclassOfClass:[forward class]];                               \
  }                                                                                  \
  -(Work)emulatedGradientWork : (NSArray<MPSState*>*)states {                        \
    (void)states;                                                                    \
    return soft_max_gradient(body_->sources[0], body_->sources[1], logarithm);       \
  }                                                                                  \
  @end

SOFT_MAX(MPSCNNSoftMax, false)
SOFT_MAX(MPSCNNLogSoftMax, true)
SOFT_MAX_GRADIENT(MPSCNNSoftMaxGradient, MPSCNNSoftMax, false)
SOFT_MAX_GRADIENT(MPSCNNLogSoftMaxGradient, MPSCNNLogSoftMax, true)
