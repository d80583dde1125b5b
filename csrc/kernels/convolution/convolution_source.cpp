// Validation of descriptors and weights; from a data source's arrays to the kernel's.
#include "kernels/convolution/convolution_source.hpp"

#include <cmath>

#include "base/errors.hpp"
#include "base/memory_limits.hpp"

namespace mpsgrad {

ConvolutionWeightShape ConvolutionDescriptor::weight_shape() const {
  return {output_feature_channels, window.kernel_height, window.kernel_width,
          depthwise ? 1 : input_feature_channels / groups, depthwise};
}

std::string ConvolutionDescriptor::untrainable() const {
  if (sub_pixel_scale_factor > 1) {
    return "a sub-pixel convolution has no gradient";
  }
  if (neuron.type != NeuronType::None) {
    return "a convolution with a fused neuron has no gradient; use a Neuron kernel after it";
  }
  if (has_batch_normalization) {
    return "a convolution with folded batch normalization has no gradient; use a "
           "BatchNormalization kernel after it";
  }
  return {};
}

void ConvolutionDescriptor::check(const char* who) const {
  const auto positive = [&](const char* name, Index value) {
    require(value >= 1, who, ": ", name, " must be at least 1, got ", value);
  };
  positive("kernel_width", window.kernel_width);
  positive("kernel_height", window.kernel_height);
  positive("input_feature_channels", input_feature_channels);
  positive("output_feature_channels", output_feature_channels);
  positive("stride_in_pixels_x", window.stride_x);
  positive("stride_in_pixels_y", window.stride_y);
  positive("dilation_rate_x", window.dilation_x);
  positive("dilation_rate_y", window.dilation_y);
  positive("groups", groups);
  positive("sub_pixel_scale_factor", sub_pixel_scale_factor);
  const Index inputs = input_feature_channels;
  const Index outputs = output_feature_channels;
  if (depthwise) {
    require(groups == 1, who, ": a depthwise convolution must have groups 1, got ", groups);
    require(inputs == outputs, who,
            ": a depthwise convolution must have as many outputs as inputs, got ", inputs,
            " inputs and ", outputs, " outputs");
  }
  require(inputs % groups == 0 && outputs % groups == 0, who, ": groups ", groups, " must divide ",
          inputs, " input and ", outputs, " output channels");
  require(groups == 1 || (inputs / groups % 4 == 0 && outputs / groups % 4 == 0), who, ": with ",
          groups, " groups the channels of a group must be multiples of 4, got ", inputs / groups,
          " inputs and ", outputs / groups, " outputs");
  const ConvolutionWeightShape shape = weight_shape();
  Index most = kMostBytes / static_cast<Index>(sizeof(float));
  for (const Index count : {shape.output_channels, shape.kernel_height, shape.kernel_width,
                            shape.input_channels_per_group}) {
    require(count <= most, who, ": weights of ", shape.output_channels, "x", shape.kernel_height,
            "x", shape.kernel_width, "x", shape.input_channels_per_group, kBeyondMemory);
    most /= count;
  }
  require(sub_pixel_scale_factor <= kMaximumImageSide, who,
          ": sub_pixel_scale_factor must be at most ", kMaximumImageSide, ", got ",
          sub_pixel_scale_factor);
  const Index block = sub_pixel_scale_factor * sub_pixel_scale_factor;
  require(outputs % block == 0, who, ": sub_pixel_scale_factor ", sub_pixel_scale_factor,
          " needs a multiple of ", block, " output channels, got ", outputs);
  require(sub_pixel_scale_factor == 1 || groups == 1 || outputs / block % 4 == 0, who,
          ": with groups a sub-pixel "
          "convolution must produce a multiple of 4 channels, got ",
          outputs / block);
  check_neuron(neuron, who, outputs);
  const auto length = [&](const char* name, const std::vector<float>& values) {
    require(values.empty() || static_cast<Index>(values.size()) == outputs, who,
            ": batch normalization ", name, " must have ", outputs, " values, got ", values.size());
  };
  length("mean", mean);
  length("variance", variance);
  length("gamma", gamma);
  length("beta", beta);
}

float ConvolutionParameters::weight_scale(Index o) const {
  if (!descriptor.has_batch_normalization) {
    return 1.0F;
  }
  const auto i = static_cast<std::size_t>(o);
  const float gamma = descriptor.gamma.empty() ? 1.0F : descriptor.gamma[i];
  const float variance = descriptor.variance.empty() ? 1.0F : descriptor.variance[i];
  return gamma / std::sqrt(variance + descriptor.epsilon);
}

float ConvolutionParameters::bias_shift(Index o) const {
  if (!descriptor.has_batch_normalization) {
    return 0.0F;
  }
  const auto i = static_cast<std::size_t>(o);
  const float beta = descriptor.beta.empty() ? 0.0F : descriptor.beta[i];
  const float mean = descriptor.mean.empty() ? 0.0F : descriptor.mean[i];
  return beta - weight_scale(o) * mean;
}

float round_to_half(float value) {
  const auto magnitude = std::fabs(value);
  if (!(magnitude < 65520.0F)) {  // halfway to the first value too large, infinities and NaN
    return std::isnan(value) ? value : std::copysign(INFINITY, value);
  }
  if (magnitude < 6.103515625e-05F) {  // subnormal halves: steps of 2^-24
    return std::ldexp(std::nearbyint(std::ldexp(value, 24)), -24);
  }
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);  // 11 bits of fraction
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
}

