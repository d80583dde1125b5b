// How loops for one channel at a time pass down rows of pixels: a row of operands takes part in
// every row of results whose windows it lies in at once, so that it is loaded once. What is kept of
// those rows of results is the loop's own: their sums, or the gradients with respect to them.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// A row of a task that reads float32, or float16.
template <class Element>
MPSGRAD_INLINE const Element* row_of(const float* row) {
  return reinterpret_cast<const Element*>(row);
}

// The operands of some neighbouring results of each of some rows, where each row reads again what
// the row before has read, but for its last operands.
template <class Kind>
struct WalkOperandsOf {
  using Element = Kind;
  const float* const* rows;         // of each tap row: what it reads for the first result, or null
  Index count, apart;               // rows of results, and from one to the next in `rows`
  Index offset, tap_step;           // of the first result of these; from one tap to the next
  Index first_column, last_column;  // what is not zeros, from `offset` on, in taps
  Index next;                       // from these operands to those of the next results of the rows
  Index channels;
};
using WalkOperands = WalkOperandsOf<float>;

inline constexpr int kWalkPixels = 8;  // of a tile, at most

// Windows of kHeight rows of kWidth taps, kStep taps apart both ways. Of kRegisters, kUsed are
// taken and the others keep pixels of rows of results, of kSlots at a time.
template <int kHeight, int kWidth, int kStep, int kUsed>
struct WalkShape {
  static constexpr int kTapRows = kHeight;
  static constexpr int kTaps = kWidth;
  static constexpr int kStride = kStep;
  static constexpr int kSlots = (kTapRows + kStride - 1) / kStride;
  static constexpr int kWidest = (kRegisters - kUsed) / kSlots;
  static constexpr int kPixels = kWidest < kWalkPixels ? kWidest : kWalkPixels;
};

// From a channel of a tile's pixels to what is asked for meanwhile: later channels, or the first
// ones of the next tile, which begins `next` elements after this one, and of its columns those from
// `read` elements on. 0, which asks for what is read anyhow, where nothing had better be asked for.
MPSGRAD_INLINE Index ahead_of(Index channel, Index channels, Index next, Index read) {
  constexpr Index kFloatsAhead = 64;
  if (foresees_rows()) {
    return 0;
  }
  return read + (channel + kFloatsAhead < channels
                     ? kFloatsAhead
                     : next + kFloatsAhead - larger(channels, kFloatsAhead));
}

// How many columns begin before an element.
MPSGRAD_INLINE Index columns_before(Index element, Index tap_step) {
  return element <= 0 ? 0 : ceil_div(element, tap_step);
}

// Calls visit(column, x) for the operands of a row that kPixels results read, and asks for those
// `ahead` of them if kAsks.
template <class Shape, int kPixels, bool kAsks, class Element, class Visit, class... Masks>
MPSGRAD_INLINE void each_column(const WalkOperandsOf<Element>& t, const Element* row, Index ahead,
                                const Visit& visit, const Masks&... mask) {
  constexpr int kStride = Shape::kStride;
  const Index tap_step = t.tap_step;
  const auto columns = static_cast<std::uint64_t>(t.last_column - t.first_column);
#pragma GCC unroll 32
  for (int column = 0; column < (kPixels - 1) * kStride + Shape::kTaps; ++column) {
    if (static_cast<std::uint64_t>(column - t.first_column) < columns) {
      if (kAsks && column < kPixels * kStride) {
        __builtin_prefetch(row + ahead, 0, 2);
      }
      visit(column, load(row, mask...));
    }
    row += tap_step;
  }
}

// What is kept of the rows of results becomes that of the rows before.
template <class Shape, int kPixels>
MPSGRAD_INLINE void shift_slots(Vec (&kept)[Shape::kSlots][kPixels]) {
#pragma GCC unroll 8
  for (int slot = Shape::kSlots - 1; slot > 0; --slot) {
#pragma GCC unroll 8
    for (int r = 0; r < kPixels; ++r) {
      kept[slot][r] = kept[slot - 1][r];
    }
  }
}

