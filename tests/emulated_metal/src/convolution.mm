// Convolution and fully connected kernels, and their gradients.
#include <algorithm>

#include "convolution.hpp"

using namespace emulated_metal;

namespace {

struct Layer {
  Geometry g;
  WeightSet weights;
  NeuronFunction neuron;
  std::vector<float> scale, shift;
};

Layer layer(const KernelBody& kernel) {
  const auto& p = kernel.as<ConvolutionParams>();
  return {p.geometry, *p.weights, p.neuron, p.scale, p.shift};
}

long extent(NSUInteger kernel, NSUInteger dilation) {
  return (static_cast<long>(kernel) - 1) * static_cast<long>(dilation) + 1;
}

// The convolution proper at one place: first_y, first_x are the window's first tap.
float convolve(const Layer& l, const Operand& s, const Tensor& in, long first_y, long first_x,
               long o) {
  const auto dy = static_cast<long>(s.dilation_y), dx = static_cast<long>(s.dilation_x);
  float sum = 0;
  for (long q = 0; q < l.g.ky; ++q) {
    for (long p = 0; p < l.g.kx; ++p) {
      for (long c = 0; c < l.g.in_group(); ++c) {
        sum += floats(l.weights.weights)[l.g.index(o, q, p, c)] *
               fetch(in, first_y + dy * q, first_x + dx * p, l.g.source_channel(o, c), s.edge);
      }
    }
  }
  const auto at = static_cast<size_t>(o);
  sum += floats(l.weights.biases)[at];
  if (!l.scale.empty()) sum = sum * l.scale[at] + l.shift[at];
  return l.neuron.value(sum, o);
}

// dW and dB of one image, added to the state's buffers.
void accumulate(const Geometry& g, const Operand& s, const MPSOffset& first, const Tensor& gradient,
                const Tensor& source, float* weights, float* biases) {
  const auto sy = static_cast<long>(s.stride_y), sx = static_cast<long>(s.stride_x);
  const auto dy = static_cast<long>(s.dilation_y), dx = static_cast<long>(s.dilation_x);
  for (long o = 0; o < g.out; ++o) {
    for (long j = 0; j < gradient.h; ++j) {
      for (long i = 0; i < gradient.w; ++i) {
        const float e = gradient.at(j, i, o);
        biases[o] += e;
        for (long q = 0; q < g.ky; ++q) {
          for (long p = 0; p < g.kx; ++p) {
            for (long c = 0; c < g.in_group(); ++c) {
              weights[g.index(o, q, p, c)] +=
                  e * fetch(source, sy * j + first.y + dy * q, sx * i + first.x + dx * p,
                            g.source_channel(o, c), s.edge);
            }
          }
        }
      }
    }
  }
}

}  // namespace

@implementation MPSCNNConvolution
- (bool)emulatedFullyConnected {
  return false;
}
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<ConvolutionParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                       weights:(id<MPSCNNConvolutionDataSource>)weights {
  self = [super initWithDevice:device];
  auto params = std::make_shared<ConvolutionParams>();
  params->source = weights;
  body_->params = params;
  if (!load_source(*body_, weights, true, false, HERE)) {
    [self release];
    return nil;
  }
  const Operand& s = body_->sources[0];
  REQUIRE(![self emulatedFullyConnected] ||
              (s.stride_x == 1 && s.stride_y == 1 && s.dilation_x == 1 && s.dilation_y == 1 &&
               params->geometry.groups == 1 && !params->geometry.depthwise),
          fully_connected_shape, HERE, "stride, dilation or groups");
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
#define CONVOLUTION_ACCESSORS                                                       \
  -(NSUInteger)groups {                                                             \
    return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.groups); \
  }                                                                                 \
  -(id<MPSCNNConvolutionDataSource>)dataSource {                                    \
    return body_->as<ConvolutionParams>().source.get();                             \
  }
CONVOLUTION_ACCESSORS
- (NSUInteger)inputFeatureChannels {
  return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.in);
}
- (NSUInteger)outputFeatureChannels {
  return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.out);
}
- (NSUInteger)subPixelScaleFactor {
  return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.sub_pixel);
}
- (NSUInteger)channelMultiplier {
  return body_->as<ConvolutionParams>().geometry.depthwise ? 1 : 0;
}
- (MPSNNNeuronDescriptor*)fusedNeuronDescriptor {
  return body_->as<ConvolutionParams>().neuron_descriptor.get();
}
- (MPSNNConvolutionAccumulatorPrecisionOption)accumulatorPrecisionOption {
  return body_->as<ConvolutionParams>().accumulator;
}
- (void)setAccumulatorPrecisionOption:(MPSNNConvolutionAccumulatorPrecisionOption)option {
  REQUIRE(option == MPSNNConvolutionAccumulatorPrecisionOptionFloat ||
              body_->as<ConvolutionParams>().half_weights,
          weights_precision, HERE, "Float32 kernel weights need the Float accumulator");
  body_->as<ConvolutionParams>().accumulator = option;
}

