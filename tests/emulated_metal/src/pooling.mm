// Pooling over windows, and its gradients.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "internal.hpp"

using namespace emulated_metal;

namespace emulated_metal {
namespace {

enum class Pool { none, maximum, average, l2_norm };

struct PoolingParams : ParamsOf<PoolingParams> {
  NSUInteger zero_pad_x = 0, zero_pad_y = 0;
  MTLSize source_size{NSUIntegerMax, NSUIntegerMax, NSUIntegerMax};
  void fields(Fields& f) override {
    f("zero_pad_x", zero_pad_x);
    f("zero_pad_y", zero_pad_y);
    f("source_size.width", source_size.width);
    f("source_size.height", source_size.height);
    f("source_size.depth", source_size.depth);
  }
};

// One axis of a window: its taps, first to last.
struct Taps {
  long first, step, count;
  long at(long index) const { return first + step * index; }
  long inside(long low, long high) const {  // how many lie in [low, high]
    long n = 0;
    for (long t = 0; t < count; ++t) n += at(t) >= low && at(t) <= high;
    return n;
  }
};

Taps taps(long centre, NSUInteger kernel, NSUInteger dilation) {
  const auto k = static_cast<long>(kernel), d = static_cast<long>(dilation);
  return {centre - ((k - 1) * d + 1) / 2, d, k};
}

struct Window {
  Taps x, y;
};

Window window(const Operand& s, long i, long j) {
  return {taps(s.offset.x + static_cast<long>(s.stride_x) * i, s.kernel_x, s.dilation_x),
          taps(s.offset.y + static_cast<long>(s.stride_y) * j, s.kernel_y, s.dilation_y)};
}

// Number of taps that an average divides by.
long divisor(const Operand& s, const PoolingParams& p, const Window& w, const Tensor& source) {
  if (s.edge == MPSImageEdgeModeZero) return w.x.count * w.y.count;
  const auto px = static_cast<long>(p.zero_pad_x), py = static_cast<long>(p.zero_pad_y);
  return w.x.inside(-px, source.w - 1 + px) * w.y.inside(-py, source.h - 1 + py);
}

bool outside(const Tensor& source, long y, long x) {
  return y < 0 || x < 0 || y >= source.h || x >= source.w;
}

float pooled(Pool kind, const Operand& s, const PoolingParams& p, const Tensor& source,
             const Window& w, long channel) {
  double sum = 0;
  float best = -INFINITY;
  for (long ty = 0; ty < w.y.count; ++ty) {
    for (long tx = 0; tx < w.x.count; ++tx) {
      const long y = w.y.at(ty), x = w.x.at(tx);
      if (kind == Pool::average) {
        if (!outside(source, y, x)) sum += static_cast<double>(source.at(y, x, channel));
        continue;
      }
      const float v = fetch(source, y, x, channel, s.edge);
      sum += static_cast<double>(v) * static_cast<double>(v);
      best = std::max(best, v);
    }
  }
  if (kind == Pool::maximum) return best;
  if (kind == Pool::l2_norm) return static_cast<float>(std::sqrt(sum));
  const long count = divisor(s, p, w, source);
  return count == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(count));
}

// Adds what one gradient pixel sends back through its window.
void spread(Pool kind, const Operand& s, const PoolingParams& p, const Tensor& source,
            const Window& w, long channel, float incoming, Tensor& out) {
  const auto add = [&](long y, long x, float value) {
    if (s.edge == MPSImageEdgeModeClamp && kind != Pool::average) {
      y = std::clamp(y, 0L, source.h - 1);
      x = std::clamp(x, 0L, source.w - 1);
    }
    if (!outside(source, y, x)) out.at(y, x, channel) += value;
  };
  if (kind == Pool::maximum) {
    // The first inside maximum in row-major order; padding wins only if it is strictly larger.
    float best = -INFINITY, padding = -INFINITY;
    long best_y = 0, best_x = 0;
    bool found = false;
    for (long ty = 0; ty < w.y.count; ++ty) {
      for (long tx = 0; tx < w.x.count; ++tx) {
        const long y = w.y.at(ty), x = w.x.at(tx);
        const float v = fetch(source, y, x, channel, s.edge);
        if (s.edge == MPSImageEdgeModeZero && outside(source, y, x)) {
          padding = 0.0F;
        } else if (!found || v > best) {
          found = true;
          best = v;
          best_y = y;
          best_x = x;
        }
      }
    }
    if (found && best >= padding) add(best_y, best_x, incoming);
    return;
  }
  const float forward = kind == Pool::l2_norm ? pooled(kind, s, p, source, w, channel) : 0.0F;
  const long count = kind == Pool::average ? divisor(s, p, w, source) : 0;
  for (long ty = 0; ty < w.y.count; ++ty) {
    for (long tx = 0; tx < w.x.count; ++tx) {
      const long y = w.y.at(ty), x = w.x.at(tx);
      if (kind == Pool::average) {
        if (count > 0) add(y, x, incoming / static_cast<float>(count));
      } else if (forward > 0) {
        add(y, x, incoming * fetch(source, y, x, channel, s.edge) / forward);
      }
    }
  }
}

void set_window(Operand& s, NSUInteger kx, NSUInteger ky, NSUInteger dx, NSUInteger dy,
                NSUInteger sx, NSUInteger sy, const Where& where) {
  REQUIRE(kx > 0 && ky > 0 && dx > 0 && dy > 0 && sx > 0 && sy > 0, kernel_parameters, where,
          "kernel %lu x %lu, dilation %lu x %lu, stride %lu x %lu", static_cast<unsigned long>(kx),
          static_cast<unsigned long>(ky), static_cast<unsigned long>(dx),
          static_cast<unsigned long>(dy), static_cast<unsigned long>(sx),
          static_cast<unsigned long>(sy));
  s.kernel_x = kx;
  s.kernel_y = ky;
  s.dilation_x = dx;
  s.dilation_y = dy;
  s.stride_x = sx;
  s.stride_y = sy;
}

}  // namespace
}  // namespace emulated_metal

