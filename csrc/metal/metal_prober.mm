// Asks Apple's classes what mpsgrad only assumes.
#include <cstring>

#include "device/prober.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_normalization.hpp"

namespace mpsgrad {
namespace {

using metal::Retained;
using metal::to_ns;

constexpr Index kSide = 5, kChannels = 4;

// Autoreleased.
MPSCNNConvolutionDescriptor* convolution_descriptor(NSUInteger side) {
  return [MPSCNNConvolutionDescriptor cnnConvolutionDescriptorWithKernelWidth:side
                                                                 kernelHeight:side
                                                         inputFeatureChannels:to_ns(kChannels)
                                                        outputFeatureChannels:to_ns(kChannels)];
}

}  // namespace
}  // namespace mpsgrad

// Weights and biases of 0 for a square window.
@interface MpsgradProbeWeights : NSObject <MPSCNNConvolutionDataSource> {
 @private
  NSUInteger side_;
  float weights_[mpsgrad::kChannels * mpsgrad::kSide * mpsgrad::kSide * mpsgrad::kChannels];
  float biases_[mpsgrad::kChannels];
}
- (instancetype)initWithSide:(NSUInteger)side;
@end

@implementation MpsgradProbeWeights
- (instancetype)initWithSide:(NSUInteger)side {
  self = [super init];
  if (self != nil) {
    side_ = side;
  }
  return self;
}
- (id)copyWithZone:(nullable NSZone*)zone {
  return [[[self class] allocWithZone:zone] initWithSide:side_];
}
- (MPSDataType)dataType {
  return MPSDataTypeFloat32;
}
- (MPSDataType)kernelWeightsDataType {
  return MPSDataTypeFloat32;
}
- (MPSCNNConvolutionDescriptor*)descriptor {
  return mpsgrad::convolution_descriptor(side_);
}
- (void*)weights {
  return weights_;
}
- (nullable float*)biasTerms {
  return biases_;
}
- (BOOL)load {
  return YES;
}
- (void)purge {
}
- (nullable NSString*)label {
  return nil;
}
@end

