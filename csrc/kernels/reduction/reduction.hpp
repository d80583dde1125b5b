// Reductions (MPSNNReduce...): one value per row, per column or per pixel of an image; sums of
// products of two images per pixel (MPSNNReduceBinary), and of one with shifted copies of another
// (MPSNNLocalCorrelation).
#pragma once

#include <memory>

#include "core/binary_kernel.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

enum class ReductionAxis { Row, Column, FeatureChannels };  // what one result is made of
enum class ReductionKind { Min, Max, Mean, Sum, ArgumentMin, ArgumentMax };

// Source clips are the pixels that a kernel reads, before they are cut to the image: what takes the
// place of an offset. Images are chosen by the offset's z, as everywhere.
struct ReduceUnarySettings {
  Region source_clip;
  float weight = 1.0F;  // ReduceFeatureChannelsSum: what the sum is multiplied by
  bool operator==(const ReduceUnarySettings&) const = default;
};

// Of LocalCorrelation; pixels.
struct CorrelationWindow {
  Index window_x = 0, window_y = 0;  // shifts on either side
  Index stride_x = 1, stride_y = 1;  // from shift to shift
  Index columns() const { return 2 * window_x + 1; }
  Index shifts() const { return columns() * (2 * window_y + 1); }
  bool operator==(const CorrelationWindow&) const = default;
};

struct ReduceBinarySettings {
  Region primary_clip, secondary_clip;
  CorrelationWindow correlation;
  const Region& source_clip(bool secondary) const {
    return secondary ? secondary_clip : primary_clip;
  }
  bool operator==(const ReduceBinarySettings&) const = default;
};

inline const ReduceUnarySettings& reduction_settings(const UnaryProperties& properties) {
  return properties.settings.as<ReduceUnarySettings>();
}
inline const ReduceBinarySettings& reduction_settings(const BinaryProperties& properties) {
  return properties.settings.as<ReduceBinarySettings>();
}
// A source clip within an image.
Region source_region(const Region& clip, const ImageDescriptor& image);

enum class ProductReduction { Mean, Sum, SumByNonZeroWeights, LocalCorrelation };

// What a device supplies to run the family. Encoders find a kernel's settings in the properties of
// the call.
class ReductionBackend {
 public:
  virtual ~ReductionBackend() = default;
  virtual std::unique_ptr<UnaryEncoder> make_unary(Device& device, ReductionAxis axis,
                                                   ReductionKind kind) const = 0;
  virtual std::unique_ptr<BinaryEncoder> make_binary(Device& device,
                                                     ProductReduction kind) const = 0;
};

class ReduceUnary : public UnaryKernel {
 public:
  Region source_clip() const { return reduction_settings(properties()).source_clip; }
  void set_source_clip(const Region& clip);

 protected:
  ReduceUnary(std::shared_ptr<Device> device, const char* class_name, ReductionAxis axis,
              ReductionKind kind);
  Index produced_channels(Index consumed) const override;
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
  void check_call(const UnaryCall& call) const override;
  std::shared_ptr<GradientState> make_state(
      ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) override;

 private:
  Size result_size(const ImageDescriptor& source) const;

  ReductionAxis axis_;
};

// One class of Apple's for each pair; reduction.cpp has their names.
const char* reduction_name(ReductionAxis axis, ReductionKind kind);

template <ReductionAxis kAxis, ReductionKind kKind>
class Reduce final : public ReduceUnary {
 public:
  explicit Reduce(std::shared_ptr<Device> device)
      : ReduceUnary(std::move(device), reduction_name(kAxis, kKind), kAxis, kKind) {}
};

class ReduceFeatureChannelsSum final : public ReduceUnary {
 public:
  explicit ReduceFeatureChannelsSum(std::shared_ptr<Device> device);
  float weight() const { return reduction_settings(properties()).weight; }
  void set_weight(float value);
};

class ReduceBinary : public ForwardBinaryKernel {
 public:
  Region source_clip(bool secondary) const {
    return reduction_settings(properties()).source_clip(secondary);
  }
  void set_source_clip(bool secondary, const Region& clip);

 protected:
  ReduceBinary(std::shared_ptr<Device> device, const char* class_name, ProductReduction kind);
  void check_stride(bool secondary, const char* property, Index value) const override;
  Index produced_channels(Index primary, Index secondary) const override;
  Index placed_size(bool vertical, Index primary, Index secondary) const override;
  void check_call(const BinaryCall& call) const override;
  ReduceBinarySettings& settings() { return properties_.settings.as<ReduceBinarySettings>(); }
};

class ReduceFeatureChannelsAndWeightsMean final : public ReduceBinary {
 public:
  explicit ReduceFeatureChannelsAndWeightsMean(std::shared_ptr<Device> device);
};

class ReduceFeatureChannelsAndWeightsSum final : public ReduceBinary {
 public:
  ReduceFeatureChannelsAndWeightsSum(std::shared_ptr<Device> device, bool by_non_zero_weights);
  bool by_non_zero_weights() const { return by_non_zero_weights_; }

 private:
  bool by_non_zero_weights_;
};

class LocalCorrelation final : public ReduceBinary {
 public:
  LocalCorrelation(std::shared_ptr<Device> device, const CorrelationWindow& window);
  CorrelationWindow correlation_window() const {
    return reduction_settings(properties()).correlation;
  }
  void set_window(bool vertical, Index value);
  void set_stride_between(bool vertical, Index value);

 protected:
  Index produced_channels(Index primary, Index secondary) const override;
};

}  // namespace mpsgrad
