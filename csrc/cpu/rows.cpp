// Loads and stores of pixel runs.
#include "cpu/rows.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "cpu/simd/convert.hpp"

namespace mpsgrad::cpu {

const float* load_run(const CpuImages& images, Index sample, Index y, Index x, Index count,
                      float* scratch) {
  const std::byte* data = images.pixel(sample, y, x);
  if (images.is_float() && images.dense_pixels()) {
    return reinterpret_cast<const float*>(data);
  }
  convert_loops().load_row(data, images.format, count, images.channels, images.pixel_stride,
                           scratch);
  return scratch;
}

const float* load_row_with_edges(const CpuImages& images, Index sample, Index y, Index x,
                                 Index count, EdgeMode edge, float* scratch) {
  const bool inside = y >= 0 && y < images.height && x >= 0 && x + count <= images.width;
  if (inside) {
    return load_run(images, sample, y, x, count, scratch);
  }
  const Index channels = images.channels;
  const auto bytes = [channels](Index pixels) {
    return static_cast<std::size_t>(pixels * channels) * sizeof(float);
  };
  if (edge == EdgeMode::Zero && (y < 0 || y >= images.height)) {
    std::memset(scratch, 0, bytes(count));
    return scratch;
  }
  const Index row = std::clamp<Index>(y, 0, images.height - 1);
  const Index before = std::clamp<Index>(-x, 0, count);  // pixels left of the image
  const Index after = std::clamp<Index>(x + count - images.width, 0, count);  // and right of it
  const Index within = std::max<Index>(count - before - after, 0);
  float* body = scratch + before * channels;
  if (within > 0) {
    const float* texels = load_run(images, sample, row, x + before, within, body);
    if (texels != body) {
      std::memcpy(body, texels, bytes(within));
    }
  }
  const auto fill = [&](float* to, Index pixels, Index nearest) {
    if (edge == EdgeMode::Zero) {
      std::memset(to, 0, bytes(pixels));
      return;
    }
    for (Index i = 0; i < pixels; ++i) {
      const float* texel = load_run(images, sample, row, nearest, 1, to + i * channels);
      if (texel != to + i * channels) {
        std::memcpy(to + i * channels, texel, bytes(1));
      }
    }
  };
  fill(scratch, before, 0);
  fill(body + within * channels, count - before - within, images.width - 1);
  return scratch;
}

float* begin_store(const CpuImages& images, Index sample, Index y, Index x, float* scratch) {
  return images.stores_in_place() ? reinterpret_cast<float*>(images.pixel(sample, y, x)) : scratch;
}

namespace {

// Elements past the caches, in pieces that have been rounded to the image's format.
void stream_run(const CpuImages& images, std::byte* data, Index elements, const float* run) {
  if (images.is_float()) {
    convert_loops().stream(run, data, elements * static_cast<Index>(sizeof(float)));
    return;
  }
  constexpr Index kPiece = 2048;
  alignas(64) std::array<std::byte, kPiece * sizeof(float)> piece;
  for (Index i = 0; i < elements; i += kPiece) {
    const Index n = std::min(kPiece, elements - i);
    convert_loops().store_row(run + i, piece.data(), images.format, 1, n, n);
    convert_loops().stream(piece.data(), data + i * item_size(images.format),
                           n * item_size(images.format));
  }
}

}  // namespace

void finish_store(const CpuImages& images, Index sample, Index y, Index x, Index count,
                  const float* run) {
  std::byte* data = images.pixel(sample, y, x);
  if (images.streamed) {
    const bool dense = images.dense_pixels();  // a slice of the channels has gaps
    const Index pieces = dense ? 1 : count;
    const Index elements = dense ? count * images.channels : images.channels;
    for (Index i = 0; i < pieces; ++i) {
      stream_run(images, images.pixel(sample, y, x + i), elements, run + i * elements);
    }
    return;
  }
  if (reinterpret_cast<const float*>(data) != run) {
    convert_loops().store_row(run, data, images.format, count, images.channels,
                              images.pixel_stride);
  }
  if (images.tail > 0) {
    convert_loops().zero_row(data + images.channels * item_size(images.format), images.format,
                             count, images.tail, images.pixel_stride);
  }
}

void finish_store(const CpuImages& images, Index sample, Index y, Index x, Index count,
                  const Half* run) {
  if (images.streamed) {
    convert_loops().stream(run, images.pixel(sample, y, x),
                           count * images.channels * static_cast<Index>(sizeof(Half)));
  }
}

}  // namespace mpsgrad::cpu
