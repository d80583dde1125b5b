// Nearest and bilinear upsampling, and their gradients.
#include <algorithm>
#include <array>
#include <cmath>

#include "internal.hpp"

using namespace emulated_metal;

namespace emulated_metal {
namespace {

enum class Sampling { none, nearest, bilinear };

struct UpsamplingParams : ParamsOf<UpsamplingParams> {
  NSUInteger factor_x = 1, factor_y = 1;
  bool align_corners = false;
  void fields(Fields& f) override {
    f("factor_x", factor_x);
    f("factor_y", factor_y);
    f("align_corners", align_corners);
  }
};

// What one result reads of an axis: the pixel at its position and the next one.
struct Reads {
  std::array<long, 2> pixel;
  std::array<double, 2> weight;
};

struct Axis {
  Sampling sampling;
  long factor, length;  // of the source
  bool align_corners;
  long offset;

  Reads at(long i) const {
    if (sampling == Sampling::nearest) return {{offset + i / factor, 0}, {1, 0}};
    double position = static_cast<double>(i) / static_cast<double>(factor);
    if (align_corners) {
      const long last = length * factor - 1;
      position =
          last == 0 ? 0.0 : static_cast<double>(i * (length - 1)) / static_cast<double>(last);
    }
    const double below = std::floor(position);
    const long pixel = offset + static_cast<long>(below);
    // Nothing lies behind the last pixel.
    const long next = pixel == length - 1 ? pixel : pixel + 1;
    return {{pixel, next}, {1 - (position - below), position - below}};
  }
};

struct Axes {
  Axis x, y;
};

Axes axes(Sampling sampling, const UpsamplingParams& p, const MPSOffset& offset, long width,
          long height) {
  return {{sampling, static_cast<long>(p.factor_x), width, p.align_corners, offset.x},
          {sampling, static_cast<long>(p.factor_y), height, p.align_corners, offset.y}};
}

// Calls body(y, x, weight) for the pixels that a result reads with a weight.
template <class Body>
void each_read(const Axes& axes, long j, long i, const Body& body) {
  const Reads rows = axes.y.at(j), columns = axes.x.at(i);
  for (size_t a = 0; a < 2; ++a) {
    for (size_t b = 0; b < 2; ++b) {
      const double weight = rows.weight[a] * columns.weight[b];
      if (weight != 0) body(rows.pixel[a], columns.pixel[b], weight);
    }
  }
}

void check_factors(NSUInteger x, NSUInteger y, const Where& where) {
  REQUIRE(x > 0 && y > 0, kernel_parameters, where, "scale factors %lu x %lu",
          static_cast<unsigned long>(x), static_cast<unsigned long>(y));
}

}  // namespace
}  // namespace emulated_metal

#define SCALE_FACTORS                                                               \
  -(std::shared_ptr<Params>)emulatedParams {                                        \
    return std::make_shared<UpsamplingParams>();                                    \
  }                                                                                 \
  -(instancetype)initWithDevice : (id<MTLDevice>)device {                           \
    (void)device;                                                                   \
    spring(Trap::init_unavailable, HERE);                                           \
  }                                                                                 \
  -(double)scaleFactorX {                                                           \
    return static_cast<double>(body_->as<UpsamplingParams>().factor_x);             \
  }                                                                                 \
  -(double)scaleFactorY {                                                           \
    return static_cast<double>(body_->as<UpsamplingParams>().factor_y);             \
  }                                                                                 \
  -(Sampling)emulatedSampling {                                                     \
    return Sampling::none;                                                          \
  }                                                                                 \
  -(instancetype)emulatedInitWithDevice : (id<MTLDevice>)device x : (NSUInteger)x y \
      : (NSUInteger)y {                                                             \
    self = [super initWithDevice:device];                                           \
    REQUIRE([self emulatedSampling] != Sampling::none, abstract_kernel, HERE);      \
    check_factors(x, y, HERE);                                                      \
    body_->params = [self emulatedParams];                                          \
    body_->as<UpsamplingParams>().factor_x = x;                                     \
    body_->as<UpsamplingParams>().factor_y = y;                                     \
    return self;                                                                    \
  }

