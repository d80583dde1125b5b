// Upsampling loops, row by row.
#include "kernels/upsampling/upsampling_simd.hpp"

#include "cpu/simd/lanes.hpp"
#include "cpu/simd/streaming.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// Makes the results of a row of pixels: put(pixel, channel, count, to) writes `count` channels of
// one of them. What is streamed goes by way of a block in the nearest cache.
template <class Element, class Put>
MPSGRAD_INLINE void put_pixels(Index pixels, Index channels, Results<Element> out, const Put& put) {
  constexpr Index kBlock = 1024;
  constexpr auto kBytes = static_cast<Index>(sizeof(Element));
  if (!out.streamed) {
    for (Index p = 0; p < pixels; ++p) {
      put(p, Index{0}, channels, out.at + p * channels);
    }
    return;
  }
  alignas(kLine) Element block[kBlock];
  if (channels > kBlock / 2) {
    for (Index p = 0; p < pixels; ++p) {
      for (Index c = 0, some = 0; c < channels; c += some) {
        // The last two parts are one, so that none is shorter than a vector.
        some = channels - c <= kBlock ? channels - c : kBlock / 2;
        put(p, c, some, block);
        stream_bytes(block, out.at + p * channels + c, some * kBytes);
      }
    }
    return;
  }
  const Index together = kBlock / channels;
  for (Index first = 0; first < pixels; first += together) {
    const Index some = pixels - first < together ? pixels - first : together;
    for (Index p = 0; p < some; ++p) {
      put(first + p, Index{0}, channels, block + p * channels);
    }
    stream_bytes(block, out.at + first * channels, some * channels * kBytes);
  }
}

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
MPSGRAD_INLINE void clear(Element* to, Index count) {
  __builtin_memset(to, 0, static_cast<std::size_t>(count) * sizeof(Element));
}

template <class Element>
void copy(const UpsamplingRow<Element>& row, Results<Element> out) {
  const Index channels = row.channels;
  put_pixels(row.pixels, channels, out, [&](Index p, Index c, Index count, Element* to) {
    const UpsamplingTaps& taps = row.columns[p];
    if (taps.count == 0) {
      return clear(to, count);
    }
    copy_elements(row.x[0] + taps.pixel[0] * channels + c, to, count);
  });
}

template <int kLanes, int kRows, class Element>
MPSGRAD_INLINE void interpolate_pixels(const UpsamplingRow<Element>& row, Results<Element> out) {
  using V = Floats<kLanes>;
  const Index channels = row.channels;
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
    const UpsamplingTaps& taps = row.columns[p];
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
void interpolate(const UpsamplingRow<Element>& row, Results<Element> out) {
  with_lanes_for(row.channels, [&](auto lanes) {
    constexpr int kLanes = lanes;
    row.count == 2 ? interpolate_pixels<kLanes, 2>(row, out)
                   : interpolate_pixels<kLanes, 1>(row, out);
  });
}

template <int kLanes, int kTargets, class Element>
MPSGRAD_INLINE void gather_pixels(const Element* gradient, const UpsamplingSums& sums,
                                  const UpsamplingTarget* targets) {
  using V = Floats<kLanes>;
  const Index channels = sums.channels;
  const UpsamplingTarget first = targets[0];
  const UpsamplingTarget second = targets[kTargets - 1];
  const auto added = [](const UpsamplingTarget& target, Index i, V value) MPSGRAD_MELT {
    const V share = value * target.weight;
    return target.begins ? share : load<V>(target.row + i) + share;
  };
  for (Index p = 0; p < sums.pixels; ++p) {
    const UpsamplingSum& sum = sums.columns[p];
    const float* const weights = sums.weights + sum.weight;
    const Element* const from = gradient + sum.first * channels;
    const Index taps = sum.count;
    const auto total_at = [=](Index c) MPSGRAD_MELT {
      V total = {};
      for (Index t = 0; t < taps; ++t) {
        total += load<V>(from + t * channels + c) * weights[t];
      }
      return total;
    };
    // The last vector reaches back over the one before, so it is found before anything is written.
    const Index at = p * channels;
    const Index last = channels - kLanes;
    const V end = total_at(last);
    const V first_end = added(first, at + last, end);
    V second_end = {};
    if constexpr (kTargets > 1) {
      second_end = added(second, at + last, end);
    }
    for (Index c = 0; c < last; c += kLanes) {
      const V total = total_at(c);
      store(first.row + at + c, added(first, at + c, total));
      if constexpr (kTargets > 1) {
        store(second.row + at + c, added(second, at + c, total));
      }
    }
    store(first.row + at + last, first_end);
    if constexpr (kTargets > 1) {
      store(second.row + at + last, second_end);
    }
  }
}

template <class Element>
void gather(const Element* gradient, const UpsamplingSums& sums, const UpsamplingTarget* targets,
            Index count) {
  with_lanes_for(sums.channels, [&](auto lanes) {
    constexpr int kLanes = lanes;
    count == 2 ? gather_pixels<kLanes, 2>(gradient, sums, targets)
               : gather_pixels<kLanes, 1>(gradient, sums, targets);
  });
}

template <class Element>
constexpr UpsamplingLoops<Element> kLoops{&copy<Element>, &interpolate<Element>, &gather<Element>};

}  // namespace

const ByElement<UpsamplingLoops> upsampling_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
