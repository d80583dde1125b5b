// Rows of numbers, such as the channels of a pixel: results for each number, and what joins those
// of a row to one number.
#pragma once

#include <utility>

#include "cpu/simd/lanes.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// Rows of few vectors are known to have so many, which then stay in registers between one loop over
// a row and the next; of others kVectors is 0. Calls body(lanes, vectors) for a row of `count`.
template <class Body>
MPSGRAD_INLINE void with_vectors_for(std::int64_t count, const Body& body) {
  with_lanes_for(count, [&](auto lanes) MPSGRAD_MELT {
    if constexpr (lanes > 1) {
      switch ((count + lanes - 1) / lanes) {
        case 1:
          return body(lanes, Exactly<1>{});
        case 2:
          return body(lanes, Exactly<2>{});
        case 3:
          return body(lanes, Exactly<3>{});
        case 4:
          return body(lanes, Exactly<4>{});
      }
    }
    body(lanes, Exactly<0>{});
  });
}

// Where vector k of kVectors begins; the last reaches back over the one before instead of leaving a
// rest.
template <int kLanes, int kVectors>
MPSGRAD_INLINE std::int64_t begin_of(int k, std::int64_t count) {
  return k < kVectors - 1 ? k * kLanes : count - kLanes;
}

// Writes value(first), kLanes results each, over a row of `count` >= kLanes elements. The last
// vector reaches back over the one before, and is found before anything is written: a value may
// read what it replaces.
template <int kLanes, int kVectors = 0, class Element, class Value>
MPSGRAD_INLINE void fill_row(std::int64_t count, Element* out, const Value& value) {
  if constexpr (kVectors > 0) {
    Floats<kLanes> values[kVectors];
    for (int k = 0; k < kVectors; ++k) {
      values[k] = value(begin_of<kLanes, kVectors>(k, count));
    }
    for (int k = 0; k < kVectors; ++k) {
      store(out + begin_of<kLanes, kVectors>(k, count), values[k]);
    }
    return;
  }
  const std::int64_t last = count - kLanes;
  const Floats<kLanes> end = value(last);
  for (std::int64_t i = 0; i < last; i += kLanes) {
    store(out + i, value(i));
  }
  store(out + last, end);
}

// What joins two numbers or vectors of them also says what joins without a trace.
struct Total {
  static constexpr float kNeutral = 0.0F;
  template <class V>
  MPSGRAD_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};

// Whether a lane's number is below `count`.
template <int kLanes>
MPSGRAD_INLINE auto lanes_below(std::int64_t count) {
  Ints<kLanes> lane = {};
  if constexpr (kLanes > 1) {
    for (int k = 0; k < kLanes; ++k) {
      lane[k] = k;
    }
  }
  return lane < Ints<kLanes>{} + static_cast<std::int32_t>(count);
}

template <int kLanes, class Join>
MPSGRAD_INLINE float join_lanes(Floats<kLanes> v, const Join& join) {
  if constexpr (kLanes == 16) {
    return join_lanes<8>(join(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)),
                         join);
  } else if constexpr (kLanes == 8) {
    return join_lanes<4>(
        join(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7)),
        join);
  } else if constexpr (kLanes == 4) {
    const Floats<4> pairs = join(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
    return join(pairs, __builtin_shufflevector(pairs, pairs, 1, 0, 3, 2))[0];
  } else {
    return v;
  }
}

// Joins term(first), kLanes terms each, over a row of `count` >= kLanes elements, lane by lane, in
// an order that depends on `count` alone.
template <int kLanes, int kVectors = 0, class Term, class Join>
MPSGRAD_INLINE Floats<kLanes> fold_lanes(std::int64_t count, const Term& term, const Join& join) {
  using V = Floats<kLanes>;
  if constexpr (kVectors > 0) {
    V total = term(0);
    for (int k = 1; k < kVectors; ++k) {
      const V next = term(begin_of<kLanes, kVectors>(k, count));
      const bool is_last = k == kVectors - 1;
      const auto is_joined = lanes_below<kLanes>(is_last ? kVectors * kLanes - count : 0);
      total = join(total, is_joined ? V{} + Join::kNeutral : next);
    }
    return total;
  }
  constexpr int kChains = 4;  // so that a step need not wait for the one before
  V total = V{} + Join::kNeutral;
  std::int64_t i = 0;
  if (count >= kChains * kLanes) {
    V chains[kChains] = {total, total, total, total};
    for (; i + kChains * kLanes <= count; i += kChains * kLanes) {
      for (int k = 0; k < kChains; ++k) {
        chains[k] = join(chains[k], term(i + k * kLanes));
      }
    }
    total = join(join(chains[0], chains[1]), join(chains[2], chains[3]));
  }
  for (; i + kLanes <= count; i += kLanes) {
    total = join(total, term(i));
  }
  if (i < count) {  // the last vector reaches back over lanes that have been joined
    const V end = term(count - kLanes);
    total = join(total, lanes_below<kLanes>(i + kLanes - count) ? V{} + Join::kNeutral : end);
  }
  return total;
}

