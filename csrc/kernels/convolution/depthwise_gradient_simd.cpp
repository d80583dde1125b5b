// Weight gradients of kernels whose result channels each read one source channel. Channels lie
// along the lanes; sums are kept in registers while pixels go by.
#include <type_traits>

#include "kernels/convolution/channel_sums_simd.hpp"
#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/depthwise_in_order_simd.hpp"
#include "kernels/convolution/depthwise_walk_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

// kVecs vectors of channels over all rows of a band: kRows rows of kTaps taps each, kStride taps
// apart from pixel to pixel. What neighbouring pixels share is loaded once. With kBias, sums of the
// gradients too, which would otherwise be read again. Masks are of a single vector.
template <int kVecs, int kRows, int kTaps, int kStride, bool kBias, class... Masks>
MPSGRAD_INLINE void depthwise_vectors(const WeightGradientTask& task, Index first_row,
                                      Index channel, const Masks&... mask) {
  static_assert(kVecs == 1 || sizeof...(Masks) == 0);
  constexpr int kPixels = 4;
  constexpr Index kAhead = 16;  // pixels, asked for before they are needed
  Vec sums[kVecs][kRows][kTaps];
  Vec bias[kVecs];
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) {
    bias[v] = Vec{};
#pragma GCC unroll 8
    for (int q = 0; q < kRows; ++q) {
#pragma GCC unroll 8
      for (int p = 0; p < kTaps; ++p) {
        sums[v][q][p] = Vec{};
      }
    }
  }
  const Index gradient_step = task.gradient_step;
  const Index source_step = task.source_step;
  const Index tap_step = task.source_tap_step;
  const Index width = task.width;
  for (Index row = 0; row < task.rows; ++row) {
    const float* gradient = task.gradient[row] + channel;
    const float* source[kRows];
#pragma GCC unroll 8
    for (int q = 0; q < kRows; ++q) {
      const float* found = task.source[row * task.taps_y + first_row + q];
      source[q] = (found == nullptr ? task.zeros : found) + channel;
    }
    Index pixel = 0;
    for (; pixel + kPixels <= width; pixel += kPixels) {
      Vec g[kPixels][kVecs];
#pragma GCC unroll 4
      for (int i = 0; i < kPixels; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          g[i][v] = load(gradient + i * gradient_step + v * kLanes, mask...);
          if constexpr (kBias) {
            bias[v] += g[i][v];
          }
        }
      }
#pragma GCC unroll 8
      for (int q = 0; q < kRows; ++q) {
        const float* x = source[q];
#pragma GCC unroll 32
        for (int column = 0; column < (kPixels - 1) * kStride + kTaps; ++column) {
#pragma GCC unroll 4
          for (int v = 0; v < kVecs; ++v) {
            const Vec value = load(x + v * kLanes, mask...);
#pragma GCC unroll 4
            for (int i = 0; i < kPixels; ++i) {
              if (column - i * kStride >= 0 && column - i * kStride < kTaps) {
                sums[v][q][column - i * kStride] += g[i][v] * value;
              }
            }
          }
          x += tap_step;
        }
        source[q] += kPixels * source_step;
      }
#pragma GCC unroll 4
      for (int i = 0; i < kPixels; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          __builtin_prefetch(gradient + (kAhead + i) * gradient_step + v * kLanes);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < kPixels * kStride; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          __builtin_prefetch(source[kRows - 1] + (kAhead * kStride + i) * tap_step + v * kLanes);
        }
      }
      gradient += kPixels * gradient_step;
    }
    for (; pixel < width; ++pixel) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const Vec g = load(gradient + v * kLanes, mask...);
        if constexpr (kBias) {
          bias[v] += g;
        }
#pragma GCC unroll 8
        for (int q = 0; q < kRows; ++q) {
#pragma GCC unroll 8
          for (int p = 0; p < kTaps; ++p) {
            sums[v][q][p] += g * load(source[q] + p * tap_step + v * kLanes, mask...);
          }
        }
      }
#pragma GCC unroll 8
      for (int q = 0; q < kRows; ++q) {
        source[q] += source_step;
      }
      gradient += gradient_step;
    }
  }
  const Index channels = task.group_gradients;
  float* out = task.out + first_row * kTaps * channels + channel;
#pragma GCC unroll 8
  for (int q = 0; q < kRows; ++q) {
#pragma GCC unroll 8
    for (int p = 0; p < kTaps; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        store(out + v * kLanes, load(out + v * kLanes, mask...) + sums[v][q][p], mask...);
      }
      out += channels;
    }
  }
  if constexpr (kBias) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      float* total = task.bias + channel + v * kLanes;
      store(total, load(total, mask...) + bias[v], mask...);
    }
  }
}

