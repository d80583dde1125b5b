// Add, Subtract, Multiply, Divide (MPSCNNArithmetic) and Compare (MPSNNCompare), element by element
// with broadcasting by stride, and the gradients of the first three (MPSCNNArithmeticGradient).
#pragma once

#include <limits>
#include <memory>

#include "core/binary_kernel.hpp"
#include "core/gradient_kernel.hpp"
#include "kernels/arithmetic/arithmetic_kind.hpp"

namespace mpsgrad {

// Of forward and gradient kernels.
struct ArithmeticSettings {
  float primary_scale = 1.0F, secondary_scale = 1.0F;
  float bias = 0.0F;
  float minimum_value = -std::numeric_limits<float>::max();
  float maximum_value = std::numeric_limits<float>::max();
  float threshold = 0.0F;                             // Compare
  ComparisonType comparison = ComparisonType::Equal;  // Compare
  Index primary_channel_stride = 1, secondary_channel_stride = 1;
  Index channel_stride(bool secondary) const {
    return secondary ? secondary_channel_stride : primary_channel_stride;
  }
  bool operator==(const ArithmeticSettings&) const = default;
};
using ArithmeticNumber = float ArithmeticSettings::*;

inline const ArithmeticSettings& arithmetic_settings(const BinaryProperties& properties) {
  return properties.settings.as<ArithmeticSettings>();
}
inline bool moves_across_channels(const BinaryProperties& properties, bool secondary) {
  return arithmetic_settings(properties).channel_stride(secondary) != 0;
}

// What a device supplies to run the family.
class ArithmeticBackend {
 public:
  virtual ~ArithmeticBackend() = default;
  virtual std::unique_ptr<BinaryEncoder> make_forward(Device& device,
                                                      ArithmeticKind kind) const = 0;
  // `secondary`: with respect to the forward secondary source.
  virtual std::unique_ptr<GradientEncoder> make_gradient(Device& device, ArithmeticKind kind,
                                                         bool secondary) const = 0;
};

// Where a result was not clamped: the device keeps it in the payload.
class ArithmeticGradientState final : public BinaryGradientState {
 public:
  using BinaryGradientState::BinaryGradientState;
  const char* class_name() const override { return "ArithmeticGradientState"; }

  Filled filled;     // by a forward encode
  Index images = 0;  // of that encode whose elements it knows: one of a batch, all of one image
};

class Arithmetic : public ForwardBinaryKernel {
 public:
  const ArithmeticSettings& settings() const { return arithmetic_settings(properties()); }
  // Throws, naming the property, if the number is not one.
  void set_number(const char* property, ArithmeticNumber number, float value);
  void set_channel_stride(bool secondary, Index value);

 protected:
  Arithmetic(std::shared_ptr<Device> device, const char* class_name, ArithmeticKind kind);

  void check_stride(bool secondary, const char* property, Index value) const override;
  Index produced_channels(Index primary, Index secondary) const override;
  void check_call(const BinaryCall& call) const override;
  std::shared_ptr<BinaryGradientState> make_state(
      BinarySnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) override;
  void encode_on_device(CommandBuffer& command_buffer, const BinaryCall& call) override;

 private:
  ArithmeticKind kind_;
};

class Add final : public Arithmetic {
 public:
  explicit Add(std::shared_ptr<Device> device)
      : Arithmetic(std::move(device), "Add", ArithmeticKind::Add) {}
};

class Subtract final : public Arithmetic {
 public:
  explicit Subtract(std::shared_ptr<Device> device)
      : Arithmetic(std::move(device), "Subtract", ArithmeticKind::Subtract) {}
};

class Multiply final : public Arithmetic {
 public:
  explicit Multiply(std::shared_ptr<Device> device)
      : Arithmetic(std::move(device), "Multiply", ArithmeticKind::Multiply) {}
};

class Divide final : public Arithmetic {
 public:
  explicit Divide(std::shared_ptr<Device> device)
      : Arithmetic(std::move(device), "Divide", ArithmeticKind::Divide) {}
};

class Compare final : public Arithmetic {
 public:
  explicit Compare(std::shared_ptr<Device> device)
      : Arithmetic(std::move(device), "Compare", ArithmeticKind::Compare) {}
  ComparisonType comparison_type() const { return settings().comparison; }
  void set_comparison_type(ComparisonType type);
};

// With respect to one source of the forward kernel. source: for sums and differences that very
// source, of which only the size matters; for products the other one.
class ArithmeticGradient : public GradientKernel {
 public:
  bool is_secondary_source_filter() const { return secondary_; }
  const ArithmeticSettings& settings() const { return arithmetic_settings(properties()); }
  void set_number(const char* property, ArithmeticNumber number, float value);
  void set_secondary_channel_stride(Index value);

 protected:
  ArithmeticGradient(std::shared_ptr<Device> device, const char* class_name,
                     const char* forward_class, ArithmeticKind kind, bool secondary);

  void check_stride(bool secondary, const char* property, Index value) const override;
  ForwardPass forward_pass(const State* state) const override;
  bool from_one_encode(const State& a, const State& b) const override;
  void apply_forward(const State& state) override;
  void check_call(const GradientCall& call) const override;

 private:
  const ArithmeticGradientState& own_arithmetic_state(const State* state) const;
  // Which forward source the gradient kernel reads.
  bool reads_secondary() const { return secondary_ != (kind_ == ArithmeticKind::Multiply); }

  ArithmeticKind kind_;
  bool secondary_;
};

class AddGradient final : public ArithmeticGradient {
 public:
  AddGradient(std::shared_ptr<Device> device, bool is_secondary_source_filter)
      : ArithmeticGradient(std::move(device), "AddGradient", "Add", ArithmeticKind::Add,
                           is_secondary_source_filter) {}
};

// With respect to the secondary source, primary_scale starts at -1.
class SubtractGradient final : public ArithmeticGradient {
 public:
  SubtractGradient(std::shared_ptr<Device> device, bool is_secondary_source_filter)
      : ArithmeticGradient(std::move(device), "SubtractGradient", "Subtract",
                           ArithmeticKind::Subtract, is_secondary_source_filter) {}
};

class MultiplyGradient final : public ArithmeticGradient {
 public:
  MultiplyGradient(std::shared_ptr<Device> device, bool is_secondary_source_filter)
      : ArithmeticGradient(std::move(device), "MultiplyGradient", "Multiply",
                           ArithmeticKind::Multiply, is_secondary_source_filter) {}
};

}  // namespace mpsgrad
