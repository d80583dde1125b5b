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

// ---- across channels

// The channels of a pixel, which may lie outside.
std::vector<double> pixel(const Tensor& t, const Operand& s, long j, long i) {
  std::vector<double> values;
  for (long k = 0; k < t.c; ++k) {
    values.push_back(static_cast<double>(fetch(t, j + s.offset.y, i + s.offset.x, k, s.edge)));
  }
  return values;
}

std::vector<double> channel_denominators(const LocalParams& p, const std::vector<double>& x) {
  std::vector<double> all;
  const auto n = static_cast<long>(p.size), channels = static_cast<long>(x.size());
  for (long k = 0; k < channels; ++k) {
    const Ends ends = forward_window(k, n);
    double sum = 0;
    for (long q = std::max(0L, ends.low); q <= std::min(channels - 1, ends.high); ++q) {
      sum += x[static_cast<size_t>(q)] * x[static_cast<size_t>(q)];
    }
    all.push_back(static_cast<double>(p.delta) +
                  static_cast<double>(p.alpha) / static_cast<double>(n) * sum);
  }
  return all;
}

void cross_channel(const LocalParams& p, const Operand& s, const std::vector<Tensor>& in,
                   Tensor& out) {
  for (long j = 0; j < out.h; ++j) {
    for (long i = 0; i < out.w; ++i) {
      const std::vector<double> x = pixel(in[0], s, j, i);
      const std::vector<double> l = channel_denominators(p, x);
      for (long k = 0; k < out.c; ++k) {
        const auto c = static_cast<size_t>(k);
        out.at(j, i, k) = static_cast<float>(x[c] * std::pow(l[c], -static_cast<double>(p.beta)));
      }
    }
  }
}

// The gradient of source place (y, x) lies `shift` further on in the incoming image.
struct Shift {
  long y, x;
};

