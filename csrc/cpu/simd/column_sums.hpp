// Sums over the rows of a run, column by column, in double; and blocks of a run's columns for loops
// that use an array again for each row.
#pragma once

#include "cpu/simd/lanes.hpp"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace mpsgrad::MPSGRAD_ISA {

// So many sums, each of every column, stay in a first-level cache; a row of more columns is read
// part by part.
MPSGRAD_INLINE std::int64_t columns_of_sums(int sums) {
  return pauses_at_pages() ? 4096 / sums : 512;
}
// Longer runs are mostly parts of images past the caches, of which two places are read faster than
// four.
inline constexpr std::int64_t kLongRun = 131072;
// Values of a run of images that second-level caches do not hold, or more.
inline constexpr std::int64_t kPastCaches = 65536;

// Calls body(rows, row, apart, begin, end) for every row of the run, `step` values from the one
// before, and blocks [begin, end) of `columns` of its places: for kTogether rows at once, which are
// `row` and those `apart`, 2 * `apart`... values after it, and for what is left one by one. Rows
// that are worked on together lie far apart: each is then the next of a sequence that processors
// foresee, where blocks of neighbouring rows would be read in an order that they do not.
template <int kTogether, class Body>
MPSGRAD_INLINE void for_rows(std::int64_t count, std::int64_t tile, std::int64_t step,
                             std::int64_t columns, const Body& body) {
  const std::int64_t whole = count < tile ? 0 : (count - tile) / step + 1;
  const std::int64_t apart = whole / kTogether * step;
  for (std::int64_t begin = 0; begin < tile; begin += columns) {
    const std::int64_t end = begin + columns < tile ? begin + columns : tile;
    for (std::int64_t row = 0; row < apart; row += step) {
      body(Exactly<kTogether>{}, row, apart, begin, end);
    }
    for (std::int64_t row = kTogether * apart; row + begin < count; row += step) {
      body(Exactly<1>{}, row, 0, begin, count - row < end ? count - row : end);
    }
  }
}

// One place of a tile, or several neighbouring ones, in double.
struct OneDouble {
  static constexpr std::int64_t kPlaces = 1;
  using Numbers = double;
  using Singles = float;
  MPSGRAD_INLINE double widened(float value) const { return static_cast<double>(value); }
  template <class Element>
  MPSGRAD_INLINE double widened(const Element* from) const {
    return widened(load<Singles>(from));
  }
};
template <int kCount>
struct SeveralDoubles {
  static constexpr std::int64_t kPlaces = kCount;
  typedef double Numbers __attribute__((vector_size(kCount * 8)));
  using Singles = Floats<kCount>;
  MPSGRAD_INLINE Numbers widened(Singles values) const {
    // GCC makes two conversions and a shuffle of the last form.
#if defined(__AVX512F__)
    if constexpr (kCount == 8) {
      return reinterpret_cast<Numbers>(
          _mm512_maskz_cvtps_pd(0xff, reinterpret_cast<__m256>(values)));
    }
#endif
#if defined(__AVX__)
    if constexpr (kCount == 4) {
      return reinterpret_cast<Numbers>(_mm256_cvtps_pd(reinterpret_cast<__m128>(values)));
    }
#endif
    return __builtin_convertvector(values, Numbers);
  }
  template <class Element>
  MPSGRAD_INLINE Numbers widened(const Element* from) const {
    return widened(load<Singles>(from));
  }
};

// sum + value, as a multiply-add where there is one: processors that add and convert with the same
// units, as Zen 4 does, multiply with others.
template <class Numbers>
MPSGRAD_INLINE Numbers added(Numbers sum, Numbers value) {
#if defined(__FMA__)
  return value * opaque(Numbers{} + 1.0) + sum;
#else
  return sum + value;
#endif
}

// Adds to four sums: of a gradient, of its product with a source less a shift, of that difference
// and of its square.
template <class Block, class Element, class Numbers>
MPSGRAD_INLINE void add_gradient_moments(Block block, const Element* g, const Element* x,
                                         const double* shift, Numbers (&terms)[4]) {
  const auto gradient = block.widened(g);
  const auto d = block.widened(x) - load<Numbers>(shift);
  terms[0] = added(terms[0], gradient);
  terms[1] += gradient * d;
  terms[2] = added(terms[2], d);
  terms[3] += d * d;
}

