// Sums over the rows of a run, column by column, in double; and blocks of a run's columns for loops
// that use an array of coefficients or sums again for each row.
#pragma once

#include "cpu/simd/lanes.hpp"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace mpsgrad::MPSGRAD_ISA {

// Coefficients and sums of so many channels stay in a first-level cache while a run goes by.
inline constexpr std::int64_t kColumns = 512;
// So many rows of a run are joined before their sums are written back, and so far ahead of a row
// its successor is asked for.
inline constexpr std::int64_t kRows = 4;

template <int kCount>
struct Rows {
  static constexpr int count = kCount;
};

// Calls body(Rows, row, begin, end) for every row of the run, `step` values from the one before,
// and blocks [begin, end) of its places: for kTogether rows at once, of which `row` is the first,
// and for what is left one by one.
template <int kTogether, class Body>
MPSGRAD_INLINE void for_rows(std::int64_t count, std::int64_t tile, std::int64_t step,
                             const Body& body) {
  for (std::int64_t begin = 0; begin < tile; begin += kColumns) {
    const std::int64_t end = begin + kColumns < tile ? begin + kColumns : tile;
    std::int64_t row = 0;
    for (; row + (kTogether - 1) * step + end <= count; row += kTogether * step) {
      body(Rows<kTogether>{}, row, begin, end);
    }
    for (; row + begin < count; row += step) {
      body(Rows<1>{}, row, begin, count - row < end ? count - row : end);
    }
  }
}

inline constexpr int kDoubles = kWidest / 2;
typedef double Doubles __attribute__((vector_size(kDoubles * 8)));

// One place of a tile, or several neighbouring ones, in double.
struct OneDouble {
  using Numbers = double;
  using Singles = float;
  MPSGRAD_INLINE double widened(float value) const { return static_cast<double>(value); }
  template <class Element>
  MPSGRAD_INLINE double widened(const Element* from) const {
    return widened(load<Singles>(from));
  }
};
struct SeveralDoubles {
  using Numbers = Doubles;
  using Singles = Floats<kDoubles>;
  MPSGRAD_INLINE Doubles widened(Singles values) const {
#if defined(__AVX512F__)  // GCC makes two conversions and a shuffle of the other form
    return _mm512_maskz_cvtps_pd(0xff, reinterpret_cast<__m256>(values));
#else
    return __builtin_convertvector(values, Doubles);
#endif
  }
  template <class Element>
  MPSGRAD_INLINE Doubles widened(const Element* from) const {
    return widened(load<Singles>(from));
  }
};

// Asks for what will be read at place i.
template <class Element>
MPSGRAD_INLINE void request_at(const Element* source, std::int64_t i) {
  request(source, i);
}
template <class Source>
MPSGRAD_INLINE void request_at(const Source& source, std::int64_t i) {
  source.request_at(i);
}

// Calls add(block, i, j, terms) for each value i of a run and its place j in a tile, which adds to
// terms[k] what belongs to sums[k].
template <int kSums, class Add, class... Sources>
MPSGRAD_INLINE void add_tiles(std::int64_t count, std::int64_t tile, std::int64_t step,
                              double* const (&sums)[kSums], const Add& add,
                              const Sources&... sources) {
  for_rows<kRows>(count, tile, step,
                  [&](auto rows, std::int64_t row, std::int64_t begin, std::int64_t end) {
                    constexpr int kCount = decltype(rows)::count;
                    const auto add_places = [&](auto block, std::int64_t j) {
                      typename decltype(block)::Numbers terms[kSums];
                      for (int k = 0; k < kSums; ++k) {
                        terms[k] = load<typename decltype(block)::Numbers>(sums[k] + j);
                      }
                      for (int r = 0; r < kCount; ++r) {
                        add(block, row + r * step + j, j, terms);
                      }
                      for (int k = 0; k < kSums; ++k) {
                        store(sums[k] + j, terms[k]);
                      }
                    };
                    std::int64_t j = begin;
                    for (; j + kWidest <= end; j += kWidest) {
                      for (int r = 0; r < kCount; ++r) {
                        (request_at(sources, row + (kRows + r) * step + j), ...);
                      }
                      add_places(SeveralDoubles{}, j);
                      add_places(SeveralDoubles{}, j + kDoubles);
                    }
                    for (; j < end; ++j) {
                      add_places(OneDouble{}, j);
                    }
                  });
}

}  // namespace mpsgrad::MPSGRAD_ISA