// One tap of one vector of channels over some rows, for all other kernels.
template <class... Masks>
MPSGRAD_INLINE void depthwise_tap(const WeightGradientTask& task, Index first_row, Index last_row,
                                  Index tap, Index channel, const Masks&... mask) {
  Vec even{};
  Vec odd{};
  const Index q = tap / task.taps_x;
  const Index p = tap % task.taps_x;
  const Index begin = task.begin[p];
  const Index end = task.end[p];
  for (Index row = first_row; row < last_row; ++row) {
    const float* source = task.source[row * task.taps_y + q];
    if (source == nullptr) {
      continue;
    }
    source += task.source_offset + p * task.source_tap_step + begin * task.source_step + channel;
    const float* gradient = task.gradient[row] + begin * task.gradient_step + channel;
    Index pixel = begin;
    for (; pixel + 2 <= end; pixel += 2) {
      even += load(gradient, mask...) * load(source, mask...);
      odd +=
          load(gradient + task.gradient_step, mask...) * load(source + task.source_step, mask...);
      gradient += 2 * task.gradient_step;
      source += 2 * task.source_step;
    }
    if (pixel < end) {
      even += load(gradient, mask...) * load(source, mask...);
    }
  }
  float* out = task.out + tap * task.group_gradients + channel;
  store(out, load(out, mask...) + (even + odd), mask...);
}

void tap_by_tap(const WeightGradientTask& task, Index first_row, Index last_row, Index channels) {
  each_vector(channels, [&](Index c, const auto&... mask) MPSGRAD_MELT {
    for (Index tap = 0; tap < task.taps_y * task.taps_x; ++tap) {
      depthwise_tap(task, first_row, last_row, tap, c, mask...);
    }
  });
}

template <int kRows, int kTaps, int kStride>
void depthwise_rows(const WeightGradientTask& task, Index channels) {
  // As many vectors at once as leave registers for four pixels of them.
  constexpr int kVecs = 2 * (kRows * kTaps + 5) <= kRegisters ? 2 : 1;
  const bool with_bias = task.bias != nullptr && task.taps_y >= kRows;
  if (!with_bias) {
    add_bias(task, 0, task.rows, channels);
  }
  const auto all = [&](auto vecs, Index c, const auto&... mask) MPSGRAD_MELT {
    constexpr int kNow = decltype(vecs)::value;
    Index row = 0;
    if (with_bias) {
      depthwise_vectors<kNow, kRows, kTaps, kStride, true>(task, 0, c, mask...);
      row = kRows;
    }
    for (; row + kRows <= task.taps_y; row += kRows) {
      depthwise_vectors<kNow, kRows, kTaps, kStride, false>(task, row, c, mask...);
    }
    for (; row < task.taps_y; ++row) {
      depthwise_vectors<kNow, 1, kTaps, kStride, false>(task, row, c, mask...);
    }
  };
  using One = std::integral_constant<int, 1>;
  Index c = 0;
  if constexpr (kVecs > 1) {
    for (; c + kVecs * kLanes <= channels; c += kVecs * kLanes) {
      all(std::integral_constant<int, kVecs>{}, c);
    }
  }
  each_vector(channels - c,
              [&](Index rest, const auto&... mask) MPSGRAD_MELT { all(One{}, c + rest, mask...); });
}

void row_by_row(const WeightGradientTask& task, Index channels) {
  // Rows of so many taps whose sums fit the registers beside the pixels.
  constexpr int kRowsOfFive = kRegisters > 16 ? 5 : 1;
  constexpr int kRowsOfSeven = kRegisters > 16 ? 3 : 1;
  const bool dense = task.source_step == task.source_tap_step;
  const bool halved = task.source_step == 2 * task.source_tap_step;
  if (task.taps_x == 3 && dense) {
    depthwise_rows<3, 3, 1>(task, channels);
  } else if (task.taps_x == 3 && halved) {
    depthwise_rows<3, 3, 2>(task, channels);
  } else if (task.taps_x == 5 && dense) {
    depthwise_rows<kRowsOfFive, 5, 1>(task, channels);
  } else if (task.taps_x == 5 && halved) {
    depthwise_rows<kRowsOfFive, 5, 2>(task, channels);
  } else if (task.taps_x == 7 && dense) {
    depthwise_rows<kRowsOfSeven, 7, 1>(task, channels);
  } else if (task.taps_x == 7 && halved) {
    depthwise_rows<kRowsOfSeven, 7, 2>(task, channels);
  } else {
    add_bias(task, 0, task.rows, channels);
    tap_by_tap(task, 0, task.rows, channels);
  }
}

