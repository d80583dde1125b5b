// Cross-channel, spatial and local contrast normalization, and their gradients.
#include <algorithm>
#include <cmath>

#include "internal.hpp"

using namespace emulated_metal;

namespace {

struct LocalParams : ParamsOf<LocalParams> {
  NSUInteger size = 1;  // across channels
  float alpha = 1, beta = 5, delta = 1, p0 = 1, pm = 0, ps = 1;
  void fields(Fields& f) override {
    f("size", size);
    f("alpha", alpha);
    f("beta", beta);
    f("delta", delta);
    f("p0", p0);
    f("pm", pm);
    f("ps", ps);
  }
};

// Inclusive ends of a window of k around i: forward leans to the left, its transpose to the right.
struct Ends {
  long low, high;
};
Ends forward_window(long i, long k) { return {i - k / 2, i + (k - 1) / 2}; }
Ends backward_window(long i, long k) { return {i - (k - 1) / 2, i + k / 2}; }

double at(const Tensor& t, long y, long x, long k) { return static_cast<double>(t.at(y, x, k)); }

// ---- across channels

std::vector<double> channel_denominators(const LocalParams& p, const Tensor& x, long j, long i) {
  std::vector<double> all;
  const auto n = static_cast<long>(p.size);
  for (long k = 0; k < x.c; ++k) {
    const Ends ends = forward_window(k, n);
    double sum = 0;
    for (long q = std::max(0L, ends.low); q <= std::min(x.c - 1, ends.high); ++q) {
      sum += at(x, j, i, q) * at(x, j, i, q);
    }
    all.push_back(static_cast<double>(p.delta) +
                  static_cast<double>(p.alpha) / static_cast<double>(n) * sum);
  }
  return all;
}

void cross_channel(const LocalParams& p, const Operand&, const std::vector<Tensor>& in,
                   Tensor& out) {
  for (long j = 0; j < out.h; ++j) {
    for (long i = 0; i < out.w; ++i) {
      const std::vector<double> l = channel_denominators(p, in[0], j, i);
      for (long k = 0; k < out.c; ++k) {
        out.at(j, i, k) = static_cast<float>(
            at(in[0], j, i, k) * std::pow(l[static_cast<size_t>(k)], -static_cast<double>(p.beta)));
      }
    }
  }
}

void cross_channel_gradient(const LocalParams& p, const Operand&, const std::vector<Tensor>& in,
                            Tensor& out) {
  const auto n = static_cast<long>(p.size);
  const auto beta = static_cast<double>(p.beta);
  const double factor = 2 * static_cast<double>(p.alpha) * beta / static_cast<double>(n);
  for (long j = 0; j < out.h; ++j) {
    for (long i = 0; i < out.w; ++i) {
      const std::vector<double> l = channel_denominators(p, in[1], j, i);
      for (long k = 0; k < out.c; ++k) {
        const Ends ends = backward_window(k, n);
        double sum = 0;
        for (long q = std::max(0L, ends.low); q <= std::min(out.c - 1, ends.high); ++q) {
          sum += at(in[0], j, i, q) * at(in[1], j, i, q) *
                 std::pow(l[static_cast<size_t>(q)], -beta - 1);
        }
        out.at(j, i, k) =
            static_cast<float>(at(in[0], j, i, k) * std::pow(l[static_cast<size_t>(k)], -beta) -
                               factor * at(in[1], j, i, k) * sum);
      }
    }
  }
}

// ---- over a spatial window

// Mean and mean square of the window around (j, i); positions outside follow the edge mode.
struct Moments {
  double mean, square;
};
Moments moments(const Operand& s, const Tensor& x, long j, long i, long k) {
  const Ends rows = forward_window(j, static_cast<long>(s.kernel_y));
  const Ends columns = forward_window(i, static_cast<long>(s.kernel_x));
  Moments m{0, 0};
  for (long y = rows.low; y <= rows.high; ++y) {
    for (long c = columns.low; c <= columns.high; ++c) {
      const auto value = static_cast<double>(fetch(x, y, c, k, s.edge));
      m.mean += value;
      m.square += value * value;
    }
  }
  const auto n = static_cast<double>(s.kernel_x * s.kernel_y);
  m.mean /= n;
  m.square /= n;
  return m;
}

double contrast_denominator(const LocalParams& p, const Moments& m) {
  const double variance = std::max(0.0, m.square - m.mean * m.mean);
  return static_cast<double>(p.delta) + static_cast<double>(p.alpha) * variance;
}

double spatial_denominator(const LocalParams& p, const Moments& m) {
  return static_cast<double>(p.delta) + static_cast<double>(p.alpha) * m.square;
}

void spatial(const LocalParams& p, const Operand& s, const std::vector<Tensor>& in, Tensor& out) {
  for (long j = 0; j < out.h; ++j) {
    for (long i = 0; i < out.w; ++i) {
      for (long k = 0; k < out.c; ++k) {
        const double t =
            spatial_denominator(p, moments(s, in[0], j + s.offset.y, i + s.offset.x, k));
        const auto x = static_cast<double>(fetch(in[0], j + s.offset.y, i + s.offset.x, k, s.edge));
        out.at(j, i, k) = static_cast<float>(x * std::pow(t, -static_cast<double>(p.beta)));
      }
    }
  }
}

void contrast(const LocalParams& p, const Operand& s, const std::vector<Tensor>& in, Tensor& out) {
  for (long j = 0; j < out.h; ++j) {
    for (long i = 0; i < out.w; ++i) {
      for (long k = 0; k < out.c; ++k) {
        const Moments m = moments(s, in[0], j + s.offset.y, i + s.offset.x, k);
        const auto x = static_cast<double>(fetch(in[0], j + s.offset.y, i + s.offset.x, k, s.edge));
        const double power = std::pow(contrast_denominator(p, m), -static_cast<double>(p.beta));
        out.at(j, i, k) = static_cast<float>(static_cast<double>(p.pm) +
                                             static_cast<double>(p.ps) *
                                                 (x - static_cast<double>(p.p0) * m.mean) * power);
      }
    }
  }
}

// Both gradients: sums over the transposed window, clipped to the image.
template <class Visit>
void over_transposed(const Operand& s, const Tensor& x, long j, long i, const Visit& visit) {
  const Ends rows = backward_window(j, static_cast<long>(s.kernel_y));
  const Ends columns = backward_window(i, static_cast<long>(s.kernel_x));
  for (long y = std::max(0L, rows.low); y <= std::min(x.h - 1, rows.high); ++y) {
    for (long c = std::max(0L, columns.low); c <= std::min(x.w - 1, columns.high); ++c) visit(y, c);
  }
}

void spatial_gradient(const LocalParams& p, const Operand& s, const std::vector<Tensor>& in,
                      Tensor& out) {
  const auto beta = static_cast<double>(p.beta);
  const double factor =
      2 * static_cast<double>(p.alpha) * beta / static_cast<double>(s.kernel_x * s.kernel_y);
  for (long j = 0; j < out.h; ++j) {
    for (long i = 0; i < out.w; ++i) {
      for (long k = 0; k < out.c; ++k) {
        double sum = 0;
        over_transposed(s, in[1], j, i, [&](long y, long x) {
          const double t = spatial_denominator(p, moments(s, in[1], y, x, k));
          sum += at(in[0], y, x, k) * at(in[1], y, x, k) * std::pow(t, -beta - 1);
        });
        const double t = spatial_denominator(p, moments(s, in[1], j, i, k));
        out.at(j, i, k) = static_cast<float>(at(in[0], j, i, k) * std::pow(t, -beta) -
                                             factor * at(in[1], j, i, k) * sum);
      }
    }
  }
}

void contrast_gradient(const LocalParams& p, const Operand& s, const std::vector<Tensor>& in,
                       Tensor& out) {
  const auto beta = static_cast<double>(p.beta), p0 = static_cast<double>(p.p0);
  const auto n = static_cast<double>(s.kernel_x * s.kernel_y);
  for (long j = 0; j < out.h; ++j) {
    for (long i = 0; i < out.w; ++i) {
      for (long k = 0; k < out.c; ++k) {
        double sum_a = 0, sum_b = 0, sum_bm = 0;
        over_transposed(s, in[1], j, i, [&](long y, long x) {
          const Moments m = moments(s, in[1], y, x, k);
          const double t = contrast_denominator(p, m), g = at(in[0], y, x, k);
          const double b = g * (at(in[1], y, x, k) - p0 * m.mean) * std::pow(t, -beta - 1);
          sum_a += g * std::pow(t, -beta);
          sum_b += b;
          sum_bm += b * m.mean;
        });
        const double t = contrast_denominator(p, moments(s, in[1], j, i, k));
        out.at(j, i, k) = static_cast<float>(
            static_cast<double>(p.ps) *
            (at(in[0], j, i, k) * std::pow(t, -beta) - p0 / n * sum_a -
             2 * static_cast<double>(p.alpha) * beta / n * (at(in[1], j, i, k) * sum_b - sum_bm)));
      }
    }
  }
}

}  // namespace

