// Rows of images with their surroundings.
#include "kernels/convolution/convolution_rows.hpp"

#include "cpu/simd/convert.hpp"

namespace mpsgrad::cpu::convolution {

void RowWindow::copy(Index sample, Index y, float* out) const {
  constexpr Index kAhead = 4;  // pixels, asked for before they are copied one by one
  const ConvertLoops& loops = convert_loops();
  const Index item = item_size(images->format);
  const Index pixel = channels + gap;
  const std::byte* row = images->samples[sample] + (y * images->row_stride + channel) * item;
  const auto load = [&](Index x, Index pixels, float* to) {
    const std::byte* from = row + x * images->pixel_stride * item;
    if (gap == 0) {
      loops.load_row(from, images->format, pixels, channels, images->pixel_stride, to);
      return;
    }
    for (Index i = 0; i < pixels; ++i) {
      const std::byte* ahead = from + (i + kAhead) * images->pixel_stride * item;
      for (Index byte = 0; byte < channels * item; byte += static_cast<Index>(kAlignment)) {
        __builtin_prefetch(ahead + byte);
      }
      loops.load_row(from + i * images->pixel_stride * item, images->format, 1, channels,
                     images->pixel_stride, to + i * pixel);
    }
  };
  const Index first = std::clamp<Index>(first_x, 0, width);
  const Index last = std::clamp<Index>(first_x + span, first, width);
  const Index before = std::clamp<Index>(-first_x, 0, span);
  const Index after =
      span - before - (last - first);  // all of it if the window lies right of the image
  float* behind = out + (span - after) * pixel;
  load(first, last - first, out + before * pixel);
  if (edge != EdgeMode::Clamp) {
    std::fill_n(out, before * pixel, 0.0F);
    std::fill_n(behind, after * pixel, 0.0F);
    return;
  }
  const auto edge_pixel = [&](Index x, float* to, Index count) {
    if (count > 0) {
      load(x, 1, to);
      for (Index i = 1; i < count; ++i) {
        std::copy_n(to, channels, to + i * pixel);
      }
    }
  };
  edge_pixel(0, out, before);
  edge_pixel(width - 1, behind, after);
}

namespace {

// Brings a run into the caches. So many requests at once would not do: they had no effect.
void read_through(const float* run, Index count) {
  for (Index i = 0; i < count; i += kLineFloats) {
    static_cast<void>(*static_cast<const volatile float*>(run + i));
  }
}

}  // namespace

const float* RowCache::direct_row(Index sample, Index y) const {
  const ConvolutionImages& images = *window_.images;
  return window_.moved(
      reinterpret_cast<const float*>(images.samples[sample]),
      y * images.row_stride + window_.first_x * images.pixel_stride + window_.channel);
}

LinesAhead RowCache::lines_of(Index sample, Index y, Index count) const {
  const Index rows = std::min(count, window_.height - y);
  const Index row_floats = window_.images->row_stride;
  if (!window_.direct || rows <= 0 || row_floats != window_.span * window_.channels) {
    return {};
  }
  return {direct_row(sample, y), rows * row_floats / kLineFloats};
}

const float* RowCache::fetch(Index y) {
  if (window_.direct) {
    const float* row = direct_row(sample_, y);
    if (window_.read_first) {
      read_through(row, (window_.span - 1) * window_.images->pixel_stride + window_.channels);
    }
    return row;
  }
  float* memory = memory_ + used_++ * window_.row_floats();
  window_.copy(sample_, y, memory);
  return memory;
}

bool even_sample_stride(const ConvolutionImages& images, Index batch, Index* elements) {
  const Index item = item_size(images.format);
  *elements = 0;
  if (batch < 2) {
    return true;
  }
  const std::ptrdiff_t step = images.samples[1] - images.samples[0];
  for (Index n = 2; n < batch; ++n) {
    if (images.samples[n] - images.samples[n - 1] != step) {
      return false;
    }
  }
  *elements = step / item;
  return step % item == 0 && step > 0;
}

}  // namespace mpsgrad::cpu::convolution
