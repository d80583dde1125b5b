// Vectors of float in the notation both compilers share, as wide as the instruction set has them,
// and whole tiles of them in registers. Only for *_simd.cpp files.
#pragma once

#include <utility>

#include "cpu/simd/lanes.hpp"
#include "cpu/simd/simd.hpp"
#include "cpu/simd/streaming.hpp"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace mpsgrad::MPSGRAD_ISA {

using Index = std::int64_t;

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
inline constexpr int kSpare = 0;  // registers a multiply-add needs besides its operands
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
inline constexpr int kSpare = 1;
#elif defined(__aarch64__)
inline constexpr int kLanes = 4;
inline constexpr int kSpare = 1;
#else
inline constexpr int kLanes = 4;
inline constexpr int kSpare = 2;
#endif

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef float UnalignedVec
    __attribute__((vector_size(kLanes * sizeof(float)), aligned(alignof(float)), may_alias));

MPSGRAD_INLINE Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
MPSGRAD_INLINE void store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }

// float16, converted on the way. Loops over it take multiples of so many channels; 0: they would
// convert in many steps.
#if defined(__AVX512F__)
inline constexpr Index kHalvesAtOnce = 1;
#elif defined(__F16C__) || defined(__aarch64__)
inline constexpr Index kHalvesAtOnce = kLanes;
#else
inline constexpr Index kHalvesAtOnce = 0;
#endif
MPSGRAD_INLINE Vec load(const Half* p) { return load<Vec>(p); }
MPSGRAD_INLINE void store(Half* p, Vec v) { store<Vec>(p, v); }

// The first lanes of a vector; the others are neither read nor written.
#if defined(__AVX512F__)
struct Mask {
  __mmask16 bits;
};
MPSGRAD_INLINE Mask first_lanes(Index count) {
  return {static_cast<__mmask16>((1U << static_cast<unsigned>(count)) - 1U)};
}
MPSGRAD_INLINE Vec load(const float* p, Mask mask) {
  return reinterpret_cast<Vec>(_mm512_maskz_loadu_ps(mask.bits, p));
}
MPSGRAD_INLINE void store(float* p, Vec v, Mask mask) {
  _mm512_mask_storeu_ps(p, mask.bits, reinterpret_cast<__m512>(v));
}
MPSGRAD_INLINE Vec load(const Half* p, Mask mask) {
  const __m256i halves = _mm256_maskz_loadu_epi16(mask.bits, p);
  return reinterpret_cast<Vec>(_mm512_maskz_cvtph_ps(0xffff, halves));
}
MPSGRAD_INLINE void store(Half* p, Vec v, Mask mask) {
  const __m256i halves =
      _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT);
  _mm256_mask_storeu_epi16(p, mask.bits, halves);
}
#elif defined(__AVX2__)
struct Mask {
  __m256i bits;
};
MPSGRAD_INLINE Mask first_lanes(Index count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes)};
}
MPSGRAD_INLINE Vec load(const float* p, Mask mask) {
  return reinterpret_cast<Vec>(_mm256_maskload_ps(p, mask.bits));
}
MPSGRAD_INLINE void store(float* p, Vec v, Mask mask) {
  _mm256_maskstore_ps(p, mask.bits, reinterpret_cast<__m256>(v));
}
#else
struct Mask {
  int count;
};
MPSGRAD_INLINE Mask first_lanes(Index count) { return {static_cast<int>(count)}; }
MPSGRAD_INLINE Vec load(const float* p, Mask mask) {
  Vec v{};
  for (int i = 0; i < mask.count; ++i) {
    v[i] = p[i];
  }
  return v;
}
MPSGRAD_INLINE void store(float* p, Vec v, Mask mask) {
  for (int i = 0; i < mask.count; ++i) {
    p[i] = v[i];
  }
}
#endif

// Copies the first of at most kFewLanes lanes, and writes something to the others of these. Where
// vectors are stored in two halves, one of them takes less than half the time.
#if defined(__AVX512F__)
inline constexpr Index kFewLanes = 8;
MPSGRAD_INLINE void copy_few(const float* from, Mask lanes, float* to) {
  _mm256_storeu_ps(to, _mm256_maskz_loadu_ps(static_cast<__mmask8>(lanes.bits), from));
}
#else
inline constexpr Index kFewLanes = kLanes;
MPSGRAD_INLINE void copy_few(const float* from, Mask lanes, float* to) {
  store(to, load(from, lanes));
}
#endif

// The upper half of the lanes to the lower one, and so on.
template <int kFrom, int... kLane>
MPSGRAD_INLINE float sum_of_lanes(Vec v, std::integer_sequence<int, kLane...>) {
  constexpr int kHalf = kFrom / 2;
  if constexpr (kHalf == 0) {
    return v[0];
  } else {
    const Vec upper = __builtin_shufflevector(v, v, (kLane + kHalf) % kLanes...);
    return sum_of_lanes<kHalf>(v + upper, std::integer_sequence<int, kLane...>{});
  }
}
MPSGRAD_INLINE float sum(Vec v) {
  return sum_of_lanes<kLanes>(v, std::make_integer_sequence<int, kLanes>{});
}

// Vectors of a line of the caches.
inline constexpr int kLineVecs = kLine / sizeof(Vec);

// Whether results may go past the caches. Not where four vectors make a line: pixels of few
// channels lose by waiting for it.
inline constexpr bool kStreamsResults = kStreams && kLineVecs <= 2;

