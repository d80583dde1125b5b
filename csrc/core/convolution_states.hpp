// The states of convolution that other families touch too: gradients for optimizers to read,
// weights for them to write (MPSCNNConvolutionGradientState,
// MPSCNNConvolutionWeightsAndBiasesState).
#pragma once

#include <memory>
#include <string>

#include "core/gradient_state.hpp"

namespace mpsgrad {

class KernelBase;

// Extents of the weights OHWI; depthwise weights have no input axis.
struct ConvolutionWeightShape {
  Index output_channels = 1;
  Index kernel_height = 1, kernel_width = 1;
  Index input_channels_per_group = 1;
  bool depthwise = false;
  bool operator==(const ConvolutionWeightShape&) const = default;
  Index weight_count() const {
    return output_channels * kernel_height * kernel_width * input_channels_per_group;
  }
};

// What a forward convolution leaves for its gradient kernel, and the accumulator of one batch.
class ConvolutionGradientState : public GradientState {
 public:
  // The buffers, and what the device keeps beside them.
  struct Contents {
    std::shared_ptr<Buffer> weights;
    std::shared_ptr<Buffer> biases;
    std::shared_ptr<StatePayload> payload;
  };

  // `untrainable` says why no gradient kernel may take this state; empty if one may. `temporary`
  // may be null.
  ConvolutionGradientState(std::shared_ptr<Device> device,
                           const std::shared_ptr<CommandBuffer>& temporary,
                           ForwardSnapshot snapshot, const ConvolutionWeightShape& shape,
                           std::shared_ptr<KernelBase> producer, std::string untrainable,
                           Contents contents);

  const char* class_name() const override { return "ConvolutionGradientState"; }
  // Null once a temporary state has been read for the last time.
  std::shared_ptr<Buffer> gradient_for_weights() { return resource_at(0, false); }
  std::shared_ptr<Buffer> gradient_for_biases() { return resource_at(1, false); }
  const ConvolutionWeightShape& shape() const { return shape_; }
  Index weight_count() const { return shape_.weight_count(); }
  Index bias_count() const { return shape_.output_channels; }
  const std::shared_ptr<KernelBase>& producer() const { return producer_; }
  const std::string& untrainable() const { return untrainable_; }

  // A forward encode has filled it, so that there is something to take a gradient of.
  bool has_forward() const { return static_cast<bool>(forward_); }
  void note_forward(const std::shared_ptr<Work>& work) { forward_.by(work); }
  // False before the first gradient encode: that one overwrites, the others add.
  bool has_gradients() const { return static_cast<bool>(gradients_); }
  void note_gradients(const std::shared_ptr<Work>& work) { gradients_.by(work); }
  // An optimizer has used the sums; a state serves one batch, so no gradient may be added any more.
  bool is_consumed() const { return is_consumed_; }
  void mark_consumed() { is_consumed_ = true; }

 private:
  ConvolutionWeightShape shape_;
  std::shared_ptr<KernelBase> producer_;
  std::string untrainable_;
  Filled forward_, gradients_;
  bool is_consumed_ = false;
};

// Weights and biases on the device, float32: input or result of an update.
class ConvolutionWeightsAndBiasesState : public State {
 public:
  // `biases` may be null. Offsets in bytes; both may lie in one buffer. Throws unless they fit.
  ConvolutionWeightsAndBiasesState(std::shared_ptr<Device> device,
                                   const ConvolutionWeightShape& shape,
                                   std::shared_ptr<Buffer> weights, Index weights_offset,
                                   std::shared_ptr<Buffer> biases, Index biases_offset);
  // Counts taken from the buffers' lengths: exactly the weights, exactly the biases.
  ConvolutionWeightsAndBiasesState(std::shared_ptr<Device> device, std::shared_ptr<Buffer> weights,
                                   std::shared_ptr<Buffer> biases);
  ConvolutionWeightsAndBiasesState(std::shared_ptr<Device> device,
                                   const ConvolutionWeightShape& shape, bool with_biases);
  ConvolutionWeightsAndBiasesState(const std::shared_ptr<CommandBuffer>& command_buffer,
                                   const ConvolutionWeightShape& shape, bool with_biases);

  const char* class_name() const override { return "ConvolutionWeightsAndBiasesState"; }
  std::shared_ptr<Buffer> weights() { return resource_at(0, true); }
  std::shared_ptr<Buffer> biases() {
    return has_biases() ? resource_at(resource_count() - 1, true) : nullptr;
  }
  bool has_biases() const { return bias_count_ > 0; }
  Index weights_offset() const { return weights_offset_; }  // bytes
  Index biases_offset() const { return biases_offset_; }
  Index weight_count() const { return weight_count_; }
  Index bias_count() const { return bias_count_; }

 private:
  void check_fit();

  Index weight_count_ = 0, bias_count_ = 0;
  Index weights_offset_ = 0, biases_offset_ = 0;
};

}  // namespace mpsgrad