#define LOCAL_FIELD(getter, setter, member)  \
  -(float)getter {                           \
    return body_->as<LocalParams>().member;  \
  }                                          \
  -(void)setter : (float)value {             \
    body_->as<LocalParams>().member = value; \
  }
#define THREE_FIELDS                  \
  LOCAL_FIELD(alpha, setAlpha, alpha) \
  LOCAL_FIELD(beta, setBeta, beta)    \
  LOCAL_FIELD(delta, setDelta, delta)
#define SIX_FIELDS           \
  THREE_FIELDS               \
  LOCAL_FIELD(p0, setP0, p0) \
  LOCAL_FIELD(pm, setPm, pm) \
  LOCAL_FIELD(ps, setPs, ps)

#define LOCAL_COMMON                                                                 \
  -(std::shared_ptr<Params>)emulatedParams {                                         \
    return std::make_shared<LocalParams>();                                          \
  }                                                                                  \
  -(instancetype)initWithCoder : (NSCoder*)aDecoder device : (id<MTLDevice>)device { \
    return [super initWithCoder:aDecoder device:device];                             \
  }                                                                                  \
  -(instancetype)initWithDevice : (id<MTLDevice>)device {                            \
    (void)device;                                                                    \
    spring(Trap::init_unavailable, HERE);                                            \
  }