// The same, and the lanes joined.
template <int kLanes, int kVectors = 0, class Term, class Join>
MPSGRAD_INLINE float fold_row(std::int64_t count, const Term& term, const Join& join) {
  return join_lanes<kLanes>(fold_lanes<kLanes, kVectors>(count, term, join), join);
}

// ---- Many rows: the lanes of kLanes vectors are joined at once, which takes two shuffles for each
// but the first, where the lanes of one take as many as it can be halved.

// Two vectors hold kWidth lanes of each of their rows. Where in the two, one after the other, the
// lanes lie that become those of their rows' first halves, or, kHalf being 1, of the second.
template <int kLanes, int kWidth, int kHalf>
struct HalvesOfRows {
  static constexpr int place(int lane) {
    const int quarter = lane / 4 * 4, vector = lane % 4 / 2 * kLanes, of_two = lane % 2;
    if constexpr (kWidth == 4) {
      return vector + quarter + 2 * kHalf + of_two;
    } else if constexpr (kWidth == 2) {
      return vector + quarter + 2 * of_two + kHalf;
    } else {
      return lane / (kWidth / 2) * kWidth + kHalf * (kWidth / 2) + lane % (kWidth / 2);
    }
  }
};

template <class Halves, class V, int... kLane>
MPSGRAD_INLINE V halves_of(V a, V b, std::integer_sequence<int, kLane...> /*lanes*/) {
  return __builtin_shufflevector(a, b, Halves::place(kLane)...);
}

// Joins the lanes of kRows vectors, from `first` on; of kLanes of them the row of each goes to the
// lane of its number, in the order of join_lanes().
template <int kLanes, int kRows, class Join>
MPSGRAD_INLINE Floats<kLanes> join_rows(const Floats<kLanes>* rows, int first, const Join& join) {
  if constexpr (kRows == 1) {
    return rows[first % (kLanes / 4) * 4 + first / (kLanes / 4)];
  } else {
    constexpr int kWidth = 2 * kLanes / kRows;
    constexpr std::make_integer_sequence<int, kLanes> kEach;
    const auto a = join_rows<kLanes, kRows / 2>(rows, first, join);
    const auto b = join_rows<kLanes, kRows / 2>(rows, first + kRows / 2, join);
    return join(halves_of<HalvesOfRows<kLanes, kWidth, 0>>(a, b, kEach),
                halves_of<HalvesOfRows<kLanes, kWidth, 1>>(a, b, kEach));
  }
}

// ---- Rows of fewer than kShortRow vectors are worked on together, kLanes of them, vector by
// vector: loops over the vectors of a single one take longer than what they do.

inline constexpr std::int64_t kShortRow = 4;

// fold_lanes() of kLanes short rows, of which term_of(row)(first) has the terms.
template <int kLanes, class TermOf, class Join>
MPSGRAD_INLINE void fold_short_rows(std::int64_t row, std::int64_t count, const TermOf& term_of,
                                    const Join& join, Floats<kLanes> (&totals)[kLanes]) {
  const auto nothing = Floats<kLanes>{} + Join::kNeutral;
  const auto each = [&](std::int64_t i, const auto& body) MPSGRAD_MELT {
#pragma GCC unroll 16
    for (int k = 0; k < kLanes; ++k) {
      body(totals[k], term_of(row + k)(i));
    }
  };
  each(0, [=](auto& total, auto v) MPSGRAD_MELT { total = join(nothing, v); });
  std::int64_t i = kLanes;
  for (; i + kLanes <= count; i += kLanes) {
    each(i, [=](auto& total, auto v) MPSGRAD_MELT { total = join(total, v); });
  }
  if (i < count) {
    const auto is_joined = lanes_below<kLanes>(i + kLanes - count);
    each(count - kLanes,
         [=](auto& total, auto v) MPSGRAD_MELT { total = join(total, is_joined ? nothing : v); });
  }
}

// Calls then(row, fold_row() of term_of(row)); of short rows it is called after kLanes of them have
// been read. The numbers have the same bits.
template <int kLanes, class TermOf, class Join, class Then>
MPSGRAD_INLINE void fold_rows(std::int64_t rows, std::int64_t count, const TermOf& term_of,
                              const Join& join, const Then& then) {
  std::int64_t row = 0;
  if constexpr (kLanes > 1) {
    if (count < kShortRow * kLanes) {
      for (; row + kLanes <= rows; row += kLanes) {
        Floats<kLanes> totals[kLanes];
        fold_short_rows<kLanes>(row, count, term_of, join, totals);
        float joined[kLanes];
        store(joined, join_rows<kLanes, kLanes>(totals, 0, join));
        for (int k = 0; k < kLanes; ++k) {
          then(row + k, joined[k]);
        }
      }
    }
  }
  for (; row < rows; ++row) {
    then(row, fold_row<kLanes>(count, term_of(row), join));
  }
}

// The terms of rows that are their elements.
template <int kLanes, class Element>
MPSGRAD_INLINE auto elements_of_rows(const Element* x, std::int64_t channels) {
  return [=](std::int64_t row) MPSGRAD_MELT {
    return [from = x + row * channels](std::int64_t c)
               MPSGRAD_MELT { return load<Floats<kLanes>>(from + c); };
  };
}

}  // namespace mpsgrad::MPSGRAD_ISA