namespace mpsgrad {
namespace {

ImageDescriptor from_mps(MPSImageDescriptor* descriptor) {
  ImageDescriptor result;
  result.width = static_cast<Index>(descriptor.width);
  result.height = static_cast<Index>(descriptor.height);
  result.feature_channels = static_cast<Index>(descriptor.featureChannels);
  result.channel_format = static_cast<ChannelFormat>(descriptor.channelFormat);
  return result;
}

MPSImageDescriptor* image_descriptor(Index width, Index height, Index channels,
                                     ChannelFormat format) {
  return [MPSImageDescriptor
      imageDescriptorWithChannelFormat:static_cast<MPSImageFeatureChannelFormat>(format)
                                 width:to_ns(width)
                                height:to_ns(height)
                       featureChannels:to_ns(channels)];
}

Retained<MPSImage*> make_image(id<MTLDevice> device, MPSImageDescriptor* descriptor) {
  auto image = Retained<MPSImage*>::adopt([[MPSImage alloc] initWithDevice:device
                                                           imageDescriptor:descriptor]);
  require<DeviceError>(static_cast<bool>(image), "MPSImage: the device could not make it");
  return image;
}

// A kernel and its gradient; both are owned.
struct Pair {
  Retained<MPSCNNKernel*> forward;
  Retained<MPSCNNGradientKernel*> gradient;
};

template <class Forward, class Gradient>
Pair pooling_pair(id<MTLDevice> device) {
  return {metal::adopt_kernel<MPSCNNKernel>([[Forward alloc] initWithDevice:device
                                                                kernelWidth:3
                                                               kernelHeight:3
                                                            strideInPixelsX:2
                                                            strideInPixelsY:2],
                                            "MPSCNNPooling"),
          metal::adopt_kernel<MPSCNNGradientKernel>([[Gradient alloc] initWithDevice:device
                                                                         kernelWidth:3
                                                                        kernelHeight:3
                                                                     strideInPixelsX:2
                                                                     strideInPixelsY:2],
                                                    "MPSCNNPoolingGradient")};
}

template <class Forward, class Gradient>
Pair plain_pair(id<MTLDevice> device) {
  return {
      metal::adopt_kernel<MPSCNNKernel>([[Forward alloc] initWithDevice:device], "MPSCNNKernel"),
      metal::adopt_kernel<MPSCNNGradientKernel>([[Gradient alloc] initWithDevice:device],
                                                "MPSCNNGradientKernel")};
}

MPSNNNeuronDescriptor* tanh_neuron() {
  return [MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:MPSCNNNeuronTypeTanH a:1 b:1];
}

Retained<MPSCNNGradientKernel*> neuron_gradient(id<MTLDevice> device) {
  return metal::adopt_kernel<MPSCNNGradientKernel>(
      [[MPSCNNNeuronGradient alloc] initWithDevice:device neuronDescriptor:tanh_neuron()],
      "MPSCNNNeuronGradient");
}

Pair neuron_pair(id<MTLDevice> device) {
  return {metal::adopt_kernel<MPSCNNKernel>([[MPSCNNNeuron alloc] initWithDevice:device
                                                                neuronDescriptor:tanh_neuron()],
                                            "MPSCNNNeuron"),
          neuron_gradient(device)};
}

Pair dropout_pair(id<MTLDevice> device) {
  const MTLSize stride = MTLSizeMake(1, 1, 1);
  return {metal::adopt_kernel<MPSCNNKernel>([[MPSCNNDropout alloc] initWithDevice:device
                                                                  keepProbability:0.5F
                                                                             seed:1
                                                               maskStrideInPixels:stride],
                                            "MPSCNNDropout"),
          metal::adopt_kernel<MPSCNNGradientKernel>(
              [[MPSCNNDropoutGradient alloc] initWithDevice:device
                                            keepProbability:0.5F
                                                       seed:1
                                         maskStrideInPixels:stride],
              "MPSCNNDropoutGradient")};
}

Pair dilated_pair(id<MTLDevice> device) {
  return {metal::adopt_kernel<MPSCNNKernel>([[MPSCNNDilatedPoolingMax alloc] initWithDevice:device
                                                                                kernelWidth:2
                                                                               kernelHeight:2
                                                                              dilationRateX:2
                                                                              dilationRateY:2
                                                                            strideInPixelsX:1
                                                                            strideInPixelsY:1],
                                            "MPSCNNDilatedPoolingMax"),
          metal::adopt_kernel<MPSCNNGradientKernel>(
              [[MPSCNNDilatedPoolingMaxGradient alloc] initWithDevice:device
                                                          kernelWidth:2
                                                         kernelHeight:2
                                                        dilationRateX:2
                                                        dilationRateY:2
                                                      strideInPixelsX:1
                                                      strideInPixelsY:1],
              "MPSCNNDilatedPoolingMaxGradient")};
}

template <class Forward, class Gradient>
Pair convolution_pair(id<MTLDevice> device, NSUInteger side) {
  const auto source =
      Retained<MpsgradProbeWeights*>::adopt([[MpsgradProbeWeights alloc] initWithSide:side]);
  return {metal::adopt_kernel<MPSCNNKernel>(
              [[Forward alloc] initWithDevice:device weights:source.get()], "MPSCNNConvolution"),
          metal::adopt_kernel<MPSCNNGradientKernel>([[Gradient alloc] initWithDevice:device
                                                                             weights:source.get()],
                                                    "MPSCNNConvolutionGradient")};
}

template <class Forward, class Gradient>
Pair normalization_pair(id<MTLDevice> device, const Retained<id>& source) {
  return {metal::adopt_kernel<MPSCNNKernel>([[Forward alloc] initWithDevice:device
                                                                 dataSource:source.get()],
                                            "MPSCNNNormalization"),
          metal::adopt_kernel<MPSCNNGradientKernel>([[Gradient alloc] initWithDevice:device],
                                                    "MPSCNNNormalizationGradient")};
}

Pair cross_channel_pair(id<MTLDevice> device) {
  return {metal::adopt_kernel<MPSCNNKernel>(
              [[MPSCNNCrossChannelNormalization alloc] initWithDevice:device kernelSize:3],
              "MPSCNNCrossChannelNormalization"),
          metal::adopt_kernel<MPSCNNGradientKernel>(
              [[MPSCNNCrossChannelNormalizationGradient alloc] initWithDevice:device kernelSize:3],
              "MPSCNNCrossChannelNormalizationGradient")};
}

template <class Forward, class Gradient>
Pair local_pair(id<MTLDevice> device) {
  return {metal::adopt_kernel<MPSCNNKernel>([[Forward alloc] initWithDevice:device
                                                                kernelWidth:3
                                                               kernelHeight:3],
                                            "MPSCNNSpatialNormalization"),
          metal::adopt_kernel<MPSCNNGradientKernel>([[Gradient alloc] initWithDevice:device
                                                                         kernelWidth:3
                                                                        kernelHeight:3],
                                                    "MPSCNNSpatialNormalizationGradient")};
}

Retained<MPSVector*> vector_of_zeros(id<MTLDevice> device, NSUInteger length) {
  const NSUInteger bytes = length * sizeof(float);
  const auto buffer =
      Retained<id<MTLBuffer>>::adopt([device newBufferWithLength:bytes
                                                         options:MTLResourceStorageModeShared]);
  require<DeviceError>(static_cast<bool>(buffer), "Buffer: the device has no room for it");
  std::memset([buffer.get() contents], 0, bytes);
  return Retained<MPSVector*>::adopt([[MPSVector alloc]
      initWithBuffer:buffer.get()
          descriptor:[MPSVectorDescriptor vectorDescriptorWithLength:length
                                                            dataType:MPSDataTypeFloat32]]);
}

std::string class_of(NSObject* object) { return [NSStringFromClass([object class]) UTF8String]; }

void add_descriptors(id<MTLDevice> device, const Pair& pair, ChannelFormat format,
                     Index destination_channel_offset, std::vector<ProbedDescriptor>& result) {
  MPSCNNKernel* forward = pair.forward.get();
  forward.destinationFeatureChannelOffset = to_ns(destination_channel_offset);
  const auto source = make_image(device, image_descriptor(kSide, kSide, kChannels, format));
  MPSImageDescriptor* made =
      [forward destinationImageDescriptorForSourceImages:[NSArray arrayWithObject:source.get()]
                                            sourceStates:nil];
  result.push_back({class_of(forward), from_mps(made),
                    Offset{forward.offset.x, forward.offset.y, forward.offset.z}});

  const auto destination = make_image(device, made);
  MPSState* state = [forward resultStateForSourceImage:source.get()
                                          sourceStates:nil
                                      destinationImage:destination.get()];
  require<DeviceError>(state != nil, class_of(forward), ": the device made no state");
  MPSCNNGradientKernel* gradient = pair.gradient.get();
  gradient.destinationFeatureChannelOffset = to_ns(destination_channel_offset);
  const auto incoming =
      make_image(device, image_descriptor(static_cast<Index>(made.width),
                                          static_cast<Index>(made.height), kChannels, format));
  // The second source in the forward pass's other format, so that the two can be told apart.
  const ChannelFormat other =
      format == ChannelFormat::Float32 ? ChannelFormat::Float16 : ChannelFormat::Float32;
  const auto second = make_image(device, image_descriptor(kSide, kSide, kChannels, other));
  made = [gradient
      destinationImageDescriptorForSourceImages:[NSArray arrayWithObjects:incoming.get(),
                                                                          second.get(), nil]
                                   sourceStates:[NSArray arrayWithObject:state]];
  result.push_back({class_of(gradient), from_mps(made), Offset{}});
}

class MetalProber final : public Prober {
 public:
  ProbedDescriptor pooling_descriptor(Device& device, Index width, Index kernel, Index stride,
                                      Index padding_method) const override {
    const metal::PoolScope pool;
    const id<MTLDevice> own = metal::mtl_device(device);
    const auto pooling =
        metal::adopt_kernel<MPSCNNKernel>([[MPSCNNPoolingMax alloc] initWithDevice:own
                                                                       kernelWidth:to_ns(kernel)
                                                                      kernelHeight:1
                                                                   strideInPixelsX:to_ns(stride)
                                                                   strideInPixelsY:1],
                                          "MPSCNNPoolingMax");
    pooling.get().padding = [MPSNNDefaultPadding
        paddingWithMethod:static_cast<MPSNNPaddingMethod>(to_ns(padding_method))];
    const auto source = make_image(own, image_descriptor(width, 1, 1, ChannelFormat::Float32));
    MPSImageDescriptor* made = [pooling.get()
        destinationImageDescriptorForSourceImages:[NSArray arrayWithObject:source.get()]
                                     sourceStates:nil];
    const MPSOffset offset = pooling.get().offset;
    return {class_of(pooling.get()), from_mps(made), Offset{offset.x, offset.y, offset.z}};
  }