namespace {

void check_quantization(const char* who, const ConvolutionSourceData& data) {
  const Index outputs = data.descriptor.output_feature_channels;
  require(data.quantization != WeightsQuantization::None, who,
          ": uint8 weights need weights_quantization_type() LINEAR or LOOKUP_TABLE");
  if (data.quantization == WeightsQuantization::Linear) {
    require(static_cast<Index>(data.ranges.size()) == 2 * outputs, who,
            ": ranges_for_uint8_kernel() must have a (minimum, maximum) pair for each of ", outputs,
            " output channels, got ", data.ranges.size(), " numbers");
  } else {
    require(data.lookup_table.size() == 256, who,
            ": lookup_table_for_uint8_kernel() must have 256 values, got ",
            data.lookup_table.size());
  }
}

float dequantized(const ConvolutionSourceData& data, std::size_t index, std::size_t output) {
  const std::uint8_t byte = data.bytes[index];
  if (data.quantization == WeightsQuantization::LookupTable) {
    return data.lookup_table[byte];
  }
  const float low = data.ranges[2 * output];
  const float high = data.ranges[2 * output + 1];
  return static_cast<float>(byte) / 255.0F * (high - low) + low;
}

}  // namespace

void ConvolutionParameters::write_kernel_weights(float* out) const {
  const ConvolutionWeightShape shape = descriptor.weight_shape();
  const Index per_output = shape.weight_count() / shape.output_channels;
  for (Index o = 0; o < shape.output_channels; ++o) {
    const float scale = weight_scale(o);
    for (Index k = o * per_output; k < (o + 1) * per_output; ++k) {
      const auto i = static_cast<std::size_t>(k);
      const float weight =
          scale * (is_quantized ? dequantized(*this, i, static_cast<std::size_t>(o)) : weights[i]);
      out[i] = half_weights ? round_to_half(weight) : weight;
    }
  }
}

void ConvolutionParameters::write_kernel_biases(float* out) const {
  for (Index o = 0; o < descriptor.output_feature_channels; ++o) {
    const auto i = static_cast<std::size_t>(o);
    out[i] = (biases ? (*biases)[i] : 0.0F) * weight_scale(o) + bias_shift(o);
  }
}

void ConvolutionParameters::drop_arrays() {
  weights = {};
  bytes = {};
  ranges = {};
  lookup_table = {};
  biases.reset();
}

ConvolutionParameters prepare_parameters(const char* who, ConvolutionSourceData data) {
  data.descriptor.check(who);
  const ConvolutionWeightShape shape = data.descriptor.weight_shape();
  const Index outputs = shape.output_channels;
  const bool quantized = data.data_type == DataType::UInt8;
  const auto got = static_cast<Index>(quantized ? data.bytes.size() : data.weights.size());
  require(got == shape.weight_count(), who, ": weights() must have ", shape.weight_count(),
          " values (", outputs, ", ", shape.kernel_height, ", ", shape.kernel_width,
          shape.depthwise ? "" : ", ",
          shape.depthwise ? "" : std::to_string(shape.input_channels_per_group), "), got ", got);
  require(!data.biases || static_cast<Index>(data.biases->size()) == outputs, who,
          ": bias_terms() must have ", outputs, " values, got ",
          data.biases ? data.biases->size() : 0);
  const DataType kernel_type = data.kernel_type.value_or(DataType::Float16);
  require(kernel_type == DataType::Float16 || kernel_type == DataType::Float32, who,
          ": kernel_weights_data_type() must be FLOAT16 or FLOAT32");
  require(kernel_type == DataType::Float16 || data.data_type == DataType::Float32, who,
          ": kernel weights of FLOAT32 need a data_type() of FLOAT32");
  if (quantized) {
    check_quantization(who, data);
  }
  ConvolutionParameters result{std::move(data)};
  result.half_weights = kernel_type == DataType::Float16;
  result.has_biases = result.biases.has_value();
  result.is_quantized = quantized;
  return result;
}

}  // namespace mpsgrad