@implementation MPSCNNPooling
- (Pool)emulatedPool {
  return Pool::none;
}
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<PoolingParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight {
  return [self initWithDevice:device
                  kernelWidth:kernelWidth
                 kernelHeight:kernelHeight
              strideInPixelsX:1
              strideInPixelsY:1];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY {
  self = [super initWithDevice:device];
  REQUIRE([self emulatedPool] != Pool::none, abstract_kernel, HERE);
  set_window(body_->sources[0], kernelWidth, kernelHeight, 1, 1, strideInPixelsX, strideInPixelsY,
             HERE);
  body_->params = [self emulatedParams];
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
- (Class)emulatedStateClass {
  return [MPSNNGradientState class];
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [kind = [self emulatedPool], s = body_->sources[0], p = body_->as<PoolingParams>()](
             const std::vector<Tensor>& in, Tensor& out, size_t) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          out.at(y, x, k) = pooled(kind, s, p, in[0], window(s, x, y), k);
        }
      }
    }
  };
}
@end

@implementation MPSCNNPoolingMax
- (Pool)emulatedPool {
  return Pool::maximum;
}
@end

@implementation MPSCNNPoolingAverage
- (Pool)emulatedPool {
  return Pool::average;
}
- (NSUInteger)zeroPadSizeX {
  return body_->as<PoolingParams>().zero_pad_x;
}
- (void)setZeroPadSizeX:(NSUInteger)size {
  body_->as<PoolingParams>().zero_pad_x = size;
}
- (NSUInteger)zeroPadSizeY {
  return body_->as<PoolingParams>().zero_pad_y;
}
- (void)setZeroPadSizeY:(NSUInteger)size {
  body_->as<PoolingParams>().zero_pad_y = size;
}
// Caffe's way of counting: the border that the padding policy adds counts as zeros.
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources {
  (void)descriptor, (void)sources;
  if (([body_->padding.get() paddingMethod] & MPSNNPaddingMethodExcludeEdges) == 0) return;
  Operand& s = body_->sources[0];
  s.edge = MPSImageEdgeModeClamp;
  const auto border = [](NSUInteger kernel, NSInteger offset) {
    return static_cast<NSUInteger>(std::max(0L, static_cast<long>(kernel) / 2 - offset));
  };
  body_->as<PoolingParams>().zero_pad_x = border(s.kernel_x, s.offset.x);
  body_->as<PoolingParams>().zero_pad_y = border(s.kernel_y, s.offset.y);
}
@end

