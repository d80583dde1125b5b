// Runs of pixels: the one way kernels read and write texels. As float32 whatever the image's
// format: dense float32 runs are used where they lie, everything else goes through a scratch run of
// the caller. Loops that convert float16 themselves take dense runs of it as they lie.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/types.hpp"
#include "cpu/cpu_images.hpp"
#include "cpu/memory.hpp"
#include "cpu/scratch.hpp"
#include "cpu/simd/half.hpp"
#include "cpu/simd/results.hpp"

namespace mpsgrad::cpu {

// Whether pixels lie as runs of such elements do, so that no scratch is needed.
template <class Element>
bool lies_as(const CpuImages& images) {
  if constexpr (std::is_same_v<Element, Half>) {
    return images.has_halves();
  } else {
    return images.is_float() && images.dense_pixels();
  }
}

// `count` pixels of `sample` from (x, y) on as count * channels floats; the run may cross rows
// where rows follow each other without gaps (packed_rows). The result points into `scratch`, which
// has room for as many, or into the image.
const float* load_run(const CpuImages& images, Index sample, Index y, Index x, Index count,
                      float* scratch);

// The same within one row where y, x and x + count may lie outside the image: zeros, or the nearest
// edge pixel.
const float* load_row_with_edges(const CpuImages& images, Index sample, Index y, Index x,
                                 Index count, EdgeMode edge, float* scratch);

// Floats of a run whose results go past the caches. It is short, for while its scratch run is
// written out the processor reads nothing new.
inline constexpr Index kStreamedFloats = 512;

// Where the results of a run go: the image itself if it stores in place, else `scratch`.
float* begin_store(const CpuImages& images, Index sample, Index y, Index x, float* scratch);
// Rounds a scratch run into the image (nothing to do if begin_store gave the image) and zeroes the
// tail lanes.
void finish_store(const CpuImages& images, Index sample, Index y, Index x, Index count,
                  const float* run);

// Runs of float16 as they lie, for images that has_halves() is true of, and within them. Results go
// by way of a scratch run only if they go past the caches.
inline const Half* load_run(const CpuImages& images, Index sample, Index y, Index x,
                            Index /*count*/, Half* /*scratch*/) {
  return reinterpret_cast<const Half*>(images.pixel(sample, y, x));
}
inline const Half* load_row_with_edges(const CpuImages& images, Index sample, Index y, Index x,
                                       Index count, EdgeMode /*edge*/, Half* scratch) {
  return load_run(images, sample, y, x, count, scratch);
}
inline Half* begin_store(const CpuImages& images, Index sample, Index y, Index x, Half* scratch) {
  return images.streamed ? scratch : reinterpret_cast<Half*>(images.pixel(sample, y, x));
}
void finish_store(const CpuImages& images, Index sample, Index y, Index x, Index count,
                  const Half* run);

// The same for loops that can stream their results themselves, which only other formats keep from
// going to the image.
template <class Element>
Results<Element> begin_results(const CpuImages& images, Index sample, Index y, Index x,
                               Element* scratch) {
  if (images.streamed && (std::is_same_v<Element, Half> || images.is_float())) {
    return {.at = reinterpret_cast<Element*>(images.pixel(sample, y, x)), .streamed = true};
  }
  return {.at = begin_store(images, sample, y, x, scratch)};
}
template <class Element>
void finish_results(const CpuImages& images, Index sample, Index y, Index x, Index count,
                    const Results<Element>& results) {
  if (!results.streamed) {
    finish_store(images, sample, y, x, count, results.at);
  }
}

// Whether results from a pixel on go past the caches as they are, and pixels are whole cache lines,
// so that a loop may stream them vector by vector in any order.
template <class Element>
bool streams_lines(const CpuImages& images, Index sample, Index y, Index x) {
  const auto is_whole = [](std::uintptr_t bytes) { return bytes % kAlignment == 0; };
  const auto bytes_of = [](Index elements) {
    return static_cast<std::uintptr_t>(elements) * sizeof(Element);
  };
  return images.streamed && (std::is_same_v<Element, Half> || images.is_float()) &&
         is_whole(bytes_of(images.pixel_stride)) && is_whole(bytes_of(images.row_stride)) &&
         is_whole(reinterpret_cast<std::uintptr_t>(images.pixel(sample, y, x)));
}

}  // namespace mpsgrad::cpu
