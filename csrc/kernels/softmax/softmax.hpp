// SoftMax and LogSoftMax (MPSCNNSoftMax, MPSCNNLogSoftMax) and their gradients: across the channels
// of each pixel.
#pragma once

#include <memory>

#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

enum class SoftMaxKind { Plain, Log };

// What a device supplies to run the family.
class SoftMaxBackend {
 public:
  virtual ~SoftMaxBackend() = default;
  virtual std::unique_ptr<UnaryEncoder> make_forward(Device& device, SoftMaxKind kind) const = 0;
  virtual std::unique_ptr<GradientEncoder> make_gradient(Device& device,
                                                         SoftMaxKind kind) const = 0;
};

class SoftMaxBase : public UnaryKernel {
 protected:
  SoftMaxBase(std::shared_ptr<Device> device, const char* class_name, SoftMaxKind kind);
};

class SoftMax final : public SoftMaxBase {
 public:
  explicit SoftMax(std::shared_ptr<Device> device)
      : SoftMaxBase(std::move(device), "SoftMax", SoftMaxKind::Plain) {}
};

class LogSoftMax final : public SoftMaxBase {
 public:
  explicit LogSoftMax(std::shared_ptr<Device> device)
      : SoftMaxBase(std::move(device), "LogSoftMax", SoftMaxKind::Log) {}
};

// source: the forward RESULT.
class SoftMaxGradientBase : public GradientKernel {
 protected:
  SoftMaxGradientBase(std::shared_ptr<Device> device, const char* class_name,
                      const char* forward_class, SoftMaxKind kind);
  void apply_state(const GradientState& state) override;
  void check_call(const GradientCall& call) const override;
};

class SoftMaxGradient final : public SoftMaxGradientBase {
 public:
  explicit SoftMaxGradient(std::shared_ptr<Device> device)
      : SoftMaxGradientBase(std::move(device), "SoftMaxGradient", "SoftMax", SoftMaxKind::Plain) {}
};

class LogSoftMaxGradient final : public SoftMaxGradientBase {
 public:
  explicit LogSoftMaxGradient(std::shared_ptr<Device> device)
      : SoftMaxGradientBase(std::move(device), "LogSoftMaxGradient", "LogSoftMax",
                            SoftMaxKind::Log) {}
};

}  // namespace mpsgrad