// Calls add(block, i, j, terms) for places [begin, end) of some rows, each value i of a row and its
// place j, which adds to terms[k] what belongs to sums[k]; their sums are written back once for all
// rows, which are `row` and those `apart` from each other. ask(rows, j) comes before every few
// places.
template <int kSums, class Several, class Rows, class Add, class Ask>
MPSGRAD_INLINE void add_rows(Several several, Rows rows, std::int64_t row, std::int64_t apart,
                             std::int64_t begin, std::int64_t end, double* const (&sums)[kSums],
                             const Add& add, const Ask& ask) {
  constexpr std::int64_t kCount = rows;
  const auto add_places = [&](auto block, std::int64_t j) MPSGRAD_MELT {
    using Numbers = typename decltype(block)::Numbers;
    Numbers terms[kSums];
    for (int k = 0; k < kSums; ++k) {
      terms[k] = load<Numbers>(sums[k] + j);
    }
    for (std::int64_t r = 0; r < kCount; ++r) {
      add(block, row + r * apart + j, j, terms);
    }
    for (int k = 0; k < kSums; ++k) {
      store(sums[k] + j, terms[k]);
    }
  };
  std::int64_t j = begin;
  for (; j + kWidest <= end; j += kWidest) {
    ask(rows, j);
    for (std::int64_t part = 0; part < kWidest; part += Several::kPlaces) {
      add_places(several, j + part);
    }
  }
  for (; j < end; ++j) {
    add_places(OneDouble{}, j);
  }
}

// Adds up the rows of a run of which parts alone are read at a time, for their sums would not stay
// in a first-level cache: band by band of neighbouring rows that a second-level one holds, each of
// which asks for the next in the order in which that lies. Parts of rows past the caches are read
// at less than half the speed.
template <int kSums, int kTogether, class Several, class Add, class... Sources>
MPSGRAD_INLINE void add_bands(Several several, std::int64_t count, std::int64_t tile,
                              double* const (&sums)[kSums], const Add& add, const Sources*... x) {
  constexpr std::int64_t kBand = 16384;  // values
  const std::int64_t columns = columns_of_sums(kSums);
  const std::int64_t rows = count / tile;
  const std::int64_t height = kBand / tile > kTogether ? kBand / tile : kTogether;
  const auto nothing = [](auto, std::int64_t) {};
  for (std::int64_t first = 0; first < rows; first += height) {
    const std::int64_t past = smaller(first + height, rows);
    std::int64_t next = past * tile;
    const auto ask = [&](auto some, std::int64_t) MPSGRAD_MELT {
      for (std::int64_t r = 0; r < some; ++r, next += kWidest) {
        (request_later(x, next), ...);
      }
    };
    for (std::int64_t begin = 0; begin < tile; begin += columns) {
      const std::int64_t end = smaller(begin + columns, tile);
      std::int64_t row = first;
      for (; row + kTogether <= past; row += kTogether) {
        add_rows(several, Exactly<kTogether>{}, row * tile, tile, begin, end, sums, add, ask);
      }
      for (; row < past; ++row) {
        add_rows(several, Exactly<1>{}, row * tile, 0, begin, end, sums, add, ask);
      }
    }
  }
  add_rows(several, Exactly<1>{}, rows * tile, 0, 0, count - rows * tile, sums, add, nothing);
}

// Adds up the rows of a run. kTogether rows are joined before their sums are written back: of two
// arrays not more than two, for processors foresee few sequences at a time. `several`: a
// SeveralDoubles. `x`: what is read, which is asked for ahead where that pays.
template <int kSums, int kTogether, class Several, class Add, class... Sources>
MPSGRAD_INLINE void add_tiles_by(Several several, std::int64_t count, std::int64_t tile,
                                 std::int64_t step, double* const (&sums)[kSums], const Add& add,
                                 const Sources*... x) {
  constexpr std::int64_t kAhead = 2048;  // bytes
  if constexpr (sizeof...(x) > 0) {
    if (step == tile && tile > columns_of_sums(kSums) && count > kPastCaches) {
      return add_bands<kSums, kTogether>(several, count, tile, sums, add, x...);
    }
  }
  const bool asks = sizeof...(x) > 0 && pauses_at_pages();
  for_rows<kTogether>(
      count, tile, step, columns_of_sums(kSums),
      [&](auto rows, std::int64_t row, std::int64_t apart, std::int64_t begin, std::int64_t end) {
        const auto ask = [&](auto some, std::int64_t j) MPSGRAD_MELT {
          for (std::int64_t r = 0; asks && r < some; ++r) {
            (request(x, row + r * apart + j + kAhead / std::int64_t{sizeof(*x)}), ...);
          }
        };
        add_rows(several, rows, row, apart, begin, end, sums, add, ask);
      });
}