// ---- encodes

- (long)emulatedProducedChannels:(long)consumed {
  (void)consumed;
  const Geometry& g = body_->as<ConvolutionParams>().geometry;
  return g.out / (g.sub_pixel * g.sub_pixel);
}
- (Class)emulatedStateClass {
  return [MPSCNNConvolutionGradientState class];
}
- (BOOL)isResultStateReusedAcrossBatch {
  return YES;
}
- (void)emulatedPrepareState:(MPSState*)state images:(NSArray<MPSImage*>*)images {
  (void)images;
  prepare_gradient_state(state, self, body_->as<ConvolutionParams>().geometry);
  std::static_pointer_cast<ConvolutionPayload>([state emulatedBody]->payload)->convolution = self;
}
- (void)emulatedCheck:(const Call&)call where:(const Where&)where {
  const auto& p = body_->as<ConvolutionParams>();
  const ImageBody& source = body_of([call.sources[0] objectAtIndex:0], where);
  const Operand& s = body_->sources[0];
  const auto consumed =
      static_cast<long>(std::min(s.channel_max, source.shape.channels - s.channel_offset));
  REQUIRE(consumed >= p.geometry.in, source_channels, where, "%ld of %ld", consumed, p.geometry.in);
  MPSState* first = [call.written_states count] > 0 ? [call.written_states objectAtIndex:0] : nil;
  for (MPSState* state in call.written_states) REQUIRE(state == first, state_not_shared, where);
  if (![self emulatedFullyConnected]) return;
  const ImageBody& destination = body_of([call.destinations objectAtIndex:0], where);
  const MTLSize& clip = body_->clip.size;
  REQUIRE(source.shape.width == s.kernel_x && source.shape.height == s.kernel_y &&
              std::min(clip.width, destination.shape.width) == 1 &&
              std::min(clip.height, destination.shape.height) == 1,
          fully_connected_shape, where);
}
- (Extra)emulatedExtra:(NSArray<MPSState*>*)states {
  (void)states;
  const WeightSet& set = *body_->as<ConvolutionParams>().weights;
  return {{set.weights, set.biases}, {}};
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  const Operand& s = body_->sources[0];
  MPSOffset first = {s.offset.x - extent(s.kernel_x, s.dilation_x) / 2,
                     s.offset.y - extent(s.kernel_y, s.dilation_y) / 2, 0};
  if ([self emulatedFullyConnected]) first = {0, 0, 0};
  return [l = layer(*body_), s, first](const std::vector<Tensor>& in, Tensor& out, size_t) {
    const long r = l.g.sub_pixel;
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          const long o = out.c * (r * (y % r) + x % r) + k;
          out.at(y, x, k) = convolve(l, s, in[0], static_cast<long>(s.stride_y) * (y / r) + first.y,
                                     static_cast<long>(s.stride_x) * (x / r) + first.x, o);
        }
      }
    }
  };
}
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources {
  (void)sources;
  const auto r = static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.sub_pixel);
  descriptor.width *= r;
  descriptor.height *= r;
}
- (MPSCNNConvolutionGradientState*)resultStateForSourceImage:(MPSImage*)sourceImage
                                                sourceStates:(NSArray<MPSState*>*)sourceStates
                                            destinationImage:(MPSImage*)destinationImage {
  return static_cast<MPSCNNConvolutionGradientState*>([super
      resultStateForSourceImage:sourceImage
                   sourceStates:sourceStates
               destinationImage:destinationImage]);
}
- (MPSCNNConvolutionGradientStateBatch*)
    resultStateBatchForSourceImage:(MPSImageBatch*)sourceImage
                      sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                  destinationImage:(MPSImageBatch*)destinationImage {
  return static_cast<MPSCNNConvolutionGradientStateBatch*>([super
      resultStateBatchForSourceImage:sourceImage
                        sourceStates:sourceStates
                    destinationImage:destinationImage]);
}
- (MPSCNNConvolutionGradientState*)
    temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceImage:(MPSImage*)sourceImage
                            sourceStates:(NSArray<MPSState*>*)sourceStates
                        destinationImage:(MPSImage*)destinationImage {
  return static_cast<MPSCNNConvolutionGradientState*>([super
      temporaryResultStateForCommandBuffer:commandBuffer
                               sourceImage:sourceImage
                              sourceStates:sourceStates
                          destinationImage:destinationImage]);
}
- (MPSCNNConvolutionGradientStateBatch*)
    temporaryResultStateBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                  sourceImage:(MPSImageBatch*)sourceImage
                                 sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                             destinationImage:(MPSImageBatch*)destinationImage {
  return static_cast<MPSCNNConvolutionGradientStateBatch*>([super
      temporaryResultStateBatchForCommandBuffer:commandBuffer
                                    sourceImage:sourceImage
                                   sourceStates:sourceStates
                               destinationImage:destinationImage]);
}
- (void)reloadWeightsAndBiasesFromDataSource {
  REQUIRE(load_source(*body_, [self dataSource], true, false, HERE), data_source, HERE,
          "load returned NO");
}
- (void)reloadWeightsAndBiasesWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                          state:(MPSCNNConvolutionWeightsAndBiasesState*)state {
  reload_from_state(*body_, commandBuffer, state, HERE);
}
- (MPSCNNConvolutionWeightsAndBiasesState*)
    exportWeightsAndBiasesWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  resultStateCanBeTemporary:(BOOL)resultStateCanBeTemporary {
  return export_weights(*body_, commandBuffer, resultStateCanBeTemporary, HERE);
}
@end