  std::vector<ProbedDescriptor> descriptors(Device& device, ChannelFormat format,
                                            Index destination_channel_offset) const override {
    const metal::PoolScope pool;
    const id<MTLDevice> own = metal::mtl_device(device);
    std::vector<ProbedDescriptor> result;
    metal::NormalizationNumbers numbers;
    numbers.channels = kChannels;
    numbers.groups = 2;
    for (const Pair& pair :
         {neuron_pair(own), dropout_pair(own),
          plain_pair<MPSCNNSoftMax, MPSCNNSoftMaxGradient>(own),
          plain_pair<MPSCNNLogSoftMax, MPSCNNLogSoftMaxGradient>(own),
          plain_pair<MPSNNGramMatrixCalculation, MPSNNGramMatrixCalculationGradient>(own),
          plain_pair<MPSNNPad, MPSNNPadGradient>(own),
          pooling_pair<MPSCNNPoolingMax, MPSCNNPoolingMaxGradient>(own),
          pooling_pair<MPSCNNPoolingAverage, MPSCNNPoolingAverageGradient>(own),
          pooling_pair<MPSCNNPoolingL2Norm, MPSCNNPoolingL2NormGradient>(own), dilated_pair(own),
          convolution_pair<MPSCNNConvolution, MPSCNNConvolutionGradient>(own, 1),
          convolution_pair<MPSCNNFullyConnected, MPSCNNFullyConnectedGradient>(own, to_ns(kSide)),
          normalization_pair<MPSCNNInstanceNormalization, MPSCNNInstanceNormalizationGradient>(
              own, metal::make_normalization_source(numbers)),
          normalization_pair<MPSCNNGroupNormalization, MPSCNNGroupNormalizationGradient>(
              own, metal::make_group_normalization_source(numbers)),
          cross_channel_pair(own),
          local_pair<MPSCNNSpatialNormalization, MPSCNNSpatialNormalizationGradient>(own),
          local_pair<MPSCNNLocalContrastNormalization, MPSCNNLocalContrastNormalizationGradient>(
              own)}) {
      add_descriptors(own, pair, format, destination_channel_offset, result);
    }
    return result;
  }

