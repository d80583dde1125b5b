// Loops of the upsampling gradients.
#include "kernels/upsampling/upsampling_simd.hpp"

#include "cpu/simd/lanes.hpp"
#include "cpu/simd/put_pixels.hpp"
#include "cpu/simd/with_channels.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

constexpr Index kTogether = 4;  // vectors: sums of a row, of both targets, and what is read

// So many vectors of a pixel of both targets, whose first channel is element `at` of theirs; the
// last one begins `last` channels further on, and may overlap the one before. `from` is the first
// channel of the incoming gradients' first pixel.
template <int kLanes, Index kVectors, bool kNext, class Element>
MPSGRAD_INLINE void gather_vectors(const UpsamplingRows<Element>& rows, const Element* from,
                                   const float* weights, Index taps, const float* begun, Index at,
                                   Index last, Element* out, float* next) {
  using V = Floats<kLanes>;
  constexpr Index kAhead = 2048;
  constexpr Index kLineElements = kLine / static_cast<Index>(sizeof(Element));
  const auto place = [&](Index v) MPSGRAD_MELT { return v + 1 < kVectors ? v * kLanes : last; };
  V own_total[kVectors] = {};
  V next_total[kVectors] = {};
  if (begun != nullptr) {
    for (Index v = 0; v < kVectors; ++v) {
      own_total[v] = load<V>(begun + at + place(v));
    }
  }
  for (Index r = 0; r < rows.count; ++r) {
    const Element* const row = from + r * rows.row_stride;
    V sum[kVectors] = {};
    for (Index t = 0; t < taps; ++t) {
      const Element* const pixel = row + t * rows.pixel_stride;
      if constexpr (kVectors > 1) {
        for (Index i = 0; i < kVectors * kLanes; i += kLineElements) {
          request(pixel, i + kAhead);
        }
      }
      for (Index v = 0; v < kVectors; ++v) {
        sum[v] += load<V>(pixel + place(v)) * weights[t];
      }
    }
    for (Index v = 0; v < kVectors; ++v) {
      own_total[v] += sum[v] * rows.weights[r];
    }
    if (kNext && r >= rows.shared) {
      for (Index v = 0; v < kVectors; ++v) {
        next_total[v] += sum[v] * rows.next_weights[r - rows.shared];
      }
    }
  }
  for (Index v = 0; v < kVectors; ++v) {
    store(out + place(v), own_total[v]);
    if constexpr (kNext) {
      store(next + at + place(v), next_total[v]);
    }
  }
}

template <int kLanes, bool kNext, class Element>
MPSGRAD_INLINE void gather_pixels(const UpsamplingRows<Element>& rows,
                                  const UpsamplingColumns& columns, Index channels,
                                  const float* begun, Results<Element> out, float* next) {
  put_pixels(columns.pixels, channels, out, [&](Index p, Index c, Index count, Element* to) {
    const UpsamplingSum& sum = columns.sums[p];
    const Element* const from = rows.first + sum.first * rows.pixel_stride + c;
    // The sums of one vector are a chain, those of several go side by side.
    const auto gather = [&](auto vectors, Index i, Index last) MPSGRAD_MELT {
      gather_vectors<kLanes, decltype(vectors){}, kNext>(
          rows, from + i, columns.weights + sum.weight, sum.count, begun, p * channels + c + i,
          last, to + i, next);
    };
    Index i = 0;
    for (; i + kTogether * kLanes <= count; i += kTogether * kLanes) {
      gather(Exactly<kTogether>{}, i, (kTogether - 1) * kLanes);
    }
    const Index left = count - i;
    if (left > 3 * kLanes) {
      gather(Exactly<4>{}, i, left - kLanes);
    } else if (left > 2 * kLanes) {
      gather(Exactly<3>{}, i, left - kLanes);
    } else if (left > kLanes) {
      gather(Exactly<2>{}, i, left - kLanes);
    } else if (left > 0) {
      gather(Exactly<1>{}, count - kLanes, 0);  // some of them once more
    }
  });
}

template <class Element>
void gather(const UpsamplingRows<Element>& rows, const UpsamplingColumns& columns,
            const float* begun, Results<Element> out, float* next) {
  with_channels(columns.channels, [&](auto lanes, auto channels) {
    constexpr int kLanes = lanes;
    rows.shared < rows.count
        ? gather_pixels<kLanes, true>(rows, columns, channels, begun, out, next)
        : gather_pixels<kLanes, false>(rows, columns, channels, begun, out, next);
  });
}

template <class Element>
constexpr UpsamplingLoops<Element> kLoops{&gather<Element>};

}  // namespace

const ByElement<UpsamplingLoops> upsampling_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