// Some neighbouring pixels of each of some rows of the gradient.
struct WeightWalk {
  WalkOperands operands;
  const float* const* gradient;  // a row each
  Index offset, step;            // of the first pixel, and from one to the next
  Index next;                    // from these pixels to the next ones of the rows
  float* out;
  Index tap_step;
  float* bias;  // or null
};

// The sums of some rows of taps in one vector of channels, and the gradients that they are made
// with.
template <class Shape, int kPixels, class... Masks>
struct WalkGradients {
  static constexpr int kTapRows = Shape::kTapRows;
  static constexpr int kTaps = Shape::kTaps;

  const WeightWalk& t;
  const float* const* row;
  Index offset, ahead;
  Vec sums[kTapRows][kTaps];
  Vec bias{};
  Vec gradients[Shape::kSlots][kPixels];

  MPSGRAD_INLINE WalkGradients(const WeightWalk& walk, Index channel)
      : t(walk),
        row(walk.gradient),
        offset(walk.offset + channel),
        ahead(ahead_of(channel, walk.operands.channels, walk.next, 0)) {
#pragma GCC unroll 8
    for (int q = 0; q < kTapRows; ++q) {
#pragma GCC unroll 8
      for (int p = 0; p < kTaps; ++p) {
        sums[q][p] = Vec{};
      }
    }
  }

  MPSGRAD_INLINE void begin(const Masks&... mask) {
    const float* pixel = *row++ + offset;
#pragma GCC unroll 8
    for (int r = 0; r < kPixels; ++r) {
      __builtin_prefetch(pixel + ahead, 0, 2);
      gradients[0][r] = load(pixel, mask...);
      bias += gradients[0][r];
      pixel += t.step;
    }
  }

  template <int kPhase, int kFirst, int kLast>
  MPSGRAD_INLINE void add(const float* operands, Index operands_ahead, const Masks&... mask) {
    constexpr int kStride = Shape::kStride;
    each_column<Shape, kPixels, true>(
        t.operands, operands, operands_ahead,
        [&](int column, Vec x) MPSGRAD_MELT {
#pragma GCC unroll 8
          for (int slot = kFirst; slot <= kLast; ++slot) {
            const int q = kPhase + kStride * slot;
            if (q < kTapRows) {
#pragma GCC unroll 8
              for (int r = 0; r < kPixels; ++r) {
                if (column - r * kStride >= 0 && column - r * kStride < kTaps) {
                  sums[q][column - r * kStride] += gradients[slot][r] * x;
                }
              }
            }
          }
        },
        mask...);
  }

  MPSGRAD_INLINE void end(const Masks&...) {}
  MPSGRAD_INLINE void shift() { shift_slots<Shape, kPixels>(gradients); }

  MPSGRAD_INLINE void put(float* out, const Masks&... mask) const {
#pragma GCC unroll 8
    for (int q = 0; q < kTapRows; ++q) {
#pragma GCC unroll 8
      for (int p = 0; p < kTaps; ++p) {
        store(out, load(out, mask...) + sums[q][p], mask...);
        out += t.tap_step;
      }
    }
  }
};

struct WalkWeights {
  using Task = WeightWalk;
  [[maybe_unused]] static constexpr Index kWhole = 1;
  // As many rows of taps at a time as leave registers for the pixels.
  template <int kRows, int kSize, int kStep>
  using Part = WalkShape<kRows, kSize, kStep, kRows * kSize + 2 + kSpare>;
  template <int kSize, int kStep>
  using Shape = Part<kSize <= 3 ? kSize : 2, kSize, kStep>;

  template <class Shape, int kPixels, class... Masks>
  MPSGRAD_INLINE static void vector(const Task& t, Index c, const Masks&... mask) {
    constexpr int kTaps = Shape::kTaps;
    constexpr int kRows = Shape::kTapRows;
    const auto walk_from = [&](auto shape, int q) MPSGRAD_MELT {
      using Some = decltype(shape);
      WalkOperands operands = t.operands;
      operands.rows += q;
      WalkGradients<Some, kPixels, Masks...> gradients(t, c);
      walk_vector<Some>(operands, c, gradients, mask...);
      gradients.put(t.out + q * kTaps * t.tap_step + c, mask...);
      if (q == 0 && t.bias != nullptr) {
        float* bias = t.bias + c;
        store(bias, load(bias, mask...) + gradients.bias, mask...);
      }
    };
    for (int q = 0; q + kRows <= kTaps; q += kRows) {
      walk_from(Shape{}, q);
    }
    if constexpr (kTaps % kRows == 1) {
      walk_from(Part<1, kTaps, Shape::kStride>{}, kTaps - 1);
    }
  }
};

