// Activations and softmax against the worked examples of the specification.
#include "harness.hpp"

using namespace tests;

namespace {

const std::vector<float> kPoints{-2, -0.5F, 0, 0.5F, 2, 7};

void check(MPSNNNeuronDescriptor* neuron, const std::vector<float>& values,
           const std::vector<float>& slopes) {
  auto* forward = [[[MPSCNNNeuron alloc] initWithDevice:device()
                                       neuronDescriptor:neuron] autorelease];
  auto* backward = [[[MPSCNNNeuronGradient alloc] initWithDevice:device()
                                                neuronDescriptor:neuron] autorelease];
  MPSImage* source = image({6, 1, 1, kPoints});
  MPSImage* ones = row({1, 1, 1, 1, 1, 1});
  [forward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  [backward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSState* state = nil;
  MPSImage* result = [forward encodeToCommandBuffer:buffer
                                        sourceImage:source
                                   destinationState:&state
                        destinationStateIsTemporary:NO];
  MPSImage* slope = [backward encodeToCommandBuffer:buffer
                                     sourceGradient:ones
                                        sourceImage:source
                                      gradientState:state];
  finish(buffer, {result, slope});
  expect_values(__FILE__, __LINE__, read(result), values, 2e-6F);
  expect_values(__FILE__, __LINE__, read(slope), slopes, 2e-6F);
}

MPSNNNeuronDescriptor* neuron(MPSCNNNeuronType type) {
  return [MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:type];
}

}  // namespace

EXAMPLE(neuron_table) {
  check([MPSNNNeuronDescriptor cnnNeuronDescriptorWithType : MPSCNNNeuronTypeReLU a : 0.1F],
        { -0.2F, -0.05F, 0, 0.5F, 2, 7 }, {0.1F, 0.1F, 1, 1, 1, 1});
  check(neuron(MPSCNNNeuronTypeSigmoid),
        {0.119203F, 0.377541F, 0.5F, 0.622459F, 0.880797F, 0.999089F},
        {0.104994F, 0.235004F, 0.25F, 0.235004F, 0.104994F, 0.000910F});
  check(neuron(MPSCNNNeuronTypeHardSigmoid), {0.1F, 0.4F, 0.5F, 0.6F, 0.9F, 1},
        {0.2F, 0.2F, 0.2F, 0.2F, 0.2F, 0});
  check(neuron(MPSCNNNeuronTypeTanH), {-0.964028F, -0.462117F, 0, 0.462117F, 0.964028F, 0.999998F},
        {0.070651F, 0.786448F, 1, 0.786448F, 0.070651F, 0.000003F});
  check(neuron(MPSCNNNeuronTypeAbsolute), {2, 0.5F, 0, 0.5F, 2, 7}, {-1, -1, 0, 1, 1, 1});
  check(neuron(MPSCNNNeuronTypeSoftPlus),
        {0.126928F, 0.474077F, 0.693147F, 0.974077F, 2.126928F, 7.000911F},
        {0.119203F, 0.377541F, 0.5F, 0.622459F, 0.880797F, 0.999089F});
  check(neuron(MPSCNNNeuronTypeSoftSign), {-0.666667F, -0.333333F, 0, 0.333333F, 0.666667F, 0.875F},
        {0.111111F, 0.444444F, 1, 0.444444F, 0.111111F, 0.015625F});
  check(neuron(MPSCNNNeuronTypeELU), {-0.864665F, -0.393469F, 0, 0.5F, 2, 7},
        {0.135335F, 0.606531F, 1, 1, 1, 1});
  check([MPSNNNeuronDescriptor cnnNeuronDescriptorWithType : MPSCNNNeuronTypeReLUN a : 0.1F b : 6],
        { -0.2F, -0.05F, 0, 0.5F, 2, 6 }, {0.1F, 0.1F, 1, 1, 1, 0});
  check(
      [MPSNNNeuronDescriptor cnnNeuronDescriptorWithType : MPSCNNNeuronTypePower a : 2 b : 1 c : 3],
      { -27, 0, 1, 8, 125, 3375 }, {54, 0, 6, 24, 150, 1350});
  check([MPSNNNeuronDescriptor cnnNeuronDescriptorWithType : MPSCNNNeuronTypeExponential
             a : 1 b : 0 c : 2],
        { 0.25F, 0.707107F, 1, 1.414214F, 4, 128 },
        {0.173287F, 0.490129F, 0.693147F, 0.980258F, 2.772589F, 88.722839F});
  check(neuron(MPSCNNNeuronTypeGeLU), {-0.045500F, -0.154269F, 0, 0.345731F, 1.954500F, 7},
        {-0.085232F, 0.132505F, 0.5F, 0.867495F, 1.085232F, 1});
  check(neuron(MPSCNNNeuronTypeLinear), kPoints, {1, 1, 1, 1, 1, 1});
}

EXAMPLE(neuron_prelu_per_channel) {
  const float slopes[] = {0.5F, 0.25F, 2};
  auto* kernel = [[[MPSCNNNeuronPReLU alloc] initWithDevice:device() a:slopes count:3] autorelease];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = empty(1, 1, 3);
  [kernel encodeToCommandBuffer:buffer sourceImage:channels({-1, -2, -3}) destinationImage:result];
  finish(buffer, {result});
  EXPECT_VALUES(read(result), {-0.5F, -0.5F, -6});
}

EXAMPLE(neuron_copy_and_archive) {
  auto* kernel = [[[MPSCNNNeuron alloc]
        initWithDevice:device()
      neuronDescriptor:[MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:MPSCNNNeuronTypeReLU
                                                                        a:0.5F]] autorelease];
  [kernel setOffset:{1, -2, 0}];
  [kernel setLabel:@"activation"];
  MPSCNNNeuron* copy = [[kernel copy] autorelease];
  EXPECT([copy offset].y == -2 && [copy a] == 0.5F);
  NSData* archive = [NSKeyedArchiver archivedDataWithRootObject:kernel];
  MPSCNNNeuron* again = [MPSKeyedUnarchiver unarchivedObjectOfClass:[MPSCNNNeuron class]
                                                           fromData:archive
                                                             device:device()
                                                              error:nullptr];
  EXPECT(again != nil && [again neuronType] == MPSCNNNeuronTypeReLU);
  EXPECT([again offset].x == 1 && [[again label] isEqual:@"activation"]);
  EXPECT([[again padding] paddingMethod] == MPSNNPaddingMethodSizeSame);
}

EXAMPLE(softmax_gradients) {
  MPSImage* source = channels({1, 2, 3});
  MPSImage* incoming = channels({1, 0, 0});
  for (const bool logarithm : {false, true}) {
    MPSCNNKernel* forward = [[[logarithm ? [MPSCNNLogSoftMax class] : [MPSCNNSoftMax class] alloc]
        initWithDevice:device()] autorelease];
    MPSCNNGradientKernel* backward =
        [[[logarithm ? [MPSCNNLogSoftMaxGradient class] : [MPSCNNSoftMaxGradient class] alloc]
            initWithDevice:device()] autorelease];
    MPSImage* result = empty(1, 1, 3);
    MPSImage* gradient = empty(1, 1, 3);
    const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
    MPSState* state = [forward resultStateForSourceImage:source
                                            sourceStates:nil
                                        destinationImage:result];
    [forward encodeToCommandBuffer:buffer
                       sourceImage:source
                  destinationState:state
                  destinationImage:result];
    [backward encodeToCommandBuffer:buffer
                     sourceGradient:incoming
                        sourceImage:result
                      gradientState:state
                destinationGradient:gradient];
    finish(buffer, {result, gradient});
    if (logarithm) {
      EXPECT_VALUES(read(result), {-2.407606F, -1.407606F, -0.407606F});
      EXPECT_VALUES(read(gradient), {0.909969F, -0.244728F, -0.665241F});
    } else {
      EXPECT_VALUES(read(result), {0.090031F, 0.244728F, 0.665241F});
      EXPECT_VALUES(read(gradient), {0.081925F, -0.022033F, -0.059892F});
    }
  }
}

OFFENCE(neuron_type) { (void)neuron(static_cast<MPSCNNNeuronType>(16)); }
OFFENCE(neuron_data) {
  (void)[[[MPSCNNNeuron alloc] initWithDevice:device()
                             neuronDescriptor:neuron(MPSCNNNeuronTypePReLU)] autorelease];
}
OFFENCE(neuron_data) {
  const float slopes[] = {0.5F, 0.25F};
  auto* kernel = [[[MPSCNNNeuronPReLU alloc] initWithDevice:device() a:slopes count:2] autorelease];
  [kernel encodeToCommandBuffer:[queue() commandBuffer]
                    sourceImage:channels({1, 2, 3})
               destinationImage:empty(1, 1, 3)];
}
OFFENCE(init_unavailable) {
  (void)[[static_cast<id>([MPSCNNNeuron alloc]) initWithDevice:device()] autorelease];
}