@implementation MPSCNNPoolingL2Norm
- (Pool)emulatedPool {
  return Pool::l2_norm;
}
@end

@implementation MPSCNNDilatedPoolingMax
- (Pool)emulatedPool {
  return Pool::maximum;
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
                 dilationRateX:(NSUInteger)dilationRateX
                 dilationRateY:(NSUInteger)dilationRateY
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY {
  self = [super initWithDevice:device
                   kernelWidth:kernelWidth
                  kernelHeight:kernelHeight
               strideInPixelsX:strideInPixelsX
               strideInPixelsY:strideInPixelsY];
  set_window(body_->sources[0], kernelWidth, kernelHeight, dilationRateX, dilationRateY,
             strideInPixelsX, strideInPixelsY, HERE);
  return self;
}
- (NSUInteger)dilationRateX {
  return [super dilationRateX];
}
- (NSUInteger)dilationRateY {
  return [super dilationRateY];
}
@end

// ---------------------------------------------------------------- gradients

@implementation MPSCNNPoolingGradient
- (Pool)emulatedPool {
  return Pool::none;
}
- (Class)emulatedForwardClass {
  return Nil;
}
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<PoolingParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight {
  return [self initWithDevice:device
                  kernelWidth:kernelWidth
                 kernelHeight:kernelHeight
              strideInPixelsX:1
              strideInPixelsY:1];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY {
  self = [super initWithDevice:device];
  REQUIRE([self emulatedPool] != Pool::none, abstract_kernel, HERE);
  set_window(body_->sources[1], kernelWidth, kernelHeight, 1, 1, strideInPixelsX, strideInPixelsY,
             HERE);
  body_->sources[0].stride_x = strideInPixelsX;
  body_->sources[0].stride_y = strideInPixelsY;
  body_->params = [self emulatedParams];
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
- (MTLSize)sourceSize {
  return body_->as<PoolingParams>().source_size;
}
- (void)setSourceSize:(MTLSize)size {
  body_->as<PoolingParams>().source_size = size;
}
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return [forward isSubclassOfClass:[self emulatedForwardClass]];
}
- (void)emulatedConfigure:(const Snapshot&)snapshot {
  PoolingParams& params = body_->as<PoolingParams>();
  const auto& forward = snapshot.kernel.as<PoolingParams>();
  const Operand& s = snapshot.kernel.sources[0];
  body_->sources[0].offset = {snapshot.clip.x, snapshot.clip.y, 0};
  body_->sources[1].offset = {s.offset.x, s.offset.y, 0};
  params.source_size = MTLSizeMake(static_cast<NSUInteger>(snapshot.clip.w),
                                   static_cast<NSUInteger>(snapshot.clip.h), NSUIntegerMax);
  params.zero_pad_x = forward.zero_pad_x;
  params.zero_pad_y = forward.zero_pad_y;
}
- (void)emulatedCheckSnapshot:(const Snapshot&)snapshot where:(const Where&)where {
  const Operand& own = body_->sources[1];
  const Operand& s = snapshot.kernel.sources[0];
  REQUIRE(s.kernel_x == own.kernel_x && s.kernel_y == own.kernel_y && s.stride_x == own.stride_x &&
              s.stride_y == own.stride_y && s.dilation_x == own.dilation_x &&
              s.dilation_y == own.dilation_y,
          gradient_shape, where, "the forward kernel had another window");
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [kind = [self emulatedPool], g = body_->sources[0], s = body_->sources[1],
          p = body_->as<PoolingParams>(),
          returning = body_->returning](const std::vector<Tensor>& in, Tensor& out, size_t index) {
    const Tensor& gradient = in[0];
    const Tensor& source = in[1];
    Tensor full(source.h, source.w, out.c);
    const auto end = [](long start, NSUInteger size, long limit) {
      return size > static_cast<NSUInteger>(limit) +
                         (start < 0 ? static_cast<NSUInteger>(-start) : 0)
                 ? limit
                 : std::min(limit, start + static_cast<long>(size));
    };
    const long end_x = end(g.offset.x, p.source_size.width, gradient.w);
    const long end_y =
        index < p.source_size.depth ? end(g.offset.y, p.source_size.height, gradient.h) : 0;
    for (long q = std::max(0L, static_cast<long>(g.offset.y)); q < end_y; ++q) {
      for (long r = std::max(0L, static_cast<long>(g.offset.x)); r < end_x; ++r) {
        const Window w = window(s, r - g.offset.x, q - g.offset.y);
        for (long k = 0; k < out.c; ++k) {
          spread(kind, s, p, source, w, k, gradient.at(q, r, k), full);
        }
      }
    }
    // An explicit destination starts at the first pixel that the first window covers inside the
    // source; a created one has the source's shape.
    const Window first = window(s, 0, 0);
    const long y0 = returning ? 0 : std::max(0L, first.y.first);
    const long x0 = returning ? 0 : std::max(0L, first.x.first);
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          out.at(y, x, k) = outside(full, y + y0, x + x0) ? 0.0F : full.at(y + y0, x + x0, k);
        }
      }
    }
  };
}
@end

