// Scale, offset and statistics as the normalization kernels keep them.
#pragma once
#include "internal.hpp"
#include "neuron.hpp"

namespace emulated_metal {

// One float32 vector on the GPU, readable by the CPU after synchronization, replaced as a whole
// by reloads from a data source.
Strong<id<MTLBuffer>> vector_buffer(int device, NSUInteger channels, bool temporary);
Strong<id<MTLBuffer>> vector_buffer(int device, NSUInteger channels, const float* values);

// Live weights of a kernel; its states look through this.
struct NormalizationWeights {
  Strong<id<MTLBuffer>> gamma, beta, mean, variance;  // nil where the source gave none
};

struct NormalizationParams : Params {
  NSUInteger channels = 0, groups = 1;
  float epsilon = 1.17549435e-38F;
  Strong<id> source;
  NeuronFunction neuron;
  std::shared_ptr<NormalizationWeights> weights = std::make_shared<NormalizationWeights>();

  std::shared_ptr<Params> clone(NSZone* zone, id<MTLDevice> device) const override;
  std::shared_ptr<Params> recorded() const override {
    return std::make_shared<NormalizationParams>(*this);
  }
  void fields(Fields& f) override;
};

// Reads a data source between load and purge, where it has them. False when load says no.
bool load_normalization(KernelBody& kernel, id source, bool first, bool scale, bool statistics,
                        const Where& where);
// Copies from a container at this point of the command buffer.
void reload_vectors(KernelBody& kernel, id<MTLCommandBuffer> command_buffer, MPSState* state,
                    Strong<id<MTLBuffer>> NormalizationWeights::* first,
                    Strong<id<MTLBuffer>> NormalizationWeights::* second, const Where& where);

inline float* floats_of(const StoragePtr& storage) {
  return reinterpret_cast<float*>(storage->gpu.data());
}
StoragePtr optional_storage(id<MTLBuffer> buffer, const Where& where);

// Two buffers of equal length: gamma and beta, or mean and variance.
struct PairPayload {
  Strong<id<MTLBuffer>> first, second;
};
PairPayload& pair_of(MPSState* state, const Where& where);

// Whether a kernel reads just the channels that are normalized; by default its own number of them.
void check_normalized_channels(const KernelBody& kernel, size_t operand, NSArray<MPSImage*>* images,
                               NSUInteger channels, const Where& where);
void check_normalized_channels(const KernelBody& kernel, size_t operand, NSArray<MPSImage*>* images,
                               const Where& where);

}  // namespace emulated_metal