void cross_channel_gradient(const LocalParams& p, const Operand& s, const Shift& shift,
                            const std::vector<Tensor>& in, Tensor& out) {
  const auto n = static_cast<long>(p.size);
  const auto beta = static_cast<double>(p.beta);
  const double factor = 2 * static_cast<double>(p.alpha) * beta / static_cast<double>(n);
  Operand primary = s;
  primary.offset.y += shift.y;
  primary.offset.x += shift.x;
  for (long j = 0; j < out.h; ++j) {
    for (long i = 0; i < out.w; ++i) {
      const std::vector<double> g = pixel(in[0], primary, j, i), x = pixel(in[1], s, j, i);
      const std::vector<double> l = channel_denominators(p, x);
      for (long k = 0; k < out.c; ++k) {
        const Ends ends = backward_window(k, n);
        double sum = 0;
        for (auto q = static_cast<size_t>(std::max(0L, ends.low));
             q <= static_cast<size_t>(std::min(out.c - 1, ends.high)); ++q) {
          sum += g[q] * x[q] * std::pow(l[q], -beta - 1);
        }
        const auto c = static_cast<size_t>(k);
        out.at(j, i, k) = static_cast<float>(g[c] * std::pow(l[c], -beta) - factor * x[c] * sum);
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

// What a result place adds to the gradients of those that it was made from.
struct Term {
  double direct, product, mean;
};

// Terms of one channel, for the places that have an incoming gradient.
class Terms {
 public:
  template <class Make>
  Terms(const Operand& s, const Tensor& g, const Shift& shift, long k, const Make& make)
      : operand_(s), shift_(shift), height_(g.h), width_(g.w) {
    for (long y = 0; y < height_; ++y) {
      for (long x = 0; x < width_; ++x) {
        const auto incoming = static_cast<double>(g.at(y, x, k));
        gradients_.push_back(incoming);
        terms_.push_back(make(incoming, y - shift.y, x - shift.x));
      }
    }
  }
  // What comes back to source place (y, x) on its own account.
  double direct(long y, long x) const {
    y += shift_.y;
    x += shift_.x;
    if (y < 0 || y >= height_ || x < 0 || x >= width_ || gradients_[at(y, x)] == 0) return 0;
    return terms_[at(y, x)].direct;
  }
  // Sums over the transposed window around source place (y, x).
  Term sum(long y, long x) const {
    const Ends rows = backward_window(y + shift_.y, static_cast<long>(operand_.kernel_y));
    const Ends columns = backward_window(x + shift_.x, static_cast<long>(operand_.kernel_x));
    Term sums{0, 0, 0};
    for (long q = std::max(0L, rows.low); q <= std::min(height_ - 1, rows.high); ++q) {
      for (long r = std::max(0L, columns.low); r <= std::min(width_ - 1, columns.high); ++r) {
        const Term& term = terms_[at(q, r)];
        sums.direct += term.direct;
        sums.product += term.product;
        sums.mean += term.mean;
      }
    }
    return sums;
  }

 private:
  size_t at(long y, long x) const { return static_cast<size_t>(y * width_ + x); }
  Operand operand_;
  Shift shift_;
  long height_, width_;
  std::vector<double> gradients_;
  std::vector<Term> terms_;
};

double fetched(const Tensor& t, long y, long x, long k) {
  return static_cast<double>(fetch(t, y, x, k, MPSImageEdgeModeZero));
}

void spatial_gradient(const LocalParams& p, const Operand& s, const Shift& shift,
                      const std::vector<Tensor>& in, Tensor& out) {
  const auto beta = static_cast<double>(p.beta);
  const double factor =
      2 * static_cast<double>(p.alpha) * beta / static_cast<double>(s.kernel_x * s.kernel_y);
  for (long k = 0; k < out.c; ++k) {
    const Terms terms(s, in[0], shift, k, [&](double g, long y, long x) {
      const double t = spatial_denominator(p, moments(s, in[1], y, x, k));
      return Term{g * std::pow(t, -beta), g * fetched(in[1], y, x, k) * std::pow(t, -beta - 1), 0};
    });
    for (long j = 0; j < out.h; ++j) {
      for (long i = 0; i < out.w; ++i) {
        const long y = j + s.offset.y, x = i + s.offset.x;
        out.at(j, i, k) = static_cast<float>(terms.direct(y, x) - factor * fetched(in[1], y, x, k) *
                                                                      terms.sum(y, x).product);
      }
    }
  }
}

void contrast_gradient(const LocalParams& p, const Operand& s, const Shift& shift,
                       const std::vector<Tensor>& in, Tensor& out) {
  const auto beta = static_cast<double>(p.beta), p0 = static_cast<double>(p.p0);
  const auto n = static_cast<double>(s.kernel_x * s.kernel_y);
  const double factor = 2 * static_cast<double>(p.alpha) * beta / n;
  for (long k = 0; k < out.c; ++k) {
    const Terms terms(s, in[0], shift, k, [&](double g, long y, long x) {
      const Moments m = moments(s, in[1], y, x, k);
      const double t = contrast_denominator(p, m);
      const double b = g * (fetched(in[1], y, x, k) - p0 * m.mean) * std::pow(t, -beta - 1);
      return Term{g * std::pow(t, -beta), b, b * m.mean};
    });
    for (long j = 0; j < out.h; ++j) {
      for (long i = 0; i < out.w; ++i) {
        const long y = j + s.offset.y, x = i + s.offset.x;
        const Term sums = terms.sum(y, x);
        const double back = terms.direct(y, x) - p0 / n * sums.direct -
                            factor * (fetched(in[1], y, x, k) * sums.product - sums.mean);
        out.at(j, i, k) = static_cast<float>(static_cast<double>(p.ps) * back);
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

#define GRADIENT_COMMON(function, forward_class)                                                   \
  LOCAL_COMMON                                                                                     \
  -(bool)emulatedAcceptsForwardClass : (Class)forward {                                            \
    return [forward isSubclassOfClass:[forward_class class]];                                      \
  }                                                                                                \
  -(void)emulatedCheckGradient : (const Call&)call where : (const Where&)where {                   \
    [super emulatedCheckGradient:call where:where];                                                \
    REQUIRE(body_->sources[1].edge == MPSImageEdgeModeZero, edge_mode, where,                      \
            "only zero has a gradient");                                                           \
  }                                                                                                \
  -(Work)emulatedGradientWork : (NSArray<MPSState*>*)states {                                      \
    (void)states;                                                                                  \
    const MPSOffset to = body_->sources[0].offset, from = body_->sources[1].offset;                \
    return                                                                                         \
        [p = body_->as<LocalParams>(), s = body_->sources[1],                                      \
         shift = Shift{to.y - from.y, to.x - from.x}](const std::vector<Tensor>& in, Tensor& out,  \
                                                      size_t) { function(p, s, shift, in, out); }; \
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
