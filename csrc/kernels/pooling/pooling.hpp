// Max, average, L2 norm and dilated max pooling (MPSCNNPooling...) and their gradients
// (MPSCNNPooling...Gradient): every channel of every image on its own.
#pragma once

#include <memory>

#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

enum class PoolingKind { Max, Average, L2Norm, DilatedMax };

// What a device supplies to run the family. Both encoders find the settings of the kernel in the
// properties of the call.
class PoolingBackend {
 public:
  virtual ~PoolingBackend() = default;
  virtual std::unique_ptr<UnaryEncoder> make_forward(Device& device, PoolingKind kind,
                                                     const Window& window) const = 0;
  virtual std::unique_ptr<GradientEncoder> make_gradient(Device& device, PoolingKind kind,
                                                         const Window& window) const = 0;
};

// Border of zeros that an average counts where edges are clamped, pixels on both sides.
struct ZeroPad {
  Index x = 0, y = 0;
  bool operator==(const ZeroPad&) const = default;
};
struct PoolingSettings {
  ZeroPad zero_pad;
  bool operator==(const PoolingSettings&) const = default;
};
struct PoolingGradientSettings {
  ZeroPad zero_pad;
  // How much of the incoming gradient counts, from its primary offset on.
  Size source_size{kUnlimited, kUnlimited, kUnlimited};
  bool operator==(const PoolingGradientSettings&) const = default;
};
inline const PoolingSettings& pooling_settings(const UnaryProperties& properties) {
  return properties.settings.as<PoolingSettings>();
}
inline const PoolingGradientSettings& pooling_settings(const BinaryProperties& properties) {
  return properties.settings.as<PoolingGradientSettings>();
}

class Pooling : public UnaryKernel {
 protected:
  Pooling(std::shared_ptr<Device> device, const char* class_name, PoolingKind kind,
          const Window& window);
};

class PoolingMax final : public Pooling {
 public:
  PoolingMax(std::shared_ptr<Device> device, const Window& window);
};

class PoolingAverage final : public Pooling {
 public:
  PoolingAverage(std::shared_ptr<Device> device, const Window& window);
  ZeroPad zero_pad() const { return pooling_settings(properties()).zero_pad; }
  void set_zero_pad(bool vertical, Index value);

 protected:
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
};

class PoolingL2Norm final : public Pooling {
 public:
  PoolingL2Norm(std::shared_ptr<Device> device, const Window& window);
};

class DilatedPoolingMax final : public Pooling {
 public:
  DilatedPoolingMax(std::shared_ptr<Device> device, const Window& window);
};

// primary_offset: first pixel of the incoming gradient that counts. secondary_offset: centre of the
// first forward window. The result starts at the clip rectangle's origin with the first source
// pixel of the first window that lies inside the source; at its own place if the destination is
// created and there is no clip rectangle.
class PoolingGradient : public GradientKernel {
 public:
  const Window& window() const { return window_; }  // the constructor's
  Size source_size() const { return pooling_settings(properties()).source_size; }
  void set_source_size(const Size& size);

 protected:
  PoolingGradient(std::shared_ptr<Device> device, const char* class_name, const char* forward_class,
                  PoolingKind kind, const Window& window);
  void apply_state(const GradientState& state) override;
  void check_state(const GradientState& state) const override;
  void check_call(const GradientCall& call) const override;
  PoolingGradientSettings& settings() { return properties_.settings.as<PoolingGradientSettings>(); }

 private:
  Window window_;
};

class PoolingMaxGradient final : public PoolingGradient {
 public:
  PoolingMaxGradient(std::shared_ptr<Device> device, const Window& window);
};

class PoolingAverageGradient final : public PoolingGradient {
 public:
  PoolingAverageGradient(std::shared_ptr<Device> device, const Window& window);
  ZeroPad zero_pad() const { return pooling_settings(properties()).zero_pad; }
  void set_zero_pad(bool vertical, Index value);
};

class PoolingL2NormGradient final : public PoolingGradient {
 public:
  PoolingL2NormGradient(std::shared_ptr<Device> device, const Window& window);
};

class DilatedPoolingMaxGradient final : public PoolingGradient {
 public:
  DilatedPoolingMaxGradient(std::shared_ptr<Device> device, const Window& window);
};

}  // namespace mpsgrad