  Index reads_of_shared_source(Device& device) const override {
    constexpr NSUInteger kBefore = 8;
    const metal::PoolScope pool;
    const id<MTLDevice> own = metal::mtl_device(device);
    const auto queue = Retained<id<MTLCommandQueue>>::adopt([own newCommandQueue]);
    require<DeviceError>(static_cast<bool>(queue), "CommandQueue: the device could not make one");
    const Pair pair = neuron_pair(own);
    MPSImageDescriptor* descriptor =
        image_descriptor(kSide, kSide, kChannels, ChannelFormat::Float32);
    const auto source = make_image(own, descriptor);
    const auto destination = make_image(own, descriptor);
    MPSCommandBuffer* buffer = [MPSCommandBuffer commandBufferFromCommandQueue:queue.get()];
    MPSTemporaryImage* shared = [MPSTemporaryImage temporaryImageWithCommandBuffer:buffer
                                                                   imageDescriptor:descriptor];
    shared.readCount = kBefore;
    MPSState* state = [pair.forward.get() resultStateForSourceImage:source.get()
                                                       sourceStates:nil
                                                   destinationImage:shared];
    [pair.forward.get() encodeToCommandBuffer:buffer
                                  sourceImage:source.get()
                             destinationState:state
                             destinationImage:shared];
    [pair.gradient.get() encodeToCommandBuffer:buffer
                                sourceGradient:shared
                                   sourceImage:shared
                                 gradientState:state
                           destinationGradient:destination.get()];
    const NSUInteger after = shared.readCount;
    if (after > 0) {
      shared.readCount = 0;
    }
    [buffer commit];
    [buffer waitUntilCompleted];
    return static_cast<Index>(kBefore - after);
  }

