// Transposed convolution and its gradient.
#include <algorithm>

#include "convolution.hpp"

using namespace emulated_metal;

namespace {

// Window position of result pixel 0 in the zero-inserted source.
struct Frame {
  long top, left, stride_y, stride_x;
};

Frame frame_of(const KernelBody& kernel) {
  const Operand& s = kernel.sources[0];
  const auto sy = static_cast<long>(s.stride_y), sx = static_cast<long>(s.stride_x);
  return {s.offset.y * sy + kernel.kernel_offset_y - static_cast<long>(s.kernel_y) / 2,
          s.offset.x * sx + kernel.kernel_offset_x - static_cast<long>(s.kernel_x) / 2, sy, sx};
}

// Visits every (q, p) whose tap at result pixel (y, x) hits a source pixel (j, i).
template <class Visit>
void taps(const Geometry& g, const Frame& f, long y, long x, const Tensor& source,
          const Visit& visit) {
  for (long q = 0; q < g.ky; ++q) {
    for (long p = 0; p < g.kx; ++p) {
      const long zy = y + f.top + q, zx = x + f.left + p;
      if (zy < 0 || zx < 0 || zy % f.stride_y != 0 || zx % f.stride_x != 0) continue;
      const long j = zy / f.stride_y, i = zx / f.stride_x;
      if (j < source.h && i < source.w) visit(q, p, j, i);
    }
  }
}

// The convolution state in front of a transpose state, or the state itself.
MPSState* coupled_state(MPSState* state) {
  if (![state isKindOfClass:[MPSCNNConvolutionTransposeGradientState class]]) return state;
  return std::static_pointer_cast<ConvolutionPayload>([state emulatedBody]->payload)->coupled.get();
}

void check_channels(const KernelBody& kernel, const Call& call, const Where& where) {
  const Geometry& g = kernel.as<ConvolutionParams>().geometry;
  const ImageBody& source = body_of([call.sources[0] objectAtIndex:0], where);
  const Operand& s = kernel.sources[0];
  const auto consumed =
      static_cast<long>(std::min(s.channel_max, source.shape.channels - s.channel_offset));
  REQUIRE(consumed >= g.in, source_channels, where, "%ld of %ld", consumed, g.in);
}

}  // namespace

