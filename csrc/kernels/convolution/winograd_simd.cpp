// The transforms around the products of Winograd's short convolutions, F(2x2, 3x3): additions and
// halves, element by element over channels.
//
// Along one axis, with positions d, taps g, results y and their gradients e:
//   d' = (d0 - d2, d1 + d2, d2 - d1, d1 - d3)
//   g' = (g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2), kept twice as large
//   m  = d' g';  y = (m0 + m1 + m2, m1 - m2 - m3)
//   e' = (e0, e0 + e1, e0 - e1, -e1)
//   m  = d' e';  the gradient of g = (m0 + (m1 + m2) / 2, (m1 - m2) / 2, (m1 + m2) / 2 + m3)
#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

constexpr int kPositions = 4;  // of a source tile, along an axis; and products
constexpr int kPixels = 2;     // of a result tile
constexpr int kTaps = 3;
static_assert(kPositions * kPositions == kWinogradParts);

// Four vectors, `step` apart in an array of such.
struct Source {
  static constexpr int kFrom = kPositions, kTo = kPositions;
  static MPSGRAD_INLINE void apply(const Vec* d, int step, Vec* to, int to_step) {
    const Vec d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    to[0] = d0 - d2;
    to[to_step] = d1 + d2;
    to[2 * to_step] = d2 - d1;
    to[3 * to_step] = d1 - d3;
  }
};

struct Gradient {
  static constexpr int kFrom = kPixels, kTo = kPositions;
  static MPSGRAD_INLINE void apply(const Vec* e, int step, Vec* to, int to_step) {
    const Vec e0 = e[0], e1 = e[step];
    to[0] = e0;
    to[to_step] = e0 + e1;
    to[2 * to_step] = e0 - e1;
    to[3 * to_step] = -e1;
  }
};

struct Weights {
  static constexpr int kFrom = kTaps, kTo = kPositions;
  static MPSGRAD_INLINE void apply(const Vec* g, int step, Vec* to, int to_step) {
    const Vec g0 = g[0], g1 = g[step], g2 = g[2 * step];
    const Vec outer = g0 + g2;
    to[0] = g0 + g0;
    to[to_step] = outer + g1;
    to[2 * to_step] = outer - g1;
    to[3 * to_step] = g2 + g2;
  }
};

struct Result {
  static constexpr int kFrom = kPositions, kTo = kPixels;
  static MPSGRAD_INLINE void apply(const Vec* m, int step, Vec* to, int to_step) {
    const Vec m0 = m[0], m1 = m[step], m2 = m[2 * step], m3 = m[3 * step];
    to[0] = m0 + (m1 + m2);
    to[to_step] = (m1 - m2) - m3;
  }
};

struct WeightGradient {
  static constexpr int kFrom = kPositions, kTo = kTaps;
  static MPSGRAD_INLINE void apply(const Vec* m, int step, Vec* to, int to_step) {
    const Vec m0 = m[0], m1 = m[step], m2 = m[2 * step], m3 = m[3 * step];
    const Vec even = (m1 + m2) * 0.5F;
    to[0] = m0 + even;
    to[to_step] = (m1 - m2) * 0.5F;
    to[2 * to_step] = even + m3;
  }
};

// Along columns, then along rows: from kFrom x kFrom to kTo x kTo.
template <class Axis>
MPSGRAD_INLINE void transform(const Vec (&from)[Axis::kFrom * Axis::kFrom],
                              Vec (&to)[Axis::kTo * Axis::kTo]) {
  Vec columns[Axis::kTo * Axis::kFrom];
#pragma GCC unroll 4
  for (int x = 0; x < Axis::kFrom; ++x) {
    Axis::apply(from + x, Axis::kFrom, columns + x, Axis::kFrom);
  }
#pragma GCC unroll 4
  for (int y = 0; y < Axis::kTo; ++y) {
    Axis::apply(columns + y * Axis::kFrom, 1, to + y * Axis::kTo, 1);
  }
}

// Tiles [first, last) of a vector of channels to their parts in the products. Columns that
// neighbours share are transformed once. kWhole: no row is outside.
template <class Axis, bool kWhole, class... Masks>
MPSGRAD_INLINE void transform_tiles(const WinogradPixels& task, Index first, Index last, Index c,
                                    float* out, const Masks&... mask) {
  constexpr int kFrom = Axis::kFrom;
  constexpr int kShared = kFrom - kPixels;
  const Index below = task.below;
  const Index part_step = task.part_step;
  const float* rows[kFrom];
#pragma GCC unroll 4
  for (int y = 0; y < kFrom; ++y) {
    rows[y] = kWhole || task.rows[y] != nullptr ? task.rows[y] + task.first_channel + c : nullptr;
  }
  Vec columns[Axis::kTo * kFrom];
  const auto read = [&](int x, Index column) MPSGRAD_MELT {
    Vec from[kFrom] = {};
    if (column >= 0) {
#pragma GCC unroll 4
      for (int y = 0; y < kFrom; ++y) {
        if (kWhole || rows[y] != nullptr) {
          const float* pixel = rows[y] + column;
          from[y] = load(pixel, mask...);
          if (y >= kShared && x >= kShared && below != 0) {
            __builtin_prefetch(pixel + below, 0, 2);
          }
        }
      }
    }
    Axis::apply(from, 1, columns + x, kFrom);
  };
#pragma GCC unroll 2
  for (int x = 0; x < kShared; ++x) {
    read(x, task.columns[first * kPixels + x]);
  }
  float* to = out + first * task.tile_step + c;
  for (Index tile = first; tile < last; ++tile, to += task.tile_step) {
    const Index* fresh = task.columns + kShared + tile * kPixels;
#pragma GCC unroll 2
    for (int x = 0; x < kPixels; ++x) {
      read(kShared + x, fresh[x]);
    }
#pragma GCC unroll 4
    for (int y = 0; y < Axis::kTo; ++y) {
      Vec parts[Axis::kTo];
      Axis::apply(columns + y * kFrom, 1, parts, 1);
#pragma GCC unroll 4
      for (int x = 0; x < Axis::kTo; ++x) {
        store(to + (y * Axis::kTo + x) * part_step, parts[x]);
      }
#pragma GCC unroll 2
      for (int x = 0; x < kShared; ++x) {
        columns[y * kFrom + x] = columns[y * kFrom + x + kPixels];
      }
    }
  }
}

