// Products of every two channels summed over the pixels, and their gradient.
#include "internal.hpp"

using namespace emulated_metal;

namespace {

struct GramParams : ParamsOf<GramParams> {
  float alpha = 1;
  void fields(Fields& f) override { f("alpha", alpha); }
};

void check_default_geometry(const KernelBody& kernel, const Where& where) {
  for (const Operand& s : kernel.sources) {
    REQUIRE(s.offset.x == 0 && s.offset.y == 0 && s.offset.z == 0, gram_geometry, where, "offset");
  }
  const MTLRegion& clip = kernel.clip;
  REQUIRE(clip.origin.x == 0 && clip.origin.y == 0 && clip.origin.z == 0 &&
              clip.size.width == NSUIntegerMax && clip.size.height == NSUIntegerMax &&
              clip.size.depth == NSUIntegerMax,
          gram_geometry, where, "clip rectangle");
}

// A matrix lies in the first image of the list, read or written as `channels` channels.
void check_matrix(NSArray<MPSImage*>* images, NSUInteger channels, const Where& where) {
  const ImageBody& body = body_of([images objectAtIndex:0], where);
  REQUIRE(body.shape.width == channels && body.shape.height == 1, gram_shape, where,
          "%lux%lu for %lu channels", static_cast<unsigned long>(body.shape.width),
          static_cast<unsigned long>(body.shape.height), static_cast<unsigned long>(channels));
}

NSUInteger consumed(NSArray<MPSImage*>* images, const Operand& s, const Where& where) {
  const ImageBody& body = body_of([images objectAtIndex:0], where);
  return std::min(s.channel_max, body.shape.channels - s.channel_offset);
}

void gram_matrix(float alpha, const Tensor& x, Tensor& out) {
  for (long f = 0; f < x.c; ++f) {
    for (long c = 0; c < x.c; ++c) {
      double sum = 0;
      for (long j = 0; j < x.h; ++j) {
        for (long i = 0; i < x.w; ++i) {
          sum += static_cast<double>(x.at(j, i, f)) * static_cast<double>(x.at(j, i, c));
        }
      }
      out.at(0, f, c) = static_cast<float>(static_cast<double>(alpha) * sum);
    }
  }
}

void gram_matrix_gradient(float alpha, const Tensor& g, const Tensor& x, Tensor& out) {
  for (long j = 0; j < out.h; ++j) {
    for (long i = 0; i < out.w; ++i) {
      for (long k = 0; k < out.c; ++k) {
        double sum = 0;
        for (long c = 0; c < x.c; ++c) {
          const double both =
              static_cast<double>(g.at(0, k, c)) + static_cast<double>(g.at(0, c, k));
          sum += both * static_cast<double>(x.at(j, i, c));
        }
        out.at(j, i, k) = static_cast<float>(static_cast<double>(alpha) * sum);
      }
    }
  }
}

}  // namespace

#define GRAM_COMMON                                                                  \
  -(std::shared_ptr<Params>)emulatedParams {                                         \
    return std::make_shared<GramParams>();                                           \
  }                                                                                  \
  -(instancetype)initWithDevice : (id<MTLDevice>)device alpha : (float)alpha {       \
    self = [super initWithDevice:device];                                            \
    auto params = std::make_shared<GramParams>();                                    \
    params->alpha = alpha;                                                           \
    body_->params = params;                                                          \
    return self;                                                                     \
  }                                                                                  \
  -(instancetype)initWithDevice : (id<MTLDevice>)device {                            \
    return [self initWithDevice:device alpha:1];                                     \
  }                                                                                  \
  -(instancetype)initWithCoder : (NSCoder*)aDecoder device : (id<MTLDevice>)device { \
    return [super initWithCoder:aDecoder device:device];                             \
  }                                                                                  \
  -(float)alpha {                                                                    \
    return body_->as<GramParams>().alpha;                                            \
  }                                                                                  \
  -(void)setAlpha : (float)alpha {                                                   \
    body_->as<GramParams>().alpha = alpha;                                           \
  }

@implementation MPSNNGramMatrixCalculation
GRAM_COMMON
- (Class)emulatedStateClass {
  return [MPSNNGradientState class];
}
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources {
  [descriptor setWidth:consumed(sources, body_->sources[0], HERE)];
  [descriptor setHeight:1];
}
- (void)emulatedCheck:(const Call&)call where:(const Where&)where {
  check_default_geometry(*body_, where);
  check_matrix(call.destinations, consumed(call.sources[0], body_->sources[0], where), where);
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [alpha = body_->as<GramParams>().alpha](const std::vector<Tensor>& in, Tensor& out,
                                                 size_t) { gram_matrix(alpha, in[0], out); };
}
@end

@implementation MPSNNGramMatrixCalculationGradient
GRAM_COMMON
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return [forward isSubclassOfClass:[MPSNNGramMatrixCalculation class]];
}
- (void)emulatedConfigure:(const Snapshot&)snapshot {
  [super emulatedConfigure:snapshot];
  [self setAlpha:snapshot.kernel.as<GramParams>().alpha];
}
- (void)emulatedCheckGradient:(const Call&)call where:(const Where&)where {
  [super emulatedCheckGradient:call where:where];
  check_default_geometry(*body_, where);
  check_matrix(call.sources[0], consumed(call.sources[0], body_->sources[0], where), where);
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  // The state's alpha, whatever the kernel's own is.
  const StateBody& state = body_of([states objectAtIndex:0], HERE);
  [self setAlpha:state.snapshot->kernel.as<GramParams>().alpha];
  return
      [alpha = body_->as<GramParams>().alpha](const std::vector<Tensor>& in, Tensor& out, size_t) {
        gram_matrix_gradient(alpha, in[0], in[1], out);
      };
}
@end