  Index steps_of_state_encode(Device& device) const override {
    const metal::PoolScope pool;
    const id<MTLDevice> own = metal::mtl_device(device);
    const auto queue = Retained<id<MTLCommandQueue>>::adopt([own newCommandQueue]);
    require<DeviceError>(static_cast<bool>(queue), "CommandQueue: the device could not make one");
    const Pair pair = convolution_pair<MPSCNNConvolution, MPSCNNConvolutionGradient>(own, 1);
    MPSImageDescriptor* descriptor =
        image_descriptor(kSide, kSide, kChannels, ChannelFormat::Float32);
    const auto source = make_image(own, descriptor);
    const auto result = make_image(own, descriptor);
    const auto gradient = make_image(own, descriptor);
    MPSState* state = [pair.forward.get() resultStateForSourceImage:source.get()
                                                       sourceStates:nil
                                                   destinationImage:result.get()];
    require<DeviceError>(state != nil, "MPSCNNConvolution: the device made no state");
    const auto weights = [&] {
      return Retained<MPSCNNConvolutionWeightsAndBiasesState*>::adopt(
          [[MPSCNNConvolutionWeightsAndBiasesState alloc]
                        initWithDevice:own
              cnnConvolutionDescriptor:convolution_descriptor(1)]);
    };
    const auto before = weights();
    const auto after = weights();
    const auto history = [&] {
      return [NSArray arrayWithObjects:vector_of_zeros(own, to_ns(kChannels * kChannels)).get(),
                                       vector_of_zeros(own, to_ns(kChannels)).get(), nil];
    };
    const auto adam =
        Retained<MPSNNOptimizerAdam*>::adopt([[MPSNNOptimizerAdam alloc] initWithDevice:own
                                                                           learningRate:0.5F]);
    require<DeviceError>(static_cast<bool>(adam), "MPSNNOptimizerAdam: could not be made");
    const NSUInteger first = adam.get().timeStep;

    MPSCommandBuffer* buffer = [MPSCommandBuffer commandBufferFromCommandQueue:queue.get()];
    [pair.forward.get() encodeToCommandBuffer:buffer
                                  sourceImage:source.get()
                             destinationState:state
                             destinationImage:result.get()];
    [pair.gradient.get() encodeToCommandBuffer:buffer
                                sourceGradient:result.get()
                                   sourceImage:source.get()
                                 gradientState:state
                           destinationGradient:gradient.get()];
    [adam.get() encodeToCommandBuffer:buffer
             convolutionGradientState:static_cast<MPSCNNConvolutionGradientState*>(state)
               convolutionSourceState:before.get()
                 inputMomentumVectors:history()
                 inputVelocityVectors:history()
                          resultState:after.get()];
    const NSUInteger last = adam.get().timeStep;
    [buffer commit];
    [buffer waitUntilCompleted];
    return static_cast<Index>(last - first);
  }

