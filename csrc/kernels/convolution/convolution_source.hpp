// Where a convolution's weights come from (MPSCNNConvolutionDescriptor,
// MPSCNNConvolutionDataSource), checked once for every device, and what becomes of them:
// dequantised, folded with batch normalisation, rounded to the kernel's precision.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/convolution_states.hpp"
#include "core/neuron_descriptor.hpp"

namespace mpsgrad {

enum class DataType : std::uint32_t {
  Float16 = 0x10000010,
  Float32 = 0x10000020,
  UInt8 = 0x00000008
};
enum class WeightsQuantization : std::uint32_t { None = 0, Linear = 1, LookupTable = 2 };

struct ConvolutionDescriptor {
  Window window{3, 3, 1, 1, 1, 1};
  Index input_feature_channels = 1;
  Index output_feature_channels = 1;
  Index groups = 1;
  bool depthwise = false;            // one filter per channel, weights without input axis
  Index sub_pixel_scale_factor = 1;  // > 1: depth to space after the convolution
  NeuronDescriptor neuron;           // applied last
  // Batch normalisation between convolution and neuron, for inference; empty arrays stand for 0, 1,
  // 1, 0.
  bool has_batch_normalization = false;
  std::vector<float> mean, variance, gamma, beta;
  float epsilon = 0.0F;
  bool operator==(const ConvolutionDescriptor&) const = default;

  ConvolutionWeightShape weight_shape() const;
  Index destination_channels() const {
    return output_feature_channels / (sub_pixel_scale_factor * sub_pixel_scale_factor);
  }
  // Why a kernel built from this cannot be trained; empty if it can.
  std::string untrainable() const;
  void check(const char* who) const;  // throws std::invalid_argument
};

// Everything a source says between one load and its purge.
struct ConvolutionSourceData {
  ConvolutionDescriptor descriptor;
  DataType data_type = DataType::Float32;
  std::optional<DataType>
      kernel_type;  // precision the kernel computes with; Apple's default is float16
  WeightsQuantization quantization = WeightsQuantization::None;
  std::vector<float> weights;       // of float sources, exact
  std::vector<std::uint8_t> bytes;  // of uint8 sources
  std::vector<float> ranges;        // linear: (minimum, maximum) of each output channel
  std::vector<float> lookup_table;  // 256 values
  std::optional<std::vector<float>> biases;
  std::string label;
};

class ConvolutionDataSource {
 public:
  virtual ~ConvolutionDataSource() = default;
  // load, read everything, purge. Throws std::runtime_error if the source refuses to load.
  virtual ConvolutionSourceData read() = 0;
};

// A source's data after every check.
struct ConvolutionParameters : ConvolutionSourceData {
  bool half_weights = true;  // weights are rounded to float16
  bool has_biases = false;
  bool is_quantized = false;

  // What a kernel multiplies with and adds: dequantised, folded, rounded.
  void write_kernel_weights(float* out) const;
  void write_kernel_biases(float* out) const;  // output_feature_channels values
  // The same treatment for weights that arrive on the device: folding, then rounding.
  float weight_scale(Index output_channel) const;  // 1 without batch normalisation
  float bias_shift(Index output_channel) const;    // 0 without
  void drop_arrays();                              // once a device has them
};

// Validates; throws std::invalid_argument or TypeError, naming `who`.
ConvolutionParameters prepare_parameters(const char* who, ConvolutionSourceData data);

float round_to_half(float value);

}  // namespace mpsgrad
