// Loops of the upsampling gradients.
#include "kernels/upsampling/upsampling_simd.hpp"

#include "cpu/simd/lanes.hpp"
#include "cpu/simd/put_pixels.hpp"
#include "cpu/simd/with_channels.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// So many vectors of a pixel of both targets, whose first channel is element `at` of theirs; the
// last one begins `last` channels further on, and may overlap the one before. `row` is the first
// channel of the incoming gradients' first pixel.
template <int kLanes, Index kVectors, bool kNext, class Given, class Element>
MPSGRAD_INLINE void gather_vectors(const UpsamplingRows<Given>& rows, const Given* row,
                                   const float* weights, Index taps, const float* begun, Index at,
                                   Index last, Element* out, float* next) {
  using V = Floats<kLanes>;
  constexpr Index kAhead = 2048;
  constexpr Index kLineElements = kLine / static_cast<Index>(sizeof(Given));
  const auto place = [=](Index v) MPSGRAD_MELT { return v + 1 < kVectors ? v * kLanes : last; };
  V own_total[kVectors] = {};
  V next_total[kVectors] = {};
  if (begun != nullptr) {
    for (Index v = 0; v < kVectors; ++v) {
      own_total[v] = load<V>(begun + at + place(v));
    }
  }
  for (Index r = 0; r < rows.count; ++r, row += rows.row_stride) {
    const float row_weight = rows.weights[r];
    const float next_weight = kNext && r >= rows.shared ? rows.next_weights[r - rows.shared] : 0.0F;
    const Given* pixel = row;
    for (Index t = 0; t < taps; ++t, pixel += rows.pixel_stride) {
      const float own_weight = row_weight * weights[t];
      V values[kVectors];
      // Of rows that lie apart and are read again, a processor does not foresee enough.
      if constexpr (kNext && kVectors * kLanes >= kLineElements) {
        for (Index i = 0; i < kVectors * kLanes; i += kLineElements) {
          request(pixel, i + kAhead);
        }
      }
      for (Index v = 0; v < kVectors; ++v) {
        values[v] = load<V>(pixel + place(v));
        own_total[v] += values[v] * own_weight;
      }
      if (kNext && r >= rows.shared) {
        const float both = next_weight * weights[t];
        for (Index v = 0; v < kVectors; ++v) {
          next_total[v] += values[v] * both;
        }
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

// Vectors of a pixel go side by side, as many as registers hold: memory likes to be read in order,
// and each of their sums is a chain.
template <int kLanes, bool kNext, class Given, class Element>
MPSGRAD_INLINE void gather_pixels(const UpsamplingRows<Given>& rows,
                                  const UpsamplingColumns& columns, Index channels,
                                  const float* begun, Results<Element> out, float* next) {
  constexpr Index kMost = kRegisters / (kNext ? 4 : 2);
  constexpr Index kSome = 4;
  put_pixels(columns.pixels, channels, out, [&](Index p, Index c, Index count, Element* to) {
    const UpsamplingSum& sum = columns.sums[p];
    const Given* const from = rows.first + sum.first * rows.pixel_stride + c;
    const auto gather = [&](auto vectors, Index i, Index last) MPSGRAD_MELT {
      gather_vectors<kLanes, decltype(vectors){}, kNext>(
          rows, from + i, columns.weights + sum.weight, sum.count, begun, p * channels + c + i,
          last, to + i, next);
    };
    Index i = 0;
    for (; i + kMost * kLanes <= count; i += kMost * kLanes) {
      gather(Exactly<kMost>{}, i, (kMost - 1) * kLanes);
    }
    if constexpr (kMost > kSome) {
      for (; i + kSome * kLanes <= count; i += kSome * kLanes) {
        gather(Exactly<kSome>{}, i, (kSome - 1) * kLanes);
      }
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
  with_lanes_for(columns.channels, [&](auto lanes) {
    constexpr int kLanes = lanes;
    rows.shared < rows.count
        ? gather_pixels<kLanes, true>(rows, columns, columns.channels, begun, out, next)
        : gather_pixels<kLanes, false>(rows, columns, columns.channels, begun, out, next);
  });
}

// kCount neighbouring blocks of each row.
template <Index kCount, bool kNext, class Block, class Element>
MPSGRAD_INLINE void fold_blocks(Block block, const UpsamplingRows<Element>& rows, Index i,
                                bool begun, float* sums, float* next) {
  using V = decltype(block.floats(sums));
  V own[kCount] = {};
  V further[kCount] = {};
  for (Index b = 0; begun && b < kCount; ++b) {
    own[b] = block.floats(sums + i + b * kWidest);
  }
  for (Index r = 0; r < rows.count; ++r) {
    const Element* const at = rows.first + r * rows.row_stride + i;
    V values[kCount];
    for (Index b = 0; b < kCount; ++b) {
      values[b] = block.floats(at + b * kWidest);
      own[b] += values[b] * rows.weights[r];
    }
    if (kNext && r >= rows.shared) {
      for (Index b = 0; b < kCount; ++b) {
        further[b] += values[b] * rows.next_weights[r - rows.shared];
      }
    }
  }
  for (Index b = 0; b < kCount; ++b) {
    block.put(sums + i + b * kWidest, own[b]);
    if constexpr (kNext) {
      block.put(next + i + b * kWidest, further[b]);
    }
  }
}

template <bool kNext, class Element>
MPSGRAD_INLINE void fold_elements(const UpsamplingRows<Element>& rows, Index elements, bool begun,
                                  float* sums, float* next) {
  constexpr Index kTogether = 4;
  constexpr Index kWide = kTogether * kWidest;
  Index i = 0;
  for (; i + kWide <= elements; i += kWide) {
    fold_blocks<kTogether, kNext>(WholeBlock<kWidest>{}, rows, i, begun, sums, next);
  }
  for_blocks(elements - i, [=](auto block, Index rest) MPSGRAD_MELT {
    fold_blocks<1, kNext>(block, rows, i + rest, begun, sums, next);
  });
}

template <class Element>
void fold_rows(const UpsamplingRows<Element>& rows, Index pixels, Index channels, bool begun,
               float* sums, float* next) {
  const bool dense = rows.pixel_stride == channels;
  const Index elements = dense ? pixels * channels : channels;
  UpsamplingRows<Element> run = rows;
  for (Index p = 0; p < (dense ? 1 : pixels); ++p, run.first += rows.pixel_stride) {
    float* const own = sums + p * channels;
    rows.shared < rows.count ? fold_elements<true>(run, elements, begun, own, next + p * channels)
                             : fold_elements<false>(run, elements, begun, own, nullptr);
  }
}

template <class Element>
void sum_columns(const UpsamplingColumns& columns, const float* sums, Results<Element> out) {
  constexpr float kOne = 1.0F;
  const UpsamplingRows<float> row{sums, 0, columns.channels, 1, 1, &kOne, nullptr};
  with_channels(columns.channels, [&](auto lanes, auto channels) {
    gather_pixels<lanes, false>(row, columns, channels, nullptr, out, nullptr);
  });
}

template <class Element>
constexpr UpsamplingLoops<Element> kLoops{&gather<Element>, &fold_rows<Element>,
                                          &sum_columns<Element>};

}  // namespace

const ByElement<UpsamplingLoops> upsampling_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
