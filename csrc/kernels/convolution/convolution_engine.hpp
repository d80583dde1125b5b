// The CPU arithmetic of convolution and of everything that is one in disguise: fully connected and
// transposed convolution, dilation, groups, depthwise. It knows shapes and memory, not images,
// kernels or states.
//
// Index names as in the formulas: source position y, x = stride * j + first + dilation * q, for
// result position j, i and tap q, p. Weights are
// W[destination_channels][kernel_height][kernel_width][source_channels / groups], depthwise
// W[channels][kernel_height][kernel_width].
//
// Transposed convolution is the data gradient of a convolution: its source is this convolution's
// destination, its result this convolution's source. Its weights,
// T[source_channels][kernel_height][kernel_width] [destination_channels / groups] seen from here,
// go in as they are with `transposed_weights`, rotated by the engine.
//
// What is added to what, and in which order, depends on shapes alone: the same bits for any number
// of threads. How independent results are handed out may depend on that number.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "base/types.hpp"
#include "cpu/memory.hpp"
#include "kernels/convolution/convolution_simd.hpp"

namespace mpsgrad::cpu {

struct ConvolutionGeometry {
  Index batch = 1;
  Index source_height = 1, source_width = 1;
  Index destination_height = 1, destination_width = 1;  // of the clip: results that are computed
  Index source_channels = 1, destination_channels = 1, groups = 1;
  Index kernel_height = 1, kernel_width = 1;
  Index stride_y = 1, stride_x = 1;
  Index dilation_y = 1, dilation_x = 1;
  Index first_y = 0, first_x = 0;  // source position of tap 0 of result 0; any value
  EdgeMode edge = EdgeMode::Zero;  // of the source: Zero or Clamp; gradients are zero outside
  bool depthwise = false;          // source_channels == destination_channels, groups == 1
  bool transposed_weights = false;
};

// `batch` samples somewhere in memory. A clip rectangle or a channel window is a shifted pointer;
// strides count elements.
struct ConvolutionImages {
  ChannelFormat format = ChannelFormat::Float32;
  Index row_stride = 0, pixel_stride = 0;
  std::byte* const* samples = nullptr;
  bool streamed = false;  // results need not stay in a cache
};

// One version of a kernel's weights. Keeps the packed forms that the loops read, each made when it
// is first needed.
class ConvolutionWeights {
 public:
  // `values` are as the geometry says; `alive` keeps them valid, and they do not change.
  ConvolutionWeights(const float* values, std::shared_ptr<const void> alive)
      : values_(values), alive_(std::move(alive)) {}
  ConvolutionWeights(const ConvolutionWeights&) = delete;
  ConvolutionWeights& operator=(const ConvolutionWeights&) = delete;

  const float* values() const { return values_; }

  struct Form {  // of packed weights: lanes of results, operand channels, taps in the order they
                 // are read
    bool of_results = false;  // for the data gradient: results are source channels
    bool depthwise = false, transposed = false;
    bool winograd = false;  // the parts of 3x3 taps instead of the taps
    Index mixed = 1;        // depthwise: channels of a group
    Index lanes = 1;
    Index groups = 1, group_operands = 1, group_results = 1;
    std::vector<Index> taps_y, taps_x;
    bool operator==(const Form&) const = default;
  };
  const float* packed(const Form& form) const;

 private:
  struct Packed {
    Form form;
    std::shared_ptr<Block> block;
  };
  const float* find(const Form& form) const;  // with the mutex held; null: nobody has packed it

  const float* values_;
  std::shared_ptr<const void> alive_;
  mutable std::mutex mutex_;
  mutable std::vector<Packed> packed_;
};

// destination = bias + correlation of source and weights; bias may be null.
void convolve(const ConvolutionGeometry& geometry, const ConvolutionImages& source,
              const ConvolutionWeights& weights, const float* bias,
              const ConvolutionImages& destination, const ConvolutionHook& hook = {});

// source_gradient = bias + adjoint of the correlation, applied to gradient; every pixel of
// source_gradient is written. The bias, over source channels, is null except for transposed
// convolution.
void convolution_data_gradient(const ConvolutionGeometry& geometry,
                               const ConvolutionImages& gradient, const ConvolutionWeights& weights,
                               const float* bias, const ConvolutionImages& source_gradient,
                               const ConvolutionHook& hook = {});

// Sums over batch and positions, in the layout of the weights. Overwrites both results, or adds to
// them if `accumulate`. bias_gradient, sums of the gradient over destination channels, may be null.
void convolution_weight_gradient(const ConvolutionGeometry& geometry,
                                 const ConvolutionImages& source, const ConvolutionImages& gradient,
                                 float* weight_gradient, float* bias_gradient, bool accumulate);

// sums[c] = (or += if `accumulate`) sum over samples and pixels: the bias gradient of transposed
// convolution.
void convolution_channel_sums(Index batch, Index height, Index width, Index channels,
                              const ConvolutionImages& images, float* sums, bool accumulate);

}  // namespace mpsgrad::cpu