@implementation MPSCNNUpsampling
SCALE_FACTORS
- (BOOL)alignCorners {
  return body_->as<UpsamplingParams>().align_corners;
}
- (Class)emulatedStateClass {
  return [MPSNNGradientState class];
}
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources {
  (void)sources;
  descriptor.width *= body_->as<UpsamplingParams>().factor_x;
  descriptor.height *= body_->as<UpsamplingParams>().factor_y;
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [sampling = [self emulatedSampling], s = body_->sources[0],
          p = body_->as<UpsamplingParams>()](const std::vector<Tensor>& in, Tensor& out, size_t) {
    const Tensor& source = in[0];
    const Axes both = axes(sampling, p, s.offset, source.w, source.h);
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          double sum = 0;
          each_read(both, y, x, [&](long row, long column, double weight) {
            sum += weight * static_cast<double>(fetch(source, row, column, k, s.edge));
          });
          out.at(y, x, k) = static_cast<float>(sum);
        }
      }
    }
  };
}
@end

#define INTEGER_FACTORS(sampling)                                                               \
  -(Sampling)emulatedSampling {                                                                 \
    return sampling;                                                                            \
  }                                                                                             \
  -(instancetype)initWithDevice : (id<MTLDevice>)device integerScaleFactorX                     \
      : (NSUInteger)integerScaleFactorX integerScaleFactorY : (NSUInteger)integerScaleFactorY { \
    return [self emulatedInitWithDevice:device x:integerScaleFactorX y:integerScaleFactorY];    \
  }

@implementation MPSCNNUpsamplingNearest
INTEGER_FACTORS(Sampling::nearest)
@end

@implementation MPSCNNUpsamplingBilinear
INTEGER_FACTORS(Sampling::bilinear)
- (instancetype)initWithDevice:(id<MTLDevice>)device
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY
                  alignCorners:(BOOL)alignCorners {
  self = [self emulatedInitWithDevice:device x:integerScaleFactorX y:integerScaleFactorY];
  body_->as<UpsamplingParams>().align_corners = alignCorners;
  return self;
}
@end

// ---------------------------------------------------------------- gradients

@implementation MPSCNNUpsamplingGradient
SCALE_FACTORS
- (Class)emulatedForwardClass {
  return Nil;
}
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return [forward isSubclassOfClass:[self emulatedForwardClass]];
}
- (void)emulatedConfigure:(const Snapshot&)snapshot {
  const Operand& forward = snapshot.kernel.sources[0];
  body_->sources[0].offset = {snapshot.clip.x, snapshot.clip.y, 0};
  body_->sources[1].offset = {forward.offset.x, forward.offset.y, 0};
}
- (void)emulatedCheckSnapshot:(const Snapshot&)snapshot where:(const Where&)where {
  const auto& own = body_->as<UpsamplingParams>();
  const auto& forward = snapshot.kernel.as<UpsamplingParams>();
  REQUIRE(own.factor_x == forward.factor_x && own.factor_y == forward.factor_y, gradient_shape,
          where, "the forward kernel had other scale factors");
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  const std::shared_ptr<Snapshot> snapshot = body_of([states objectAtIndex:0], HERE).snapshot;
  return [sampling = [self emulatedSampling], snapshot, g = body_->sources[0],
          s = body_->sources[1]](const std::vector<Tensor>& in, Tensor& out, size_t) {
    const Tensor& gradient = in[0];
    const Axes both = axes(sampling, snapshot->kernel.as<UpsamplingParams>(), s.offset,
                           snapshot->source_w, snapshot->source_h);
    std::vector<double> sums(out.data.size());
    for (long j = 0; j < snapshot->clip.h; ++j) {
      for (long i = 0; i < snapshot->clip.w; ++i) {
        const long y = g.offset.y + j, x = g.offset.x + i;
        if (y < 0 || x < 0 || y >= gradient.h || x >= gradient.w) continue;
        each_read(both, j, i, [&](long row, long column, double weight) {
          if (s.edge == MPSImageEdgeModeClamp) {
            row = std::clamp(row, 0L, snapshot->source_h - 1);
            column = std::clamp(column, 0L, snapshot->source_w - 1);
          }
          if (row < 0 || column < 0 || row >= std::min(out.h, snapshot->source_h) ||
              column >= std::min(out.w, snapshot->source_w)) {
            return;
          }
          for (long k = 0; k < out.c; ++k) {
            sums[static_cast<size_t>((row * out.w + column) * out.c + k)] +=
                weight * static_cast<double>(gradient.at(y, x, k));
          }
        });
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) out.data[i] = static_cast<float>(sums[i]);
  };
}
@end

@implementation MPSCNNUpsamplingNearestGradient
INTEGER_FACTORS(Sampling::nearest)
- (Class)emulatedForwardClass {
  return [MPSCNNUpsamplingNearest class];
}
@end

@implementation MPSCNNUpsamplingBilinearGradient
INTEGER_FACTORS(Sampling::bilinear)
- (Class)emulatedForwardClass {
  return [MPSCNNUpsamplingBilinear class];
}
@end