  std::vector<std::pair<std::string, bool>> archived_properties(Device& device) const override {
    const metal::PoolScope pool;
    const id<MTLDevice> own = metal::mtl_device(device);
    const auto kernel =
        Retained<MPSCNNPoolingAverage*>::adopt([[MPSCNNPoolingAverage alloc] initWithDevice:own
                                                                                kernelWidth:3
                                                                               kernelHeight:2
                                                                            strideInPixelsX:4
                                                                            strideInPixelsY:5]);
    require<DeviceError>(static_cast<bool>(kernel), "MPSCNNPoolingAverage: could not be made");
    MPSCNNPoolingAverage* k = kernel.get();
    k.options = MPSKernelOptionsAllowReducedPrecision;
    k.label = @"probe";
    k.offset = MPSOffset{1, 2, 0};
    k.clipRect = MTLRegionMake3D(1, 2, 0, 3, 4, 1);
    k.destinationFeatureChannelOffset = 4;
    k.sourceFeatureChannelOffset = 8;
    k.sourceFeatureChannelMaxCount = 12;
    k.edgeMode = MPSImageEdgeModeClamp;
    k.zeroPadSizeX = 6;
    k.zeroPadSizeY = 7;
    k.padding = [MPSNNDefaultPadding paddingWithMethod:MPSNNPaddingMethodSizeFull];
    k.destinationImageAllocator = [MPSImage defaultAllocator];
    NSError* error = nil;
    NSData* data = [NSKeyedArchiver archivedDataWithRootObject:k
                                         requiringSecureCoding:NO
                                                         error:&error];
    MPSCNNPoolingAverage* back =
        data == nil ? nil
                    : [MPSKeyedUnarchiver unarchivedObjectOfClass:[MPSCNNPoolingAverage class]
                                                         fromData:data
                                                           device:own
                                                            error:&error];
    require<DeviceError>(
        back != nil, "MPSCNNPoolingAverage: could not be archived and read back: ",
        error != nil ? [[error localizedDescription] UTF8String] : "no reason was given");
    const MTLRegion clip = back.clipRect;
    return {
        {"kernelWidth, kernelHeight", back.kernelWidth == 3 && back.kernelHeight == 2},
        {"strideInPixelsX, strideInPixelsY",
         back.strideInPixelsX == 4 && back.strideInPixelsY == 5},
        {"options", back.options == k.options},
        {"label", [k.label isEqualToString:back.label]},
        {"offset", back.offset.x == 1 && back.offset.y == 2},
        {"clipRect", clip.origin.x == 1 && clip.origin.y == 2 && clip.size.width == 3 &&
                         clip.size.height == 4 && clip.size.depth == 1},
        {"destinationFeatureChannelOffset", back.destinationFeatureChannelOffset == 4},
        {"sourceFeatureChannelOffset", back.sourceFeatureChannelOffset == 8},
        {"sourceFeatureChannelMaxCount", back.sourceFeatureChannelMaxCount == 12},
        {"edgeMode", back.edgeMode == MPSImageEdgeModeClamp},
        {"zeroPadSizeX, zeroPadSizeY", back.zeroPadSizeX == 6 && back.zeroPadSizeY == 7},
        {"padding", [back.padding paddingMethod] == MPSNNPaddingMethodSizeFull},
        {"destinationImageAllocator",
         [static_cast<NSObject*>(back.destinationImageAllocator) class] ==
             [static_cast<NSObject*>(k.destinationImageAllocator) class]},
    };
  }
};

}  // namespace

const Prober& metal_prober() {
  static const MetalProber prober;
  return prober;
}

}  // namespace mpsgrad
