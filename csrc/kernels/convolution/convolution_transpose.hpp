// ConvolutionTranspose and its gradient (MPSCNNConvolutionTranspose, ...Gradient): weights slide
// over the source with zeros between its pixels. Weights, their sources and reloads are a
// convolution's; geometry and states are here.
#pragma once

#include "kernels/convolution/convolution.hpp"

namespace mpsgrad {

// A transposed convolution's gradients, and the state of the convolution that it undid, if any.
class ConvolutionTransposeGradientState final : public ConvolutionGradientState {
 public:
  ConvolutionTransposeGradientState(std::shared_ptr<Device> device,
                                    const std::shared_ptr<CommandBuffer>& temporary,
                                    ForwardSnapshot snapshot, const ConvolutionWeightShape& shape,
                                    std::shared_ptr<KernelBase> producer, std::string untrainable,
                                    Contents contents,
                                    std::shared_ptr<ConvolutionGradientState> undone)
      : ConvolutionGradientState(std::move(device), temporary, std::move(snapshot), shape,
                                 std::move(producer), std::move(untrainable), std::move(contents)),
        undone_(std::move(undone)) {}

  const char* class_name() const override { return "ConvolutionTransposeGradientState"; }
  const std::shared_ptr<ConvolutionGradientState>& undone() const { return undone_; }  // or null

 private:
  std::shared_ptr<ConvolutionGradientState> undone_;
};

// Where windows lie, from the properties that a call or a state has.
struct TransposePlacement {
  // Of the first tap of result 0, in the source with zeros inserted.
  Index first_x = 0, first_y = 0;
  static TransposePlacement of(const UnaryProperties& properties);
};

// The policy's shift goes to the kernel offset, in the source with zeros inserted, and leaves
// `offset`, in source pixels, at 0. States of a convolution to undo give the size of its source and
// the offset that matches; they are empty, or one object for every image.
class ConvolutionTranspose final : public Convolution {
 public:
  ConvolutionTranspose(std::shared_ptr<Device> device,
                       std::shared_ptr<ConvolutionDataSource> source);

  bool is_backwards() const override { return true; }
  Index kernel_offset_x() const { return settings().kernel_offset_x; }
  Index kernel_offset_y() const { return settings().kernel_offset_y; }
  void set_kernel_offset_x(Index value);
  void set_kernel_offset_y(Index value);
  void cut_corner(Index left, Index top) override;

  // In place of the base class's, which know no convolution to undo.
  ImageDescriptor destination_descriptor(const ImageBatch::Images& sources,
                                         const StateBatch& convolution_states);
  StateBatch result_states(const ImageBatch::Images& sources,
                           const ImageBatch::Images& destinations,
                           const StateBatch& convolution_states,
                           const std::shared_ptr<CommandBuffer>& command_buffer);
  // Convolution states have been turned into offset and size already, and are only read.
  void encode(const std::shared_ptr<CommandBuffer>& command_buffer,
              const ImageBatch::Images& sources, const StateBatch& states,
              const StateBatch& convolution_states, const ImageBatch::Images& destinations,
              bool batch);
  EncodeResult encode_creating(const std::shared_ptr<CommandBuffer>& command_buffer,
                               const ImageBatch::Images& sources,
                               const StateBatch& convolution_states, bool batch, bool with_states,
                               bool temporary_states, ImageAllocator* allocator);

 protected:
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
  void check_call(const UnaryCall& call) const override;
  std::shared_ptr<GradientState> make_state(
      ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) override;

 private:
  class Undoing;
  // The one object that the states are; null if there is none. Throws unless a convolution made it.
  std::shared_ptr<ConvolutionGradientState> undone_by(const StateBatch& convolution_states) const;

  std::shared_ptr<ConvolutionGradientState> undone_;  // during a call that was given one
};

// As ConvolutionGradient. Where windows lie follows from the state alone: nobody has published what
// the offsets of this kernel mean, so they are 0.
class ConvolutionTransposeGradient final : public ConvolutionGradient {
 public:
  ConvolutionTransposeGradient(std::shared_ptr<Device> device,
                               std::shared_ptr<ConvolutionDataSource> source)
      : ConvolutionGradient(std::move(device), std::move(source), ConvolutionKind::Transpose) {}

  bool is_backwards() const override { return false; }  // its forward kernel is

 protected:
  void apply_state(const GradientState& state) override;
  void check_call(const GradientCall& call) const override;
};

}  // namespace mpsgrad