#define POOLING_GRADIENT(pool, forward) \
  -(Pool)emulatedPool {                 \
    return pool;                        \
  }                                     \
  -(Class)emulatedForwardClass {        \
    return [forward class];             \
  }

@implementation MPSCNNPoolingMaxGradient
POOLING_GRADIENT(Pool::maximum, MPSCNNPoolingMax)
@end

@implementation MPSCNNPoolingAverageGradient
POOLING_GRADIENT(Pool::average, MPSCNNPoolingAverage)
- (NSUInteger)zeroPadSizeX {
  return body_->as<PoolingParams>().zero_pad_x;
}
- (void)setZeroPadSizeX:(NSUInteger)size {
  body_->as<PoolingParams>().zero_pad_x = size;
}
- (NSUInteger)zeroPadSizeY {
  return body_->as<PoolingParams>().zero_pad_y;
}
- (void)setZeroPadSizeY:(NSUInteger)size {
  body_->as<PoolingParams>().zero_pad_y = size;
}
@end

@implementation MPSCNNPoolingL2NormGradient
POOLING_GRADIENT(Pool::l2_norm, MPSCNNPoolingL2Norm)
@end

@implementation MPSCNNDilatedPoolingMaxGradient
POOLING_GRADIENT(Pool::maximum, MPSCNNDilatedPoolingMax)
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY {
  (void)device, (void)kernelWidth, (void)kernelHeight, (void)strideInPixelsX, (void)strideInPixelsY;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
                 dilationRateX:(NSUInteger)dilationRateX
                 dilationRateY:(NSUInteger)dilationRateY
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY {
  self = [super initWithDevice:device
                   kernelWidth:kernelWidth
                  kernelHeight:kernelHeight
               strideInPixelsX:strideInPixelsX
               strideInPixelsY:strideInPixelsY];
  set_window(body_->sources[1], kernelWidth, kernelHeight, dilationRateX, dilationRateY,
             strideInPixelsX, strideInPixelsY, HERE);
  return self;
}
@end
