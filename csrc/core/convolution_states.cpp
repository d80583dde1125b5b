// Rules of the convolution states.
#include "core/convolution_states.hpp"

#include "base/errors.hpp"
#include "core/kernel.hpp"

namespace mpsgrad {

ConvolutionGradientState::ConvolutionGradientState(std::shared_ptr<Device> device,
                                                   const std::shared_ptr<CommandBuffer>& temporary,
                                                   ForwardSnapshot snapshot,
                                                   const ConvolutionWeightShape& shape,
                                                   std::shared_ptr<KernelBase> producer,
                                                   std::string untrainable, Contents contents)
    : GradientState(std::move(device), temporary, std::move(snapshot)),
      shape_(shape),
      producer_(std::move(producer)),
      untrainable_(std::move(untrainable)) {
  contents.weights->expect_synchronize("ConvolutionGradientState.gradient_for_weights");
  contents.biases->expect_synchronize("ConvolutionGradientState.gradient_for_biases");
  add_resource(std::move(contents.weights));
  add_resource(std::move(contents.biases));
  payload = std::move(contents.payload);
}

ConvolutionWeightsAndBiasesState::ConvolutionWeightsAndBiasesState(
    std::shared_ptr<Device> device, const ConvolutionWeightShape& shape,
    std::shared_ptr<Buffer> weights, Index weights_offset, std::shared_ptr<Buffer> biases,
    Index biases_offset)
    : State(std::move(device), ResourceList{}),
      weight_count_(shape.weight_count()),
      bias_count_(biases ? shape.output_channels : 0),
      weights_offset_(weights_offset),
      biases_offset_(biases_offset) {
  add_resource(std::move(weights));
  if (biases) {
    add_resource(std::move(biases));
  }
  check_fit();
}

ConvolutionWeightsAndBiasesState::ConvolutionWeightsAndBiasesState(std::shared_ptr<Device> device,
                                                                   std::shared_ptr<Buffer> weights,
                                                                   std::shared_ptr<Buffer> biases)
    : State(std::move(device), ResourceList{}),
      weight_count_(static_cast<Index>(weights->size() / sizeof(float))),
      bias_count_(biases ? static_cast<Index>(biases->size() / sizeof(float)) : 0) {
  add_resource(std::move(weights));
  if (biases) {
    add_resource(std::move(biases));
  }
  check_fit();
}

namespace {

ResourceList resources(const ConvolutionWeightShape& shape, bool with_biases) {
  ResourceList list;
  list.append_buffer(shape.weight_count() * static_cast<Index>(sizeof(float)));
  if (with_biases) {
    list.append_buffer(shape.output_channels * static_cast<Index>(sizeof(float)));
  }
  return list;
}

}  // namespace

ConvolutionWeightsAndBiasesState::ConvolutionWeightsAndBiasesState(
    std::shared_ptr<Device> device, const ConvolutionWeightShape& shape, bool with_biases)
    : State(std::move(device), resources(shape, with_biases)),
      weight_count_(shape.weight_count()),
      bias_count_(with_biases ? shape.output_channels : 0) {}

ConvolutionWeightsAndBiasesState::ConvolutionWeightsAndBiasesState(
    const std::shared_ptr<CommandBuffer>& command_buffer, const ConvolutionWeightShape& shape,
    bool with_biases)
    : State(command_buffer, resources(shape, with_biases)),
      weight_count_(shape.weight_count()),
      bias_count_(with_biases ? shape.output_channels : 0) {}

void ConvolutionWeightsAndBiasesState::check_fit() {
  const auto fits = [&](const char* name, const Buffer& buffer, Index offset, Index count) {
    require(buffer.device() == device(), class_name(), ": ", name, " is on another device");
    require(offset >= 0 && offset % 4 == 0, class_name(), ": ", name,
            "_offset must be a multiple of 4 and not negative, got ", offset);
    const Index needed = count * static_cast<Index>(sizeof(float));
    require(offset <= static_cast<Index>(buffer.size()) - needed, class_name(), ": ", name,
            " needs ", needed, " bytes from ", name, "_offset ", offset, " on, but the buffer has ",
            buffer.size());
  };
  fits("weights", *weights(), weights_offset_, weight_count_);
  if (has_biases()) {
    fits("biases", *biases(), biases_offset_, bias_count_);
  }
}

}  // namespace mpsgrad