@implementation MPSCNNConvolutionTranspose
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
  body_->backwards = true;
  auto params = std::make_shared<ConvolutionParams>();
  params->source = weights;
  body_->params = params;
  if (!load_source(*body_, weights, true, true, HERE)) {
    [self release];
    return nil;
  }
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
- (NSUInteger)inputFeatureChannels {
  return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.in);
}
- (NSUInteger)outputFeatureChannels {
  return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.out);
}
- (NSUInteger)groups {
  return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.groups);
}
- (id<MPSCNNConvolutionDataSource>)dataSource {
  return body_->as<ConvolutionParams>().source.get();
}
- (NSInteger)kernelOffsetX {
  return body_->kernel_offset_x;
}
- (void)setKernelOffsetX:(NSInteger)offset {
  body_->kernel_offset_x = offset;
}
- (NSInteger)kernelOffsetY {
  return body_->kernel_offset_y;
}
- (void)setKernelOffsetY:(NSInteger)offset {
  body_->kernel_offset_y = offset;
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
  return body_->as<ConvolutionParams>().geometry.out;
}
- (Class)emulatedStateClass {
  return [MPSCNNConvolutionTransposeGradientState class];
}
- (BOOL)isResultStateReusedAcrossBatch {
  return YES;
}
- (void)emulatedPrepareState:(MPSState*)state images:(NSArray<MPSImage*>*)images {
  (void)images;
  prepare_gradient_state(state, self, body_->as<ConvolutionParams>().geometry);
}
- (Extra)emulatedExtra:(NSArray<MPSState*>*)states {
  (void)states;
  const WeightSet& set = *body_->as<ConvolutionParams>().weights;
  return {{set.weights, set.biases}, {}};
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  const auto& params = body_->as<ConvolutionParams>();
  return [g = params.geometry, set = *params.weights, neuron = params.neuron, scale = params.scale,
          shift = params.shift,
          f = frame_of(*body_)](const std::vector<Tensor>& in, Tensor& out, size_t) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long o = 0; o < g.out; ++o) {
          float sum = 0;
          taps(g, f, y, x, in[0], [&](long q, long p, long j, long i) {
            for (long c = 0; c < g.in_group(); ++c) {
              sum +=
                  floats(set.weights)[g.index(o, q, p, c)] * in[0].at(j, i, g.source_channel(o, c));
            }
          });
          const auto at = static_cast<size_t>(o);
          sum += floats(set.biases)[at];
          if (!scale.empty()) sum = sum * scale[at] + shift[at];
          out.at(y, x, o) = neuron.value(sum, o);
        }
      }
    }
  };
}
// A convolution state may take the place of a transpose state: it only sizes the result then.
- (void)emulatedEncode:(const Call&)call where:(const Where&)where {
  check_encodable(call.command_buffer, where);
  Call actual = call;
  MPSState* written = [call.written_states count] > 0 ? [call.written_states objectAtIndex:0] : nil;
  if (written != nil) {
    (void)body_of(written, where);
    for (MPSState* state in call.written_states) {
      REQUIRE(state == written, state_not_shared, where);
    }
    MPSState* coupled = coupled_state(written);
    if (coupled == written) {
      REQUIRE([written isKindOfClass:[MPSCNNConvolutionGradientState class]], state_wrong_class,
              where);
      actual.written_states = nil;
    }
    if (coupled != nil && [coupled emulatedBody]->temporary) {
      NSMutableArray* read = [NSMutableArray array];
      for (NSUInteger i = 0; i < [call.destinations count]; ++i) [read addObject:coupled];
      actual.read_states = read;
    }
  }
  if (call.destinations != nil && call.sources[0] != nil && [call.sources[0] count] > 0) {
    check_channels(*body_, call, where);
  }
  [super emulatedEncode:actual where:where];
}
// The policy's shift goes into the kernel offset; a convolution state knows the exact size.
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:(NSArray<MPSState*>*)sourceStates {
  MPSImageDescriptor* descriptor = [super destinationImageDescriptorForSourceImages:sourceImages
                                                                       sourceStates:sourceStates];
  const Operand& s = body_->sources[0];
  const MPSNNPaddingMethod method = [body_->padding.get() paddingMethod];
  const MPSNNPaddingMethod size = method & MPSNNPaddingMethodSizeMask;
  const long style = size == MPSNNPaddingMethodSizeValidOnly ? -1
                     : size == MPSNNPaddingMethodSizeSame    ? 0
                                                             : 1;
  const auto shift = [&](NSUInteger kernel, bool right) {
    const long k = static_cast<long>(kernel);
    return k / 2 - ((style + 1) * (k - 1) + (right ? 0 : 1)) / 2;
  };
  body_->kernel_offset_x = shift(s.kernel_x, (method & 0x4) != 0);
  body_->kernel_offset_y = shift(s.kernel_y, (method & 0x8) != 0);
  for (MPSState* state in sourceStates) {
    if (![state isKindOfClass:[MPSCNNConvolutionGradientState class]]) continue;
    MPSState* coupled = coupled_state(state);
    if (coupled == nil) continue;
    const Snapshot& forward = *[coupled emulatedBody]->snapshot;
    const Operand& from = forward.kernel.sources[0];
    const auto even = [](NSUInteger kernel, NSUInteger dilation) {
      return ((kernel - 1) * dilation + 1) % 2 == 0 ? 1 : 0;
    };
    body_->kernel_offset_x = -from.offset.x + even(from.kernel_x, from.dilation_x);
    body_->kernel_offset_y = -from.offset.y + even(from.kernel_y, from.dilation_y);
    descriptor.width = static_cast<NSUInteger>(forward.source_w);
    descriptor.height = static_cast<NSUInteger>(forward.source_h);
  }
  return descriptor;
}
- (void)couple:(NSArray<MPSState*>*)states
          with:(NSArray<MPSState*>*)coupled
         where:(const Where&)where {
  if (states == nil || [coupled count] == 0) return;
  MPSState* state = [states objectAtIndex:0];
  MPSState* convolution = [coupled objectAtIndex:0];
  REQUIRE([convolution isKindOfClass:[MPSCNNConvolutionGradientState class]], state_wrong_class,
          where);
  auto payload = std::static_pointer_cast<ConvolutionPayload>([state emulatedBody]->payload);
  payload->coupled = convolution;
  payload->convolution = [static_cast<MPSCNNConvolutionGradientState*>(convolution) convolution];
}
- (MPSCNNConvolutionTransposeGradientState*)
    resultStateForSourceImage:(MPSImage*)sourceImage
                 sourceStates:(NSArray<MPSCNNConvolutionGradientState*>*)sourceStates
             destinationImage:(MPSImage*)destinationImage {
  MPSState* state = [super resultStateForSourceImage:sourceImage
                                        sourceStates:nil
                                    destinationImage:destinationImage];
  [self couple:single(state) with:sourceStates where:HERE];
  return static_cast<MPSCNNConvolutionTransposeGradientState*>(state);
}
- (MPSCNNConvolutionTransposeGradientStateBatch*)
    resultStateBatchForSourceImage:(MPSImageBatch*)sourceImage
                      sourceStates:(NSArray<MPSCNNConvolutionGradientStateBatch*>*)sourceStates
                  destinationImage:(MPSImageBatch*)destinationImage {
  MPSStateBatch* states = [super resultStateBatchForSourceImage:sourceImage
                                                   sourceStates:nil
                                               destinationImage:destinationImage];
  [self couple:states
          with:[sourceStates count] > 0 ? [sourceStates objectAtIndex:0] : nil
         where:HERE];
  return static_cast<MPSCNNConvolutionTransposeGradientStateBatch*>(states);
}
- (MPSCNNConvolutionTransposeGradientState*)
    temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceImage:(MPSImage*)sourceImage
                            sourceStates:(NSArray<MPSCNNConvolutionGradientState*>*)sourceStates
                        destinationImage:(MPSImage*)destinationImage {
  MPSState* state = [super temporaryResultStateForCommandBuffer:commandBuffer
                                                    sourceImage:sourceImage
                                                   sourceStates:nil
                                               destinationImage:destinationImage];
  [self couple:single(state) with:sourceStates where:HERE];
  return static_cast<MPSCNNConvolutionTransposeGradientState*>(state);
}
- (MPSCNNConvolutionTransposeGradientStateBatch*)
    temporaryResultStateBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                  sourceImage:(MPSImageBatch*)sourceImage
                                 sourceStates:
                                     (NSArray<MPSCNNConvolutionGradientStateBatch*>*)sourceStates
                             destinationImage:(MPSImageBatch*)destinationImage {
  MPSStateBatch* states = [super temporaryResultStateBatchForCommandBuffer:commandBuffer
                                                               sourceImage:sourceImage
                                                              sourceStates:nil
                                                          destinationImage:destinationImage];
  [self couple:states
          with:[sourceStates count] > 0 ? [sourceStates objectAtIndex:0] : nil
         where:HERE];
  return static_cast<MPSCNNConvolutionTransposeGradientStateBatch*>(states);
}

