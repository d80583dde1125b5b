// Where loops of correlation put the results of a tile. Only for *_simd.cpp files.
#pragma once

#include "cpu/simd/convert.hpp"
#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {

inline constexpr Index kSinkValues = 4096;
static_assert(kSinkValues >= kMaxRows * kMaxVecs * kLanes);

// Where a tile of results goes: straight into a float32 result, else through `values` and the hook.
class TileSink {
 public:
  TileSink(const CorrelationTask& task) : task_(task), direct_(is_direct(task)) {}

  // Whether results go straight to their place.
  static bool is_direct(const CorrelationTask& task) {
    return task.format == ChannelFormat::Float32 && task.hook.store;
  }

  // Results that do not go straight to their place are put `value` values into the room for them.
  float* begin(Index row, Index x, Index channel, Index channels, Index value = 0) {
    if (direct_) {
      step_ = task_.result_step;
      return static_cast<float*>(task_.result[row].data) + x * step_ + channel;
    }
    step_ = channels;
    return values_ + value;
  }
  Index step() const { return step_; }
  // Whether begin() gives a result's own place.
  bool direct() const { return direct_; }
  // How many pixels of so many channels there is room for at a time.
  Index room(Index channels) const {
    constexpr Index kNoEnd = Index{1} << 30;
    return direct_ ? kNoEnd : kSinkValues / channels;
  }
  // Whether pixels of so many channels, which begin() has placed at `out`, are lines of their own.
  bool streams(const float* out, Index channels) const {
    return task_.streamed && direct_ && is_lines(out, channels) && step_ % kLineFloats == 0;
  }

  void finish(float* values, Index row, Index x, Index pixels, Index channel,
              Index channels) const {
    if (task_.hook.apply != nullptr) {
      task_.hook.apply(
          task_.hook.context,
          {task_.result[row].sample, task_.result[row].y, task_.first_x + x * task_.x_step,
           task_.x_step, pixels, task_.first_channel + channel, channels, values, step_});
    }
    if (direct_ || !task_.hook.store) {
      return;
    }
    const Index item = task_.format == ChannelFormat::Unorm8 ? 1 : 2;
    auto* data = static_cast<unsigned char*>(task_.result[row].data) +
                 (x * task_.result_step + channel) * item;
    if (task_.streamed && task_.format == ChannelFormat::Float16 && are_lines(data, channels)) {
      return stream_halves(values, reinterpret_cast<Half*>(data), pixels, channels);
    }
    convert_loops.store_row(values, data, task_.format, pixels, channels, task_.result_step);
  }

 private:
  // Whether so many float16 channels are lines, in every pixel if they are in this one.
  bool are_lines(const void* first, Index channels) const {
    constexpr Index kHalves = kLine / Index{sizeof(Half)};
    return kLineVecs == 1 && past_line(first) == 0 && channels % kHalves == 0 &&
           task_.result_step % kHalves == 0;
  }

  void stream_halves(const float* values, Half* to, Index pixels, Index channels) const {
    for (Index i = 0; i < pixels; ++i) {
      for (Index c = 0; c < channels; c += kLanes) {
        stream(to + c, load(values + c));
      }
      values += step_;
      to += task_.result_step;
    }
  }

  const CorrelationTask& task_;
  bool direct_;
  Index step_ = 0;
  alignas(64) float values_[kSinkValues];
};

// The same for results that loops write as float16, with no hook to see them before.
class HalfSink {
 public:
  HalfSink(const CorrelationTask& task) : task_(task) {}

  Half* begin(Index row, Index x, Index channel, Index /*channels*/, Index /*value*/ = 0) {
    return static_cast<Half*>(task_.result[row].data) + x * step() + channel;
  }
  Index step() const { return task_.result_step; }
  bool direct() const { return true; }
  // A vector is half a line, and the halves would go past the caches one by one.
  bool streams(const Half* /*out*/, Index /*channels*/) const { return false; }
  void finish(Half*, Index, Index, Index, Index, Index) const {}

 private:
  const CorrelationTask& task_;
};

}  // namespace mpsgrad::MPSGRAD_ISA