// The same in another order: the sums of a strip of columns stay in registers for a block of rows,
// and the next strip follows. Which lines that reads no processor foresees, so they are asked for,
// a block ahead and in the order in which they lie.
template <int kSums, class Add, class... Sources>
MPSGRAD_INLINE void add_strips(std::int64_t count, std::int64_t tile, std::int64_t step,
                               double* const (&sums)[kSums], const Add& add, const Sources*... x) {
  using Several = SeveralDoubles<kWidest / 2>;
  constexpr std::int64_t kTogether = 4;
  constexpr std::int64_t kBlock = 2048;  // values
  constexpr std::int64_t kLeastRows = 8;
  const std::int64_t rows = count < tile ? 0 : (count - tile) / step + 1;
  const std::int64_t height = kBlock / tile > kLeastRows ? kBlock / tile : kLeastRows;
  for (std::int64_t first = 0; first < rows; first += height) {
    const std::int64_t past = first + height < rows ? first + height : rows;
    std::int64_t next_row = past * step;
    std::int64_t next_column = 0;
    const auto ask = [&](std::int64_t columns) MPSGRAD_MELT {
      (request_later(x, next_row + next_column), ...);
      next_column += columns;
      const bool ends = next_column >= tile;
      next_column = ends ? 0 : next_column;
      next_row += ends ? step : 0;
    };
    const auto add_strip = [&](auto block, auto vectors, std::int64_t j) MPSGRAD_MELT {
      using Numbers = typename decltype(block)::Numbers;
      constexpr std::int64_t kPlaces = decltype(block)::kPlaces;
      constexpr std::int64_t kVectors = vectors;
      Numbers terms[kVectors][kSums];
      for (std::int64_t v = 0; v < kVectors; ++v) {
        for (int k = 0; k < kSums; ++k) {
          terms[v][k] = load<Numbers>(sums[k] + j + v * kPlaces);
        }
      }
      for (std::int64_t row = first * step; row < past * step; row += step) {
        ask(kVectors * kPlaces);
        for (std::int64_t v = 0; v < kVectors; ++v) {
          const std::int64_t place = j + v * kPlaces;
          add(block, row + place, place, terms[v]);
        }
      }
      for (std::int64_t v = 0; v < kVectors; ++v) {
        for (int k = 0; k < kSums; ++k) {
          store(sums[k] + j + v * kPlaces, terms[v][k]);
        }
      }
    };
    std::int64_t j = 0;
    for (; j + kTogether * Several::kPlaces <= tile; j += kTogether * Several::kPlaces) {
      add_strip(Several{}, Exactly<kTogether>{}, j);
    }
    for (; j + Several::kPlaces <= tile; j += Several::kPlaces) {
      add_strip(Several{}, Exactly<1>{}, j);
    }
    for (; j < tile; ++j) {
      add_strip(OneDouble{}, Exactly<1>{}, j);
    }
  }
  const std::int64_t rest = rows * step;  // less than a row
  add_tiles_by<kSums, 1>(Several{}, count - rest, tile, step, sums,
                         [&](auto block, std::int64_t i, std::int64_t j, auto& terms)
                             MPSGRAD_MELT { add(block, rest + i, j, terms); });
}

// The same in the way that the processor adds fastest, for terms that are mostly conversions. Where
// it splits vectors of AVX-512, a whole one of doubles takes it more than twice as long to convert
// to as halves. That of float16 is made of as many numbers as a load converts, and has strips: to
// load and store sums for every few rows would take as long as the conversions.
template <int kSums, int kTogether, class Add, class Element, class... Elements>
MPSGRAD_INLINE void add_tiles(std::int64_t count, std::int64_t tile, std::int64_t step,
                              double* const (&sums)[kSums], const Add& add, const Element* x,
                              const Elements*... others) {
  if constexpr (kWidest >= 16) {
    if (splits_wide_vectors()) {
      if constexpr (sizeof(Element) < sizeof(float)) {
        return add_strips(count, tile, step, sums, add, x, others...);
      } else {
        return add_tiles_by<kSums, kTogether>(SeveralDoubles<kWidest / 4>{}, count, tile, step,
                                              sums, add, x, others...);
      }
    }
  }
  add_tiles_by<kSums, kTogether>(SeveralDoubles<kWidest / 2>{}, count, tile, step, sums, add, x,
                                 others...);
}

}  // namespace mpsgrad::MPSGRAD_ISA
