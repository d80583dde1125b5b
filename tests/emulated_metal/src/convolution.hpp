// Weights as kernels keep them, and what convolution and its transpose share.
#pragma once
#include "internal.hpp"
#include "neuron.hpp"

namespace emulated_metal {

struct ConvolutionDescriptorBody {
  NSUInteger kernel_x = 3, kernel_y = 3, in = 1, out = 1, stride_x = 1, stride_y = 1, groups = 1,
             dilation_x = 1, dilation_y = 1, sub_pixel = 1;
  bool depthwise = false;
  Strong<MPSNNNeuronDescriptor*> neuron;
  std::vector<float> scale, shift;  // folded batch normalization, empty without
};

// Copied into the kernel when it is built.
struct Geometry {
  long kx, ky, in, out, groups, sub_pixel;
  bool depthwise;
  long in_group() const { return depthwise ? 1 : in / groups; }
  long weight_count() const { return out * ky * kx * in_group(); }
  size_t index(long o, long q, long p, long c) const {
    return static_cast<size_t>(((o * ky + q) * kx + p) * in_group() + c);
  }
  // Image channel that output channel o reads as its input channel c.
  long source_channel(long o, long c) const {
    return depthwise ? o : o / (out / groups) * (in / groups) + c;
  }
};

// Weights in GPU memory, float32 after rounding to what the kernel computes with.
struct WeightSet {
  StoragePtr weights, biases;
  bool has_biases = false;
};

struct ConvolutionParams : Params {
  Geometry geometry{};
  Strong<id<MPSCNNConvolutionDataSource>> source;
  std::shared_ptr<WeightSet> weights;
  NeuronFunction neuron;
  Strong<MPSNNNeuronDescriptor*> neuron_descriptor;
  std::vector<float> scale, shift;
  bool half_weights = true;
  MPSNNConvolutionAccumulatorPrecisionOption accumulator =
      MPSNNConvolutionAccumulatorPrecisionOptionFloat;
  MPSCNNConvolutionGradientOption option = MPSCNNConvolutionGradientOptionAll;
  bool gradient = false;  // a gradient kernel: weights come with the first encode

  std::shared_ptr<Params> clone(NSZone* zone, id<MTLDevice> device) const override;
  std::shared_ptr<Params> recorded() const override {
    return std::make_shared<ConvolutionParams>(*this);
  }
  void fields(Fields& f) override;
};

// What a gradient state of this family adds.
struct ConvolutionPayload {
  Strong<MPSKernel*> kernel;               // its producer
  Strong<MPSCNNConvolution*> convolution;  // behind a transpose, or the producer
  Strong<MPSState*> coupled;               // convolution state behind a transpose
  bool started = false;                    // something has been accumulated
  std::string geometry;                    // of the producer
};

struct WeightsPayload {
  Strong<id<MTLBuffer>> weights, biases;
  NSUInteger weights_offset = 0, biases_offset = 0;
  size_t weights_count = 0, biases_count = 0;
};

std::string describe(const Geometry& geometry);
// Reads descriptor, weights and biases between load and purge; false when load says no.
bool load_source(KernelBody& kernel, id<MPSCNNConvolutionDataSource> source, bool with_weights,
                 bool transpose, const Where& where);
// Runs a call into the caller's code on a thread of ours, as Apple's framework may.
void call_out(const std::function<void()>& body);

void reload_from_state(KernelBody& kernel, id<MTLCommandBuffer> command_buffer, MPSState* state,
                       const Where& where);
MPSCNNConvolutionWeightsAndBiasesState* export_weights(const KernelBody& kernel,
                                                       id<MTLCommandBuffer> command_buffer,
                                                       bool temporary, const Where& where);
// Adds the two gradient buffers to a fresh state.
void prepare_gradient_state(MPSState* state, MPSKernel* producer, const Geometry& geometry);
StoragePtr gradient_storage(MPSState* state, NSUInteger index, const Where& where);
// Checks common to the gradient kernels; fills the kernel's weights at its first encode.
void prepare_gradient(KernelBody& kernel, const Call& call, id<MPSCNNConvolutionDataSource> source,
                      bool transpose, const Where& where);
// Zeroes the accumulators before the first encode into the state.
void start_accumulation(const Call& call, const Where& where);

inline float* floats(const StoragePtr& storage) {
  return reinterpret_cast<float*>(storage->gpu.data());
}

}  // namespace emulated_metal

@interface MPSCNNConvolutionWeightsAndBiasesState (Emulated)
- (emulated_metal::WeightsPayload&)emulatedWeights;
@end