// Whether so many floats are whole lines, and so can go past the caches.
MPSGRAD_INLINE bool is_lines(const float* first, Index count) {
  return kStreamsResults && past_line(first) == 0 && count % (kLineVecs * kLanes) == 0;
}

// Whether every lane is 0, which NaN is not.
MPSGRAD_INLINE bool is_zero(Vec v) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(v), _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(
             _mm256_cmp_ps(reinterpret_cast<__m256>(v), _mm256_setzero_ps(), _CMP_NEQ_UQ)) == 0;
#else
  bool zero = true;
  for (int i = 0; i < kLanes; ++i) {
    zero = zero && v[i] == 0.0F;
  }
  return zero;
#endif
}

// Tiles of `rows` by `vecs` accumulators: rows broadcast a scalar, vecs are loaded.
inline constexpr int kMaxRows = 16;
inline constexpr int kMaxVecs = 4;

constexpr int tile_rows(int vecs) {
  const int rows = (kRegisters - kSpare - vecs) / vecs;
  return rows < kMaxRows ? rows : kMaxRows;
}

// Rows of a tile at most, if they read scalars `operand_step` floats apart and write results
// `result_step` apart: where the one is a multiple of 2 KB or the other of 4, all of them lie in
// one set or two of the first-level cache, which has eight ways or little more, and vectors pass
// through it as well.
constexpr int rows_in_sets(std::int64_t operand_step, std::int64_t result_step) {
  constexpr int kOperandFloats = 512;
  constexpr int kResultFloats = 1024;
  constexpr int kWays = 8;
  return operand_step % kOperandFloats == 0 || result_step % kResultFloats == 0 ? kWays : kMaxRows;
}

// sums[v] += vectors[v] * *scalar. AVX-512 can take a scalar from memory within a multiply-add,
// which spares a tile of one vector the instruction that spreads it. Tiles of more vectors load it
// once for all: cores with two multiply-adds a cycle have no more loads than that (Intel's), and
// those of the vectors have to fit among them.
template <int kVecs>
MPSGRAD_INLINE void add_products(Vec (&sums)[kVecs], const Vec (&vectors)[kVecs],
                                 const float* scalar) {
#if defined(__AVX512F__)
  if constexpr (kVecs == 1) {  // left to itself, GCC loads it apart
    asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sums[0]) : "v"(vectors[0]), "m"(*scalar));
    return;
  }
#endif
  const float x = *scalar;
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) {
    sums[v] += vectors[v] * x;
  }
}

// Value kMember of each run of kMixed lanes, in all lanes of its run.
template <int kMixed, int kMember, int... kLane>
MPSGRAD_INLINE Vec member(Vec x, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(x, x, kLane / kMixed * kMixed + kMember...);
}

// Most channels of a group that lie beside others in a vector.
constexpr Index kMostMixed = kLanes / 2;

constexpr Index larger(Index a, Index b) { return a > b ? a : b; }

// Rows, one or more, in tiles of about the same height, `most` at most.
struct TileCut {
  Index tiles, rows, longer;  // so many tiles, of so many rows, the first ones of one more

  TileCut(Index all, Index most)
      : tiles(ceil_div(all, most)), rows(all / tiles), longer(all % tiles) {}
  // Calls visit(rows) for each tile.
  template <class Visit>
  MPSGRAD_INLINE void each(const Visit& visit) const {
    for (Index i = 0; i < tiles; ++i) {
      visit(rows + (i < longer ? 1 : 0));
    }
  }
};

// Tiles of few registers whose multiply-adds take one instruction: they are so low that their
// height counts as it is on average, and one of a single vector has more loads than multiply-adds,
// of which a core does as many.
inline constexpr bool kLowTiles = kRegisters == 16 && kSpare == 1;

// How many vectors wide tiles should be for `rows` rows and `vecs` vectors of results: the cheapest
// of the shapes, where a tile costs its multiply-adds (at least as many as hide their latency) and
// a little for its loads: of vectors more if they come from the second-level cache, and if each
// result is the sum of many products, more where no register is left for a scalar, for then a sum
// is kept in memory. 0 products: that does not count. Tiles have at most `highest` rows.
inline Index best_vecs(Index rows, Index vecs, bool near, Index products = 0,
                       Index highest = kMaxRows) {
  constexpr Index kManyProducts = 128;  // of fewer, results are best written all at once
  constexpr Index kSumInMemory = 9;
  Index best = 1;
  Index best_cost = INT64_MAX;
  for (int width = 1; width <= kMaxVecs; ++width) {
    const Index row_tiles = ceil_div(rows, smaller(tile_rows(width), highest));
    const Index height = ceil_div(rows, row_tiles);
    const Index heights = kLowTiles ? rows : height * row_tiles;  // of all tiles
    const auto cost = [&](Index columns) {
      const bool full = height * columns + columns + 1 > kRegisters;
      const Index sums = full && products >= kManyProducts ? kSumInMemory : 0;
      const Index loads = kLowTiles ? heights + columns * row_tiles : 0;
      return 8 * larger(larger(heights * columns, 8 * row_tiles), loads) + 2 * heights +
             ((near ? 2 : 4) * columns + 4 + sums) * row_tiles;
    };
    Index total = vecs / width * cost(width);
    if (vecs % width != 0) {
      total += cost(vecs % width);
    }
    if (total < best_cost) {
      best_cost = total;
      best = width;
    }
  }
  return best;
}

}  // namespace mpsgrad::MPSGRAD_ISA
