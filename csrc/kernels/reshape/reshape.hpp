// Kernels that copy: Reshape, Slice and Pad (MPSNNReshape, MPSNNSlice, MPSNNPad), and the gradients
// of the first and the last. A slice is undone by a pad.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

// MPSImageCoordinate as a size: what a pad adds on one side.
struct PaddingSize {
  Index x = 0, y = 0, channel = 0;
  bool operator==(const PaddingSize&) const = default;
};

struct PadSettings {
  PaddingSize before;           // left, top, low channels
  PaddingSize after;            // right, bottom, high channels
  std::uint32_t fill_bits = 0;  // as bits: a NaN would differ from itself
  float fill_value() const { return std::bit_cast<float>(fill_bits); }
  bool operator==(const PadSettings&) const = default;
};
inline const PadSettings& pad_settings(const UnaryProperties& properties) {
  return properties.settings.as<PadSettings>();
}

using FillValues = std::vector<float>;  // one a channel that is written; empty: there are none

// What a device supplies to run the family.
class ReshapeBackend {
 public:
  virtual ~ReshapeBackend() = default;
  virtual std::unique_ptr<UnaryEncoder> make_reshape(Device& device) const = 0;
  virtual std::unique_ptr<GradientEncoder> make_reshape_gradient(Device& device) const = 0;
  virtual std::unique_ptr<UnaryEncoder> make_slice(Device& device) const = 0;
  virtual std::unique_ptr<UnaryEncoder> make_pad(Device& device,
                                                 const FillValues& fill_values) const = 0;
  // Finds the forward pass in the call's states.
  virtual std::unique_ptr<GradientEncoder> make_pad_gradient(Device& device) const = 0;
};

// The elements in the order of rows, pixels and channels, in an image of another shape.
class Reshape final : public UnaryKernel {
 public:
  struct Shape {
    Index width = 0, height = 0, channels = 0;
  };

  explicit Reshape(std::shared_ptr<Device> device);
  // Creates a destination of that shape. encode_creating() without one makes a copy.
  EncodeResult encode_reshaped(const std::shared_ptr<CommandBuffer>& command_buffer,
                               const ImageBatch::Images& sources, bool batch, bool with_states,
                               bool temporary_states, ImageAllocator* allocator,
                               const Shape& shape);

 protected:
  Index produced_channels(Index) const override { return 0; }  // the destination decides
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
  void check_call(const UnaryCall& call) const override;
  void encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) override;
  std::shared_ptr<GradientState> make_state(
      ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) override;
};

class ReshapeGradient final : public GradientKernel {
 public:
  explicit ReshapeGradient(std::shared_ptr<Device> device);

 protected:
  void check_call(const GradientCall& call) const override;
};

// A box: `offset` and the source's channel window say where it begins, `clip_rect` where it goes
// and how wide and high it is.
class Slice final : public UnaryKernel {
 public:
  explicit Slice(std::shared_ptr<Device> device);
  // Creates a destination that ends where the box does. `offset` stays as it is, while
  // encode_creating() takes that of the padding policy.
  std::shared_ptr<ImageBatch> encode_box(const std::shared_ptr<CommandBuffer>& command_buffer,
                                         const ImageBatch::Images& sources, bool batch,
                                         ImageAllocator* allocator);

 protected:
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
  std::shared_ptr<GradientState> make_state(ForwardSnapshot,
                                            const std::shared_ptr<CommandBuffer>&) override {
    return nullptr;
  }
  void check_call(const UnaryCall& call) const override;

 private:
  void end_with_box(const ImageDescriptor& source, ImageDescriptor& result) const;
};

// Along x and y the sizes count where the destination is created; else `offset` and `clip_rect` say
// what lies around the source. Along channels they always count.
class Pad final : public UnaryKernel {
 public:
  Pad(std::shared_ptr<Device> device, const PaddingSize& before, const PaddingSize& after,
      FillValues fill_values);

  bool reads_anywhere() const override { return true; }
  const FillValues& fill_values() const { return fill_values_; }
  const PadSettings& settings() const { return pad_settings(properties()); }
  void set_padding_size(bool after, const PaddingSize& size);
  void set_fill_value(float value);

 protected:
  Index produced_channels(Index consumed) const override;
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
  void check_call(const UnaryCall& call) const override;

 private:
  FillValues fill_values_;
};

// Every pixel of the source gets the sum of the incoming gradient over the places it was copied to.
// primary_offset: where in the gradient the source's first pixel lies. secondary_offset: the pixel
// of the source that the result's clip rectangle begins with.
class PadGradient final : public GradientKernel {
 public:
  explicit PadGradient(std::shared_ptr<Device> device);
  bool reads_anywhere() const override { return true; }

 protected:
  ForwardPass forward_pass(const State* state) const override;
  void apply_state(const GradientState& state) override;
  void check_call(const GradientCall& call) const override;
};

}  // namespace mpsgrad