// Down all rows, at least Shape::kSlots - 1, in the vector of channels that begins at `c`, with
//   results.begin(mask...)  a row of results begins: slot 0
//   results.add<kPhase, kFirst, kLast>(operands, ahead, mask...)
//                           operands of the slots kFirst to kLast, for tap kPhase of slot 0 and
//                           Shape::kStride more of each slot after it, as far as there are tap rows
//   results.end(mask...)    the row of results in the last slot is whole
//   results.shift()         each slot becomes the next
template <class Shape, class Element, class Results, class... Masks>
MPSGRAD_INLINE void walk_vector(const WalkOperandsOf<Element>& t, Index c, Results& results,
                                const Masks&... mask) {
  constexpr int kTapRows = Shape::kTapRows;
  constexpr int kStride = Shape::kStride;
  constexpr int kSlots = Shape::kSlots;
  // Columns that the tile to the left has not read.
  const Index ahead = ahead_of(c, t.channels, t.next, (Shape::kTaps - kStride) * t.tap_step);
  // The rows of operands where a row of results begins, or would begin.
  const auto step = [&](const float* const* rows, auto first, auto last) MPSGRAD_MELT {
    constexpr int kFirst = decltype(first)::value;
    constexpr int kLast = decltype(last)::value;
    if constexpr (kFirst == 0) {
      results.begin(mask...);
    }
    const auto phase = [&](auto number) MPSGRAD_MELT {
      constexpr int kPhase = decltype(number)::value;
      if constexpr (kPhase + kStride * kFirst < kTapRows) {
        if (rows[kPhase] != nullptr) {
          results.template add<kPhase, kFirst, kLast>(row_of<Element>(rows[kPhase]) + t.offset + c,
                                                      ahead, mask...);
        }
      }
    };
    phase(std::integral_constant<int, 0>{});
    if constexpr (kStride == 2) {
      phase(std::integral_constant<int, 1>{});
    }
    if constexpr (kLast == kSlots - 1) {
      results.end(mask...);
    }
    results.shift();
  };
  constexpr std::make_integer_sequence<int, kSlots - 1> kEnds;
  const float* const* rows = t.rows;
  const auto begin = [&]<int... kBegun>(std::integer_sequence<int, kBegun...>) MPSGRAD_MELT {
    (step(rows + kBegun * t.apart, std::integral_constant<int, 0>{},
          std::integral_constant<int, kBegun>{}),
     ...);
  };
  begin(kEnds);
  const float* const* const last = rows + (t.count - 1) * t.apart;
  for (rows += (kSlots - 1) * t.apart; rows <= last; rows += t.apart) {
    step(rows, std::integral_constant<int, 0>{}, std::integral_constant<int, kSlots - 1>{});
  }
  const auto end = [&]<int... kEnded>(std::integer_sequence<int, kEnded...>) MPSGRAD_MELT {
    (step(last + kStride * (kEnded + 1), std::integral_constant<int, kEnded + 1>{},
          std::integral_constant<int, kSlots - 1>{}),
     ...);
  };
  end(kEnds);
}

template <class Task>
struct WalkFunctions {
  Index pixels = 0;                                    // of a tile, at most
  Index least_rows = 0;                                // that can be done at once
  void (*of[kWalkPixels + 1])(const Task& task) = {};  // by pixels of the tile
};

// Calls body(channel, mask...) for every vector of channels, which are a multiple of kWhole.
template <Index kWhole = 1, class Body>
MPSGRAD_INLINE void each_vector(Index channels, const Body& body) {
  Index c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    body(c);
  }
  if constexpr (kWhole % kLanes != 0) {
    if (c < channels) {
      body(c, first_lanes(channels - c));
    }
  }
}
template <class Element>
inline constexpr Index kAtOnce = std::is_same_v<Element, Half> ? kHalvesAtOnce : 1;

// Down all rows of a tile, in one vector of channels after the other.
template <class Walk, class Shape, int kPixels>
void walk_tile(const typename Walk::Task& task) {
  const typename Walk::Task t = task;
  each_vector<Walk::kWhole>(t.operands.channels, [&](Index c, const auto&... mask) MPSGRAD_MELT {
    Walk::template vector<Shape, kPixels>(t, c, mask...);
  });
}

template <class Walk, class Shape, int... kBefore>
constexpr WalkFunctions<typename Walk::Task> make_walks(std::integer_sequence<int, kBefore...>) {
  return {Shape::kPixels, Shape::kSlots - 1, {nullptr, walk_tile<Walk, Shape, kBefore + 1>...}};
}

// Walk::Shape of windows of so many taps, with Walk::vector(task, c, mask...) for tiles of every
// width that it has, over a multiple of Walk::kWhole channels. Null: no gain over row by row, for
// vectors shorter than a line would load each line several times, and with 16 registers too few
// pixels are side by side.
template <class Walk, int kSize, int kStep>
const WalkFunctions<typename Walk::Task>* walks_of() {
  if constexpr (kLineVecs > 1 || kRegisters <= 16) {
    return nullptr;
  } else {
    using Shape = typename Walk::template Shape<kSize, kStep>;
    static constexpr auto kFunctions =
        make_walks<Walk, Shape>(std::make_integer_sequence<int, Shape::kPixels>{});
    return &kFunctions;
  }
}

// How many rows from `row` on read again what the row before has read, but for its last operands.
inline Index rows_that_follow(const float* const* operands, Index row, Index rows, Index taps_y,
                              Index stride) {
  const auto follows = [&](Index r) {
    const float* const* operand = operands + r * taps_y;
    for (Index q = 0; q + stride < taps_y; ++q) {
      if (operand[q] != operand[q - taps_y + stride]) {
        return false;
      }
    }
    return true;
  };
  Index count = 1;
  while (row + count < rows && follows(row + count)) {
    ++count;
  }
  return count;
}

}  // namespace mpsgrad::MPSGRAD_ISA