// Descriptor with the convolution state, allocator, result state if asked for, encode.
- (NSArray*)emulatedCreate:(id<MTLCommandBuffer>)commandBuffer
                   sources:(NSArray<MPSImage*>*)sources
         convolutionStates:(NSArray<MPSState*>*)convolutionStates
                    states:(NSArray<MPSState*>**)states
                 temporary:(BOOL)temporary
                     batch:(bool)batch
                     where:(const Where&)where {
  check_encodable(commandBuffer, where);
  REQUIRE(sources != nil, nil_argument, where, "sourceImages");
  REQUIRE([sources count] > 0, batch_empty, where);
  REQUIRE(convolutionStates == nil || [convolutionStates count] == [sources count], batch_length,
          where);
  MPSImageDescriptor* descriptor = [self
      destinationImageDescriptorForSourceImages:@[ [sources objectAtIndex:0] ]
                                   sourceStates:convolutionStates == nil
                                                    ? nil
                                                    : @[ [convolutionStates objectAtIndex:0] ]];
  NSArray* destinations = allocate_images(self, commandBuffer, descriptor, [sources count], where);
  NSArray* written = convolutionStates;
  if (states != nullptr) {
    NSArray* coupled = convolutionStates == nil ? nil : @[ convolutionStates ];
    written = temporary ? [self temporaryResultStateBatchForCommandBuffer:commandBuffer
                                                              sourceImage:sources
                                                             sourceStates:coupled
                                                         destinationImage:destinations]
                        : [self resultStateBatchForSourceImage:sources
                                                  sourceStates:coupled
                                              destinationImage:destinations];
    *states = written;
  }
  [self emulatedEncode:{commandBuffer, {sources}, destinations, nil, written, batch} where:where];
  return destinations;
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
          convolutionGradientState:(MPSCNNConvolutionGradientState*)convolutionGradientState {
  return [[self emulatedCreate:commandBuffer
                       sources:single(sourceImage)
             convolutionStates:single(convolutionGradientState)
                        states:nullptr
                     temporary:NO
                         batch:false
                         where:HERE] objectAtIndex:0];
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImage
                   convolutionGradientStates:
                       (MPSCNNConvolutionGradientStateBatch*)convolutionGradientState {
  return [self emulatedCreate:commandBuffer
                      sources:sourceImage
            convolutionStates:convolutionGradientState
                       states:nullptr
                    temporary:NO
                        batch:true
                        where:HERE];
}
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
     convolutionGradientState:(MPSCNNConvolutionGradientState*)convolutionGradientState
             destinationImage:(MPSImage*)destinationImage {
  [self emulatedEncode:{commandBuffer,
                        {single(sourceImage)},
                        single(destinationImage),
                        nil,
                        single(convolutionGradientState)}
                 where:HERE];
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImage
         convolutionGradientStates:(MPSCNNConvolutionGradientStateBatch*)convolutionGradientState
                 destinationImages:(MPSImageBatch*)destinationImage {
  [self emulatedEncode:{commandBuffer,
                        {sourceImage},
                        destinationImage,
                        nil,
                        convolutionGradientState,
                        true}
                 where:HERE];
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
          convolutionGradientState:(MPSCNNConvolutionGradientState*)convolutionGradientState
                  destinationState:(MPSCNNConvolutionTransposeGradientState**)outState
       destinationStateIsTemporary:(BOOL)isTemporary {
  REQUIRE(outState != nullptr, nil_argument, HERE, "destinationState");
  NSArray<MPSState*>* states = nil;
  MPSImage* image = [[self emulatedCreate:commandBuffer
                                  sources:single(sourceImage)
                        convolutionStates:single(convolutionGradientState)
                                   states:&states
                                temporary:isTemporary
                                    batch:false
                                    where:HERE] objectAtIndex:0];
  *outState = static_cast<MPSCNNConvolutionTransposeGradientState*>([states lastObject]);
  return image;
}
- (MPSImageBatch*)
     encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   sourceImages:(MPSImageBatch*)sourceImages
      convolutionGradientStates:(MPSCNNConvolutionGradientStateBatch*)convolutionGradientStates
              destinationStates:(MPSCNNConvolutionTransposeGradientStateBatch**)outStates
    destinationStateIsTemporary:(BOOL)isTemporary {
  REQUIRE(outStates != nullptr, nil_argument, HERE, "destinationStates");
  NSArray<MPSState*>* states = nil;
  NSArray* images = [self emulatedCreate:commandBuffer
                                 sources:sourceImages
                       convolutionStates:convolutionGradientStates
                                  states:&states
                               temporary:isTemporary
                                   batch:true
                                   where:HERE];
  *outStates = static_cast<MPSCNNConvolutionTransposeGradientStateBatch*>(states);
  return images;
}
- (void)reloadWeightsAndBiasesFromDataSource {
  REQUIRE(load_source(*body_, [self dataSource], true, true, HERE), data_source, HERE,
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

@implementation MPSCNNConvolutionTransposeGradient
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
  if (!load_source(*body_, weights, false, true, HERE)) {
    [self release];
    return nil;
  }
  REQUIRE(params->neuron.type == MPSCNNNeuronTypeNone && params->scale.empty(),
          fused_neuron_gradient, HERE);
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
- (NSUInteger)sourceGradientFeatureChannels {
  return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.out);
}
- (NSUInteger)sourceImageFeatureChannels {
  return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.in);
}
- (NSUInteger)groups {
  return static_cast<NSUInteger>(body_->as<ConvolutionParams>().geometry.groups);
}
- (id<MPSCNNConvolutionDataSource>)dataSource {
  return body_->as<ConvolutionParams>().source.get();
}
- (MPSCNNConvolutionGradientOption)gradientOption {
  return body_->as<ConvolutionParams>().option;
}
- (void)setGradientOption:(MPSCNNConvolutionGradientOption)option {
  body_->as<ConvolutionParams>().option = option;
}
- (bool)emulatedAcceptsState:(MPSState*)state {
  return [state isKindOfClass:[MPSCNNConvolutionTransposeGradientState class]];
}
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return [forward isSubclassOfClass:[MPSCNNConvolutionTranspose class]];
}
- (long)emulatedProducedChannels:(const std::vector<long>&)consumed
                        snapshot:(const Snapshot&)snapshot {
  (void)consumed, (void)snapshot;
  return body_->as<ConvolutionParams>().geometry.in;
}
- (void)emulatedConfigure:(const Snapshot&)snapshot {
  (void)snapshot;
  body_->sources[0].offset = body_->sources[1].offset = {0, 0, 0};
}
- (void)emulatedCheckGradient:(const Call&)call where:(const Where&)where {
  prepare_gradient(*body_, call, [self dataSource], true, where);
  const Geometry& g = body_->as<ConvolutionParams>().geometry;
  const ImageBody& gradient = body_of([call.sources[0] objectAtIndex:0], where);
  const ImageBody& source = body_of([call.sources[1] objectAtIndex:0], where);
  REQUIRE(static_cast<long>(gradient.shape.channels) >= g.out &&
              static_cast<long>(source.shape.channels) >= g.in,
          source_channels, where);
  if ((body_->as<ConvolutionParams>().option &
       MPSCNNConvolutionGradientOptionGradientWithWeightsAndBias) != 0) {
    start_accumulation(call, where);
  }
}
- (Extra)emulatedGradientExtra:(NSArray<MPSState*>*)states {
  const auto& p = body_->as<ConvolutionParams>();
  const Where where{self, _cmd};
  Extra extra;
  extra.reads = {p.weights->weights};
  if ((p.option & MPSCNNConvolutionGradientOptionGradientWithWeightsAndBias) != 0) {
    extra.writes = {gradient_storage([states objectAtIndex:0], 0, where),
                    gradient_storage([states objectAtIndex:0], 1, where)};
  }
  extra.leaves_destination = (p.option & MPSCNNConvolutionGradientOptionGradientWithData) == 0;
  return extra;
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  const auto& params = body_->as<ConvolutionParams>();
  const Where where{self, _cmd};
  const Snapshot& snapshot = *[[states objectAtIndex:0] emulatedBody]->snapshot;
  StoragePtr weights, biases;
  if ((params.option & MPSCNNConvolutionGradientOptionGradientWithWeightsAndBias) != 0) {
    weights = gradient_storage([states objectAtIndex:0], 0, where);
    biases = gradient_storage([states objectAtIndex:0], 1, where);
  }
  return [g = params.geometry, w = params.weights->weights, f = frame_of(snapshot.kernel), weights,
          biases](const std::vector<Tensor>& in, Tensor& out, size_t) {
    const Tensor& gradient = in[0];
    const Tensor& source = in[1];
    Tensor data(source.h, source.w, g.in);
    for (long y = 0; y < gradient.h; ++y) {
      for (long x = 0; x < gradient.w; ++x) {
        for (long o = 0; o < g.out; ++o) {
          const float e = gradient.at(y, x, o);
          if (biases) floats(biases)[o] += e;
          taps(g, f, y, x, source, [&](long q, long p, long j, long i) {
            for (long c = 0; c < g.in_group(); ++c) {
              const size_t at = g.index(o, q, p, c);
              const long channel = g.source_channel(o, c);
              data.at(j, i, channel) += floats(w)[at] * e;
              if (weights) floats(weights)[at] += source.at(j, i, channel) * e;
            }
          });
        }
      }
    }
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k)
          out.at(y, x, k) = fetch(data, y, x, k, MPSImageEdgeModeZero);
      }
    }
  };
}
- (void)reloadWeightsAndBiasesFromDataSource {
  REQUIRE(load_source(*body_, [self dataSource], true, true, HERE), data_source, HERE,
          "load returned NO");
}
- (void)reloadWeightsAndBiasesWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                          state:(MPSCNNConvolutionWeightsAndBiasesState*)state {
  reload_from_state(*body_, commandBuffer, state, HERE);
}
@end
