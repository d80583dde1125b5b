// What the CPU device's gradients of pooling share: which windows give to a row of the source's
// gradient, and how that row gets into the image.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "cpu/cpu_calls.hpp"
#include "kernels/pooling/pooling_windows.hpp"

namespace mpsgrad::cpu::pooling {

inline constexpr Index kRingFloats = 1 << 18;  // most that one thread keeps of rows under way

// One gradient encode: G of the source, and where it goes.
struct GradientWork {
  Geometry geometry;
  CpuImages gradient, source, destination;
  Offset primary;
  Size used;  // windows of the gradient that count, from `primary` on
  Region clip;
  Index first_row, first_column;  // pixel of the source that the clip's origin receives

  Index row_floats() const { return source.width * source.channels; }
  Columns columns() const {
    const auto [begin, end] = windows_of(gradient.width, primary.x, used.width);
    return {geometry, begin, end - begin, source.channels};
  }
  // The rows of windows that can read a source row.
  std::pair<Index, Index> readers(Index y) const {
    const auto [begin, end] = windows_of(gradient.height, primary.y, used.height);
    return geometry.y.readers(y, begin, end);
  }
  // Whether windows have no gaps, and no source row is read by two rows of them.
  bool rows_are_disjoint() const {
    const auto [begin, end] = windows_of(gradient.height, primary.y, used.height);
    bool disjoint = geometry.y.extent() == geometry.y.kernel;
    Index next = 0;
    for (Index j = begin; j < end && disjoint; ++j) {
      geometry.y.read(j, true, [&](Index y, Index taps, Index /*weight*/) {
        disjoint = disjoint && y >= next;
        next = y + taps;
      });
    }
    return disjoint;
  }
  // Incoming gradients of row j of the windows.
  template <class Element>
  const Element* load_gradient(const Columns& columns, Index sample, Index j,
                               Element* scratch) const {
    return load_run(gradient, sample, primary.y + j, primary.x + columns.begin, columns.windows,
                    scratch);
  }

  // The result of a row is made where it is wanted, if that is a whole row of the source.
  bool whole() const { return first_column == 0 && clip.size.width == source.width; }
  template <class Element>
  Element* begin_row(Index sample, Index r, Element* scratch) const {
    return whole() ? begin_store(destination, sample, clip.origin.y + r, clip.origin.x, scratch)
                   : scratch;
  }
  template <class Element>
  void finish_row(Index sample, Index r, const Element* row) const;

  template <class Element>
  Element* image_row(Index sample, Index r) const {
    return reinterpret_cast<Element*>(destination.pixel(sample, clip.origin.y + r, clip.origin.x));
  }
  template <class Element>
  bool streams_lines(Index sample) const {
    return whole() &&
           cpu::streams_lines<Element>(destination, sample, clip.origin.y, clip.origin.x);
  }

  // The same of some of the channels.
  GradientWork slice(Index first, Index count) const {
    GradientWork some = *this;
    some.gradient = gradient.slice(first, count);
    some.source = source.slice(first, count);
    some.destination = destination.slice(first, count);
    return some;
  }

  // Calls visit(slice, sample, first, last) for the clip's rows, in tasks of about `wanted` rows of
  // one of so many slices of the channels.
  template <class Visit>
  void for_tasks(Index slices, Index wanted, const Visit& visit) const {
    const Index group = chunks_of(wanted, geometry.y.stride) * geometry.y.stride;
    const Index groups = chunks_of(clip.size.height, group);
    parallel_for(clip.size.depth * slices * groups, [&](Index task) {
      const Index first = task % groups * group;
      const Index slice = task / groups % slices;
      visit(slice, task / groups / slices, first, std::min(clip.size.height, first + group));
    });
  }

 private:
  static std::pair<Index, Index> windows_of(Index length, Index primary, Index used) {
    const Index begin = std::max<Index>(0, -primary);
    return {begin, std::max(begin, std::min(length - primary, used))};
  }
};

// Brings row r of the clip, made where begin_row said, into the image.
template <class Element>
void GradientWork::finish_row(Index sample, Index r, const Element* row) const {
  const Index y = clip.origin.y + r;
  const Element* made = row;
  if (!whole()) {
    const Index there = std::clamp<Index>(source.width - first_column, 0, clip.size.width);
    const Index channels = source.channels;
    Element* out = begin_store(destination, sample, y, clip.origin.x,
                               scratch_of<Element>(kStoreRow, clip.size.width * channels));
    std::copy_n(row + std::min(first_column, source.width) * channels, there * channels, out);
    std::fill(out + there * channels, out + clip.size.width * channels, Element{});
    made = out;
  }
  finish_store(destination, sample, y, clip.origin.x, clip.size.width, made);
}

// pooling_max_gradient_cpu.cpp
void run_max_gradient(const GradientWork& work);

}  // namespace mpsgrad::cpu::pooling
