// Dropout and DropoutGradient (MPSCNNDropout, MPSCNNDropoutGradient) and the state that carries the
// mask from one to the other (MPSCNNDropoutGradientState).
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>

#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"
#include "device/work.hpp"

namespace mpsgrad {

// 1: a random value of its own for every position along a dimension; 0: one value for all of them.
struct MaskStride {
  Index width = 1, height = 1, depth = 1;
  bool operator==(const MaskStride&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const MaskStride& stride) {
  return out << "(" << stride.width << ", " << stride.height << ", " << stride.depth << ")";
}

struct DropoutSettings {
  float keep_probability = 0.5F;
  std::uint64_t seed = 0;
  MaskStride stride;
  // As states have to agree: whatever the seed, a mask serves its gradient.
  bool operator==(const DropoutSettings& other) const {
    return keep_probability == other.keep_probability && stride == other.stride;
  }
};
// The forward kernel's, which states record.
inline const DropoutSettings& dropout_settings(const UnaryProperties& properties) {
  return properties.settings.as<DropoutSettings>();
}

// A mask has the size of the clipped forward result, 1 where values are shared.
struct MaskShape {
  Index images = 0, height = 0, width = 0, channels = 0;
  Index of_image() const { return height * width * channels; }
  Index elements() const { return images * of_image(); }
};
MaskShape mask_shape(const MaskStride& stride, const Region& clip, Index channels);

class DropoutGradientState final : public GradientState {
 public:
  using GradientState::GradientState;
  const char* class_name() const override { return "DropoutGradientState"; }
  const DropoutSettings& settings() const { return dropout_settings(snapshot().properties); }
  MaskShape shape() const;
  Index resource_size() const override;

  bool is_filled() const { return static_cast<bool>(filled_); }
  void note_forward(const CommandBuffer& command_buffer);
  void note_gradient(const CommandBuffer& command_buffer);

  // All elements, 0 or 1. Both throw std::runtime_error while unobserved work would be disturbed,
  // and for temporary states.
  // `wait`, which is called where the device has to work for it, returns when the work has ended.
  void read_mask(float* out, void (*wait)(CommandBuffer&));
  // Throws UnsupportedError where the device's masks are its own.
  void write_mask(const float* in);

 private:
  void require_ordinary(const char* what) const;

  Filled filled_;
  UseLedger uses_;
};

// What a device supplies to run the family. States are DropoutGradientState, with the payload that
// the forward encoder has made.
class DropoutBackend {
 public:
  virtual ~DropoutBackend() = default;
  // Every encode draws the next masks of a sequence that depends on the settings alone.
  virtual std::unique_ptr<UnaryEncoder> make_forward(Device& device,
                                                     const DropoutSettings& settings) const = 0;
  virtual std::unique_ptr<GradientEncoder> make_gradient(Device& device,
                                                         const DropoutSettings& settings) const = 0;
  // False: only gradient kernels can read the device's masks, or nobody can write them.
  virtual bool read_mask(const DropoutGradientState&, float* /*out*/) const { return false; }
  virtual bool write_mask(const DropoutGradientState&, const float* /*in*/) const { return false; }
  virtual Index mask_bytes(const DropoutGradientState&) const { return 0; }
};

class Dropout final : public UnaryKernel {
 public:
  Dropout(std::shared_ptr<Device> device, const DropoutSettings& settings);
  const DropoutSettings& settings() const { return dropout_settings(properties()); }
  bool is_result_state_reused_across_batch() const override { return true; }

 protected:
  void check_call(const UnaryCall& call) const override;
  void encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) override;
  std::shared_ptr<GradientState> make_state(
      ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) override;
};

// source: the forward source, which is not read. Image i of an encode takes the i-th mask, and its
// pixel (x, y) the value at secondary_offset + (x, y), 0 outside the mask.
class DropoutGradient final : public GradientKernel {
 public:
  DropoutGradient(std::shared_ptr<Device> device, const DropoutSettings& settings);
  const DropoutSettings& settings() const { return settings_; }
  // For a destination of the size of the clipped forward result, which then gets all of the mask.
  void lay_over_mask(const ForwardSnapshot& shot);

 protected:
  void apply_state(const GradientState& state) override;
  void check_state(const GradientState& state) const override;
  void check_call(const GradientCall& call) const override;
  void encode_on_device(CommandBuffer& command_buffer, const GradientCall& call) override;

 private:
  DropoutSettings settings_;
};

}  // namespace mpsgrad