// What fills up the last vector is zeros.
template <class Axis, bool kWhole>
void transform_strip(const WinogradPixels& task, float* out) {
  for (Index first = 0; first < task.tiles; first += task.together) {
    const Index last = smaller(first + task.together, task.tiles);
    Index c = 0;
    for (; c + kLanes <= task.channels; c += kLanes) {
      transform_tiles<Axis, kWhole>(task, first, last, c, out);
    }
    if (c < task.channels) {
      transform_tiles<Axis, kWhole>(task, first, last, c, out, first_lanes(task.channels - c));
    }
  }
}

template <class Axis>
void transform_pixels(const WinogradPixels& task, float* out) {
  bool whole = true;
  for (int y = 0; y < Axis::kFrom; ++y) {
    whole = whole && task.rows[y] != nullptr;
  }
  whole ? transform_strip<Axis, true>(task, out) : transform_strip<Axis, false>(task, out);
}

// Not zero in any lane in which a value was infinite or NaN.
MPSGRAD_INLINE void probe(Vec& found, Vec value) { found += value * 0.0F; }

MPSGRAD_INLINE bool is_finite(Vec found) { return is_zero(found); }

template <bool kStreamed>
void put_results(const WinogradResults& task) {
  constexpr float kShare = 0.25F;  // of what twice as large weights give along both axes
  for (Index tile = 0; tile < task.tiles; ++tile) {
    const bool one_column = task.odd && tile == task.tiles - 1;
    const float* from = task.sums + tile * task.tile_step;
    Vec found{};
    [[maybe_unused]] OpenLine lines[kPixels * kPixels];
    const auto one = [&](Index c, const auto&... mask) MPSGRAD_MELT {
      Vec parts[kWinogradParts];
#pragma GCC unroll 16
      for (int i = 0; i < kWinogradParts; ++i) {
        parts[i] = load(from + i * task.part_step + c);
      }
      Vec values[kPixels * kPixels];
      transform<Result>(parts, values);
      const Vec bias = load(task.bias + c);
#pragma GCC unroll 4
      for (int i = 0; i < kPixels * kPixels; ++i) {
        const Vec value = values[i] * kShare + bias;
        probe(found, value);
        float* const row = task.rows[i / kPixels];
        if (row != nullptr && !(one_column && i % kPixels == 1)) {
          float* const pixel = row + (tile * kPixels + i % kPixels) * task.pixel_step + c;
          if constexpr (kStreamed) {
            stream_by_lines(lines[i], pixel, value);
          } else {
            store(pixel, value, mask...);
          }
        }
      }
    };
    Index c = 0;
    for (; c + kLanes <= task.channels; c += kLanes) {
      one(c);
    }
    if (!kStreamed && c < task.channels) {
      one(c, first_lanes(task.channels - c));
    }
    task.finite[tile] = is_finite(found);
  }
}

void results(const WinogradResults& task) {
  if (kStreamsResults && task.streamed) {
    put_results<kStreamsResults>(task);
  } else {
    put_results<false>(task);
  }
}

void weights(const float* taps, Index count, float* out, Index part_step) {
  constexpr int kCount = kTaps * kTaps;
  const auto one = [&](Index c, const auto&... mask) MPSGRAD_MELT {
    Vec from[kCount];
#pragma GCC unroll 9
    for (int i = 0; i < kCount; ++i) {
      from[i] = load(taps + i * count + c, mask...);
    }
    Vec parts[kWinogradParts];
    transform<Weights>(from, parts);
#pragma GCC unroll 16
    for (int i = 0; i < kWinogradParts; ++i) {
      store(out + i * part_step + c, parts[i], mask...);
    }
  };
  Index c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    one(c);
  }
  if (c < count) {
    one(c, first_lanes(count - c));
  }
}

bool weight_gradient(const float* sums, Index part_step, Index count, float* out, Index tap_step) {
  Vec found{};
  const auto one = [&](Index c, const auto&... mask) MPSGRAD_MELT {
    Vec parts[kWinogradParts];
#pragma GCC unroll 16
    for (int i = 0; i < kWinogradParts; ++i) {
      parts[i] = load(sums + i * part_step + c, mask...);
    }
    Vec taps[kTaps * kTaps];
    transform<WeightGradient>(parts, taps);
#pragma GCC unroll 9
    for (int i = 0; i < kTaps * kTaps; ++i) {
      probe(found, taps[i]);
      store(out + i * tap_step + c, taps[i], mask...);
    }
  };
  Index c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    one(c);
  }
  if (c < count) {
    one(c, first_lanes(count - c));
  }
  return is_finite(found);
}

}  // namespace

const WinogradLoops winograd_loops{transform_pixels<Source>, transform_pixels<Gradient>, results,
                                   weights, weight_gradient};

}  // namespace mpsgrad::MPSGRAD_ISA
