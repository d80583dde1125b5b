// Interpolation along both axes, row by row.
#include "cpu/simd/interpolate.hpp"

#include "cpu/simd/put_pixels.hpp"
#include "cpu/simd/row_folds.hpp"
#include "cpu/simd/with_channels.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

template <int kLanes>
MPSGRAD_INLINE void copy_vectors(const std::byte* from, std::byte* to, Index bytes) {
  using V = Floats<kLanes>;
  constexpr auto kBytes = static_cast<Index>(sizeof(V));
  for (Index i = 0; i < bytes - kBytes; i += kBytes) {
    store(to + i, load<V>(from + i));
  }
  store(to + bytes - kBytes, load<V>(from + bytes - kBytes));
}

// Bit by bit: float16 numbers too are not converted.
template <class Element>
MPSGRAD_INLINE void copy_elements(const Element* from, Element* to, Index count) {
  const Index bytes = count * static_cast<Index>(sizeof(Element));
  const auto* source = reinterpret_cast<const std::byte*>(from);
  auto* result = reinterpret_cast<std::byte*>(to);
  if (bytes >= 4 * kWidest) {
    return copy_vectors<kWidest>(source, result, bytes);
  }
  if (bytes >= 16) {
    return copy_vectors<4>(source, result, bytes);
  }
  for (Index i = 0; i < count; ++i) {
    to[i] = from[i];
  }
}

template <class Element>
void copy(const InterpolatedRow<Element>& row, Results<Element> out) {
  const Index channels = row.channels;
  put_pixels(row.pixels, channels, out, [&](Index p, Index c, Index count, Element* to) {
    const InterpolationTaps& taps = row.columns[p];
    if (taps.count == 0) {
      return clear(to, count);
    }
    copy_elements(row.x[0] + taps.pixel[0] * channels + c, to, count);
  });
}

template <int kLanes, int kRows, class Element>
MPSGRAD_INLINE void interpolate_pixels(const InterpolatedRow<Element>& row, Index channels,
                                       Results<Element> out) {
  using V = Floats<kLanes>;
  const Element* const upper = row.x[0];
  const Element* const lower = kRows > 1 ? row.x[1] : nullptr;
  const float upper_weight = row.weight[0];
  const float lower_weight = row.weight[1];
  const auto across_rows = [=](Index i) MPSGRAD_MELT {
    V value = load<V>(upper + i) * upper_weight;
    if constexpr (kRows > 1) {
      value += load<V>(lower + i) * lower_weight;
    }
    return value;
  };
  put_pixels(row.pixels, channels, out, [&](Index p, Index c, Index count, Element* to) {
    const InterpolationTaps& taps = row.columns[p];
    const Index left = taps.pixel[0] * channels + c;
    const float left_weight = taps.weight[0];
    if (taps.count == 2) {
      const Index right = taps.pixel[1] * channels + c;
      const float right_weight = taps.weight[1];
      fill_row<kLanes>(count, to, [=](Index i) MPSGRAD_MELT {
        return across_rows(left + i) * left_weight + across_rows(right + i) * right_weight;
      });
    } else if (taps.count == 1) {
      fill_row<kLanes>(count, to,
                       [=](Index i) MPSGRAD_MELT { return across_rows(left + i) * left_weight; });
    } else {
      clear(to, count);
    }
  });
}

template <class Element>
void interpolate(const InterpolatedRow<Element>& row, Results<Element> out) {
  with_channels(row.channels, [&](auto lanes, auto channels) {
    constexpr int kLanes = lanes;
    row.count == 2 ? interpolate_pixels<kLanes, 2>(row, channels, out)
                   : interpolate_pixels<kLanes, 1>(row, channels, out);
  });
}

template <class Element>
constexpr InterpolationLoops<Element> kLoops{&copy<Element>, &interpolate<Element>};

}  // namespace

const ByElement<InterpolationLoops> interpolation_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