@implementation MPSCNNFullyConnected
- (bool)emulatedFullyConnected {
  return true;
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                       weights:(id<MPSCNNConvolutionDataSource>)weights {
  self = [super initWithDevice:device weights:weights];
  [self setPadding:[MPSNNDefaultPadding paddingWithMethod:MPSNNPaddingMethodSizeValidOnly]];
  return self;
}
@end

// ---------------------------------------------------------------- gradients

@implementation MPSCNNConvolutionGradient
- (bool)emulatedFullyConnected {
  return false;
}
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<ConvolutionParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                       weights:(id<MPSCNNConvolutionDataSource>)weights {
  self = [super initWithDevice:device];
  auto params = std::make_shared<ConvolutionParams>();
  params->source = weights;
  params->gradient = true;
  body_->params = params;
  if (!load_source(*body_, weights, false, false, HERE)) {
    [self release];
    return nil;
  }
  REQUIRE(params->neuron.type == MPSCNNNeuronTypeNone && params->scale.empty(),
          fused_neuron_gradient, HERE);
  REQUIRE(params->geometry.sub_pixel == 1, sub_pixel_gradient, HERE);
  body_->sources[0].stride_x = body_->sources[1].stride_x;
  body_->sources[0].stride_y = body_->sources[1].stride_y;
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
CONVOLUTION_ACCESSORS
- (NSUInteger)sourceGradientFeatureChannels {
  return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.out);
}
- (NSUInteger)sourceImageFeatureChannels {
  return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.in);
}
- (NSUInteger)channelMultiplier {
  return body_->as<ConvolutionParams>().geometry.depthwise ? 1 : 0;
}
- (MPSCNNConvolutionGradientOption)gradientOption {
  return body_->as<ConvolutionParams>().option;
}
- (void)setGradientOption:(MPSCNNConvolutionGradientOption)option {
  body_->as<ConvolutionParams>().option = option;
}
- (bool)emulatedAcceptsState:(MPSState*)state {
  return [state isKindOfClass:[MPSCNNConvolutionGradientState class]] &&
         ![state isKindOfClass:[MPSCNNConvolutionTransposeGradientState class]];
}
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return [forward isSubclassOfClass:[MPSCNNConvolution class]] &&
         [forward isSubclassOfClass:[MPSCNNFullyConnected class]] == [self emulatedFullyConnected];
}
- (long)emulatedProducedChannels:(const std::vector<long>&)consumed
                        snapshot:(const Snapshot&)snapshot {
  (void)consumed, (void)snapshot;
  return body_->as<ConvolutionParams>().geometry.in;
}
- (void)emulatedConfigure:(const Snapshot&)snapshot {
  const Operand& s = snapshot.kernel.sources[0];
  const long kx = extent(s.kernel_x, s.dilation_x), ky = extent(s.kernel_y, s.dilation_y);
  MPSOffset forward = s.offset;
  if ([self emulatedFullyConnected]) forward = {kx / 2, ky / 2, 0};
  body_->sources[0].offset = {0, 0, 0};
  body_->kernel_offset_x = -forward.x + (kx % 2 == 0 ? 1 : 0);
  body_->kernel_offset_y = -forward.y + (ky % 2 == 0 ? 1 : 0);
  body_->sources[1].offset = {forward.x - kx / 2, forward.y - ky / 2, 0};
}
- (void)emulatedCheckGradient:(const Call&)call where:(const Where&)where {
  prepare_gradient(*body_, call, [self dataSource], false, where);
  const Geometry& g = body_->as<ConvolutionParams>().geometry;
  const auto consumed = [&](size_t index) {
    const ImageBody& image = body_of([call.sources[index] objectAtIndex:0], where);
    const Operand& operand = body_->sources[index];
    return static_cast<long>(
        std::min(operand.channel_max, image.shape.channels - operand.channel_offset));
  };
  REQUIRE(consumed(0) >= g.out && consumed(1) >= g.in, source_channels, where,
          "gradient %ld of %ld, source %ld of %ld", consumed(0), g.out, consumed(1), g.in);
  if ((body_->as<ConvolutionParams>().option &
       MPSCNNConvolutionGradientOptionGradientWithWeightsAndBias) != 0) {
    start_accumulation(call, where);
  }
}
- (Extra)emulatedGradientExtra:(NSArray<MPSState*>*)states {
  const auto& p = body_->as<ConvolutionParams>();
  MPSState* state = [states objectAtIndex:0];
  const Where where { self, @selector(emulatedGradientExtra:) };
  Extra extra;
  extra.reads = {p.weights->weights};
  if ((p.option & MPSCNNConvolutionGradientOptionGradientWithWeightsAndBias) != 0) {
    extra.writes = {gradient_storage(state, 0, where), gradient_storage(state, 1, where)};
  }
  extra.leaves_destination = (p.option & MPSCNNConvolutionGradientOptionGradientWithData) == 0;
  return extra;
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  const auto& p = body_->as<ConvolutionParams>();
  const Where where { self, @selector(emulatedGradientWork:) };
  const bool data = (p.option & MPSCNNConvolutionGradientOptionGradientWithData) != 0;
  StoragePtr weights, biases;
  if ((p.option & MPSCNNConvolutionGradientOptionGradientWithWeightsAndBias) != 0) {
    weights = gradient_storage([states objectAtIndex:0], 0, where);
    biases = gradient_storage([states objectAtIndex:0], 1, where);
  }
  KernelBody body = *body_;
  if ([self emulatedFullyConnected]) {
    // The window is the image, wherever the offsets point.
    const auto back = [](NSUInteger kernel) {
      return static_cast<NSInteger>(kernel / 2) - static_cast<NSInteger>(kernel - 1);
    };
    body.kernel_offset_x = back(body.sources[1].kernel_x);
    body.kernel_offset_y = back(body.sources[1].kernel_y);
    body.sources[0].offset = body.sources[1].offset = {0, 0, 0};
  }
  return [g = p.geometry, w = p.weights->weights, body, data, weights, biases](
             const std::vector<Tensor>& in, Tensor& out, size_t) {
    const Operand& first = body.sources[0];
    const Operand& s = body.sources[1];
    const auto zy = static_cast<long>(first.stride_y), zx = static_cast<long>(first.stride_x);
    const auto dy = static_cast<long>(s.dilation_y), dx = static_cast<long>(s.dilation_x);
    const long top =
        first.offset.y * zy + body.kernel_offset_y - extent(s.kernel_y, s.dilation_y) / 2;
    const long left =
        first.offset.x * zx + body.kernel_offset_x - extent(s.kernel_x, s.dilation_x) / 2;
    // The zero-inserted gradient.
    const auto stuffed = [&](long y, long x, long o) {
      if (y < 0 || x < 0 || y % zy != 0 || x % zx != 0) return 0.0F;
      return fetch(in[0], y / zy, x / zx, o, MPSImageEdgeModeZero);
    };
    for (long y = 0; data && y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long o = 0; o < g.out; ++o) {
          for (long q = 0; q < g.ky; ++q) {
            for (long p = 0; p < g.kx; ++p) {
              const float e = stuffed(y + top + dy * q, x + left + dx * p, o);
              if (e == 0) continue;
              for (long c = 0; c < g.in_group(); ++c) {
                out.at(y, x, g.source_channel(o, c)) +=
                    floats(w)[g.index(o, g.ky - 1 - q, g.kx - 1 - p, c)] * e;
              }
            }
          }
        }
      }
    }
    if (weights) accumulate(g, s, s.offset, in[0], in[1], floats(weights), floats(biases));
  };
}
- (void)reloadWeightsAndBiasesFromDataSource {
  REQUIRE(load_source(*body_, [self dataSource], true, false, HERE), data_source, HERE,
          "load returned NO");
}
- (void)reloadWeightsAndBiasesWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                          state:(MPSCNNConvolutionWeightsAndBiasesState*)state {
  reload_from_state(*body_, commandBuffer, state, HERE);
}
@end

@implementation MPSCNNFullyConnectedGradient
- (bool)emulatedFullyConnected {
  return true;
}
@end