// Null: rows are done one by one.
const WalkFunctions<WeightWalk>* choose_walks(Index taps_y, Index taps_x, Index stride) {
  if (taps_x != taps_y) {
    return nullptr;
  }
  if (taps_x == 3) {
    return stride == 1   ? walks_of<WalkWeights, 3, 1>()
           : stride == 2 ? walks_of<WalkWeights, 3, 2>()
                         : nullptr;
  }
  if (taps_x == 5) {
    return stride == 1   ? walks_of<WalkWeights, 5, 1>()
           : stride == 2 ? walks_of<WalkWeights, 5, 2>()
                         : nullptr;
  }
  if (taps_x == 7) {
    return stride == 1   ? walks_of<WalkWeights, 7, 1>()
           : stride == 2 ? walks_of<WalkWeights, 7, 2>()
                         : nullptr;
  }
  return nullptr;
}

bool walks_down(Index taps_y, Index taps_x, Index stride) {
  return choose_walks(taps_y, taps_x, stride) != nullptr;
}

// Null: windows walk down their rows.
void (*choose_in_order(Index taps_y, Index taps_x, Index stride))(const WeightGradientTask&,
                                                                  Index) {
  if constexpr (kLineVecs == 1 && kRegisters > 16) {
    if (taps_y == 3 && taps_x == 3) {
      return stride == 1 ? weights_in_order<3, 1> : stride == 2 ? weights_in_order<3, 2> : nullptr;
    }
  }
  return nullptr;
}

// Strides leave out half of the pixels of each row that a walk passes.
bool goes_in_order(Index taps_y, Index taps_x, Index stride, bool large) {
  return foresees_rows() && (stride > 1 || large) &&
         choose_in_order(taps_y, taps_x, stride) != nullptr;
}

// Rows [first, last), each of which follows the one before.
void walk_rows(const WeightGradientTask& task, const WalkFunctions<WeightWalk>& functions,
               Index first, Index last, Index channels) {
  WeightWalk t{};
  t.operands.rows = task.source + first * task.taps_y;
  t.operands.count = last - first;
  t.operands.apart = task.taps_y;
  t.operands.tap_step = task.source_tap_step;
  t.operands.channels = channels;
  t.gradient = task.gradient + first;
  t.step = task.gradient_step;
  t.out = task.out;
  t.tap_step = task.group_gradients;
  t.bias = task.bias;
  const Index tiles = ceil_div(task.width, functions.pixels);
  for (Index i = 0; i < tiles; ++i) {
    const Index x = i * task.width / tiles;
    const Index pixels = (i + 1) * task.width / tiles - x;
    const Index source = x * task.source_step;
    t.operands.offset = task.source_offset + source;
    t.operands.first_column = columns_before(task.first_element - source, task.source_tap_step);
    t.operands.last_column = columns_before(task.last_element - source, task.source_tap_step);
    t.operands.next = pixels * task.source_step;
    t.offset = x * task.gradient_step;
    t.next = pixels * task.gradient_step;
    functions.of[pixels](t);
  }
}

// Of rows as they lie in memory, with what lies outside left out.
void walk_down(const WeightGradientTask& task, const WalkFunctions<WeightWalk>& functions,
               Index channels) {
  const Index stride = task.source_step / task.source_tap_step;
  for (Index row = 0; row < task.rows;) {
    const Index rows = rows_that_follow(task.source, row, task.rows, task.taps_y, stride);
    if (rows >= functions.least_rows) {
      walk_rows(task, functions, row, row + rows, channels);
    } else {
      add_bias(task, row, row + rows, channels);
      tap_by_tap(task, row, row + rows, channels);
    }
    row += rows;
  }
}

void depthwise(const WeightGradientTask& task) {
  const Index channels = task.last_gradient - task.first_gradient;
  if (task.walks) {
    const Index stride = task.source_step / task.source_tap_step;
    if (task.in_order) {
      choose_in_order(task.taps_y, task.taps_x, stride)(task, channels);
    } else {
      walk_down(task, *choose_walks(task.taps_y, task.taps_x, stride), channels);
    }
  } else {
    row_by_row(task, channels);
  }
}

}  // namespace

const DepthwiseGradientLoops depthwise_gradient_loops{walks_down, goes_in_order, depthwise};

}  // namespace mpsgrad::MPSGRAD_ISA