#define WINDOW_INIT(operand, defaults)                                               \
  -(instancetype)initWithDevice : (id<MTLDevice>)device kernelWidth                  \
      : (NSUInteger)kernelWidth kernelHeight : (NSUInteger)kernelHeight {            \
    self = [super initWithDevice:device];                                            \
    REQUIRE(kernelWidth > 0 && kernelWidth == kernelHeight, kernel_parameters, HERE, \
            "window %lu x %lu", static_cast<unsigned long>(kernelWidth),             \
            static_cast<unsigned long>(kernelHeight));                               \
    auto params = std::make_shared<LocalParams>();                                   \
    defaults;                                                                        \
    body_->params = params;                                                          \
    body_->sources[operand].kernel_x = kernelWidth;                                  \
    body_->sources[operand].kernel_y = kernelHeight;                                 \
    return self;                                                                     \
  }

#define CHANNEL_INIT                                                                          \
  -(instancetype)initWithDevice : (id<MTLDevice>)device kernelSize : (NSUInteger)kernelSize { \
    self = [super initWithDevice:device];                                                     \
    REQUIRE(kernelSize > 0, kernel_parameters, HERE, "kernelSize");                           \
    auto params = std::make_shared<LocalParams>();                                            \
    params->size = kernelSize;                                                                \
    body_->params = params;                                                                   \
    return self;                                                                              \
  }                                                                                           \
  -(NSUInteger)kernelSize {                                                                   \
    return body_->as<LocalParams>().size;                                                     \
  }

#define FORWARD_COMMON(function)                                                                 \
  LOCAL_COMMON                                                                                   \
  -(Class)emulatedStateClass {                                                                   \
    return [MPSNNGradientState class];                                                           \
  }                                                                                              \
  -(Work)emulatedWork : (NSArray<MPSState*>*)states {                                            \
    (void)states;                                                                                \
    return [p = body_->as<LocalParams>(), s = body_->sources[0]](                                \
               const std::vector<Tensor>& in, Tensor& out, size_t) { function(p, s, in, out); }; \
  }

#define GRADIENT_COMMON(function, forward_class)                                                 \
  LOCAL_COMMON                                                                                   \
  -(bool)emulatedAcceptsForwardClass : (Class)forward {                                          \
    return [forward isSubclassOfClass:[forward_class class]];                                    \
  }                                                                                              \
  -(void)emulatedCheckGradient : (const Call&)call where : (const Where&)where {                 \
    [super emulatedCheckGradient:call where:where];                                              \
    REQUIRE(body_->sources[1].edge == MPSImageEdgeModeZero, edge_mode, where,                    \
            "only zero has a gradient");                                                         \
  }                                                                                              \
  -(Work)emulatedGradientWork : (NSArray<MPSState*>*)states {                                    \
    (void)states;                                                                                \
    return [p = body_->as<LocalParams>(), s = body_->sources[1]](                                \
               const std::vector<Tensor>& in, Tensor& out, size_t) { function(p, s, in, out); }; \
  }

#define CONTRAST_DEFAULTS \
  params->alpha = 0;      \
  params->beta = 0.5F;    \
  params->delta = 1.0F / 1024

@implementation MPSCNNCrossChannelNormalization
FORWARD_COMMON(cross_channel)
CHANNEL_INIT
THREE_FIELDS
@end

@implementation MPSCNNCrossChannelNormalizationGradient
GRADIENT_COMMON(cross_channel_gradient, MPSCNNCrossChannelNormalization)
CHANNEL_INIT
THREE_FIELDS
@end

@implementation MPSCNNSpatialNormalization
FORWARD_COMMON(spatial)
WINDOW_INIT(0, )
THREE_FIELDS
@end

@implementation MPSCNNSpatialNormalizationGradient
GRADIENT_COMMON(spatial_gradient, MPSCNNSpatialNormalization)
WINDOW_INIT(1, )
THREE_FIELDS
@end

@implementation MPSCNNLocalContrastNormalization
FORWARD_COMMON(contrast)
WINDOW_INIT(0, CONTRAST_DEFAULTS)
SIX_FIELDS
@end

@implementation MPSCNNLocalContrastNormalizationGradient
GRADIENT_COMMON(contrast_gradient, MPSCNNLocalContrastNormalization)
WINDOW_INIT(1, CONTRAST_DEFAULTS)
SIX_FIELDS
@end
