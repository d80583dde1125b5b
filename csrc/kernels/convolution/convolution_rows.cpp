// Rows of images with their surroundings.
#include "kernels/convolution/convolution_rows.hpp"

#include "cpu/simd/convert.hpp"

namespace mpsgrad::cpu::convolution {

void RowWindow::copy(Index sample, Index y, float* out) const {
  const Index item = item_size(images->format);
  const std::byte* row = images->samples[sample] + (y * images->row_stride + channel) * item;
  const Index first = std::clamp<Index>(first_x, 0, width);
  const Index last = std::clamp<Index>(first_x + span, first, width);
  const Index before = std::clamp<Index>(-first_x, 0, span);
  if (last > first) {
    convert_loops().load_row(row + first * images->pixel_stride * item, static_cast<int>(images->format), last - first,
                             channels, images->pixel_stride, out + before * channels);
  }
  const Index after = span - before - (last - first);  // all of it if the window lies right of the image
  float* behind = out + (span - after) * channels;
  if (edge != EdgeMode::Clamp) {
    std::fill_n(out, before * channels, 0.0F);
    std::fill_n(behind, after * channels, 0.0F);
    return;
  }
  const auto edge_pixel = [&](Index x, float* to, Index count) {
    if (count > 0) {
      convert_loops().load_row(row + x * images->pixel_stride * item, static_cast<int>(images->format), 1, channels,
                               images->pixel_stride, to);
      for (Index i = 1; i < count; ++i) {
        std::copy_n(to, channels, to + i * channels);
      }
    }
  };
  edge_pixel(0, out, before);
  edge_pixel(width - 1, behind, after);
}

const float* RowCache::fetch(Index y) {
  if (window_.direct) {
    const ConvolutionImages& images = *window_.images;
    return reinterpret_cast<const float*>(images.samples[sample_]) + y * images.row_stride +
           window_.first_x * images.pixel_stride + window_.channel;
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
