// Centring and scaling loops: tile by tile, so that neighbours depend on nothing of each other
// whatever the number of channels.
#include "cpu/simd/standardize.hpp"

#include "cpu/simd/lanes.hpp"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// Coefficients and sums of so many channels stay in a first-level cache while a run goes by.
constexpr Index kColumns = 512;
// So many rows of a run are joined before their sums are written back, and so far ahead of a row
// its successor is asked for.
constexpr Index kRows = 4;

template <int kCount>
struct Rows {
  static constexpr int count = kCount;
};

// Calls body(Rows, row, begin, end) for every row of the run and blocks [begin, end) of its places:
// for kTogether rows at once, of which `row` is the first, and for what is left one by one.
template <int kTogether, class Body>
MPSGRAD_INLINE void for_rows(Index count, Index tile, const Body& body) {
  for (Index begin = 0; begin < tile; begin += kColumns) {
    const Index end = begin + kColumns < tile ? begin + kColumns : tile;
    Index row = 0;
    for (; row + (kTogether - 1) * tile + end <= count; row += kTogether * tile) {
      body(Rows<kTogether>{}, row, begin, end);
    }
    for (; row + begin < count; row += tile) {
      body(Rows<1>{}, row, begin, count - row < end ? count - row : end);
    }
  }
}

// Calls body(i, j) for each value i of a run and its place j in a tile.
template <class Body>
MPSGRAD_INLINE void for_tiles(Index count, Index tile, const Body& body) {
  for_rows<1>(count, tile, [&](auto /*rows*/, Index row, Index begin, Index end) {
    MPSGRAD_VECTOR_LOOP
    for (Index j = begin; j < end; ++j) {
      body(row + j, j);
    }
  });
}

constexpr int kDoubles = kWidest / 2;
typedef double Doubles __attribute__((vector_size(kDoubles * 8)));

// One place of a tile, or several neighbouring ones, in double.
struct OneDouble {
  using Numbers = double;
  MPSGRAD_INLINE double widened(const float* from) const { return static_cast<double>(*from); }
};
struct SeveralDoubles {
  using Numbers = Doubles;
  MPSGRAD_INLINE Doubles widened(const float* from) const {
#if defined(__AVX512F__)  // GCC makes two conversions and a shuffle of the other form
    return _mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(from));
#else
    return __builtin_convertvector(load<Floats<kDoubles> >(from), Doubles);
#endif
  }
};

// Calls add(block, i, j, terms) for each value i of a run and its place j in a tile, which adds to
// terms[k] what belongs to sums[k].
template <int kSums, class Add, class... Sources>
MPSGRAD_INLINE void add_tiles(Index count, Index tile, double* const (&sums)[kSums], const Add& add,
                              const Sources*... sources) {
  for_rows<kRows>(count, tile, [&](auto rows, Index row, Index begin, Index end) {
    constexpr int kCount = decltype(rows)::count;
    const auto add_places = [&](auto block, Index j) {
      typename decltype(block)::Numbers terms[kSums];
      for (int k = 0; k < kSums; ++k) {
        terms[k] = load<typename decltype(block)::Numbers>(sums[k] + j);
      }
      for (int r = 0; r < kCount; ++r) {
        add(block, row + r * tile + j, j, terms);
      }
      for (int k = 0; k < kSums; ++k) {
        store(sums[k] + j, terms[k]);
      }
    };
    Index j = begin;
    for (; j + kWidest <= end; j += kWidest) {
      for (int r = 0; r < kCount; ++r) {
        (request(sources, row + (kRows + r) * tile + j), ...);
      }
      add_places(SeveralDoubles{}, j);
      add_places(SeveralDoubles{}, j + kDoubles);
    }
    for (; j < end; ++j) {
      add_places(OneDouble{}, j);
    }
  });
}

void moments(const float* x, Index count, const double* shift, double* sum, double* squares,
             Index tile) {
  add_tiles<2>(
      count, tile, {sum, squares},
      [=](auto block, Index i, Index j, auto& terms) {
        const auto d = block.widened(x + i) - load<typename decltype(block)::Numbers>(shift + j);
        terms[0] += d;
        terms[1] += d * d;
      },
      x);
}

void forward(const float* x, float* MPSGRAD_RESTRICT y, Index count,
             const float* MPSGRAD_RESTRICT mean, const float* MPSGRAD_RESTRICT scale,
             const float* MPSGRAD_RESTRICT offset, Index tile) {
  for_tiles(count, tile, [=](Index i, Index j) { y[i] = (x[i] - mean[j]) * scale[j] + offset[j]; });
}

void gradient_sums(const float* g, const float* x, Index count, const double* shift, double* sum_g,
                   double* sum_gx, Index tile) {
  add_tiles<2>(
      count, tile, {sum_g, sum_gx},
      [=](auto block, Index i, Index j, auto& terms) {
        const auto gradient = block.widened(g + i);
        terms[0] += gradient;
        terms[1] +=
            gradient * (block.widened(x + i) - load<typename decltype(block)::Numbers>(shift + j));
      },
      g, x);
}

void gradient_moments(const float* g, const float* x, Index count, const double* shift,
                      double* sums, Index tile) {
  add_tiles<4>(
      count, tile, {sums, sums + tile, sums + 2 * tile, sums + 3 * tile},
      [=](auto block, Index i, Index j, auto& terms) {
        const auto gradient = block.widened(g + i);
        const auto d = block.widened(x + i) - load<typename decltype(block)::Numbers>(shift + j);
        terms[0] += gradient;
        terms[1] += gradient * d;
        terms[2] += d;
        terms[3] += d * d;
      },
      g, x);
}

void gradient(const float* g, const float* x, float* MPSGRAD_RESTRICT y, Index count,
              const float* MPSGRAD_RESTRICT mean, const float* MPSGRAD_RESTRICT scale,
              const float* MPSGRAD_RESTRICT constant, const float* MPSGRAD_RESTRICT slope,
              Index tile) {
  for_tiles(count, tile, [=](Index i, Index j) {
    y[i] = scale[j] * g[i] - (constant[j] + (x[i] - mean[j]) * slope[j]);
  });
}

}  // namespace

const StandardizeLoops standardize_loops{&moments, &forward, &gradient_sums, &gradient_moments,
                                         &gradient};

}  // namespace mpsgrad::MPSGRAD_ISA
