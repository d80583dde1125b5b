// Dropout loops. Counters lie in vectors of 64-bit lanes whose upper halves hold anything: a
// product of the lower halves is one instruction, and needs no shuffles.
#include "kernels/dropout/dropout_simd.hpp"

#include "cpu/simd/lanes.hpp"
#include "cpu/simd/pack.hpp"
#include "cpu/simd/tiles.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

constexpr int kPairs = kWidest / 2;
typedef std::uint64_t Pairs __attribute__((vector_size(kPairs * 8)));

constexpr int kRounds = 10;
constexpr Index kWordBits = 64;
constexpr Index kCounters = 16;  // of a word, four numbers each

// Products of the lower halves.
MPSGRAD_INLINE Pairs multiply(Pairs x, std::uint32_t factor) {
  const Pairs factors = Pairs{} + factor;
#if defined(__AVX512F__)
  // Masked, for GCC 12 warns about the undefined register in its own unmasked form.
  return __builtin_bit_cast(Pairs, _mm512_maskz_mul_epu32(0xff, __builtin_bit_cast(__m512i, x),
                                                          __builtin_bit_cast(__m512i, factors)));
#elif defined(__AVX2__)
  return __builtin_bit_cast(Pairs, _mm256_mul_epu32(__builtin_bit_cast(__m256i, x),
                                                    __builtin_bit_cast(__m256i, factors)));
#elif defined(__SSE2__)
  return __builtin_bit_cast(
      Pairs, _mm_mul_epu32(__builtin_bit_cast(__m128i, x), __builtin_bit_cast(__m128i, factors)));
#elif defined(__ARM_NEON)
  return __builtin_bit_cast(Pairs, vmull_u32(vmovn_u64(__builtin_bit_cast(uint64x2_t, x)),
                                             vmovn_u64(__builtin_bit_cast(uint64x2_t, factors))));
#else
  return (x & 0xffffffffU) * factors;
#endif
}

// A bit for each lane, set where it is less.
MPSGRAD_INLINE std::uint32_t less_bits(Ints<kWidest> x, std::int32_t limit) {
#if defined(__AVX512F__)
  return _mm512_cmplt_epi32_mask(__builtin_bit_cast(__m512i, x), _mm512_set1_epi32(limit));
#elif defined(__AVX2__)
  return static_cast<std::uint32_t>(
      _mm256_movemask_ps(__builtin_bit_cast(__m256, x < Ints<kWidest>{} + limit)));
#elif defined(__SSE2__)
  return static_cast<std::uint32_t>(
      _mm_movemask_ps(__builtin_bit_cast(__m128, x < Ints<kWidest>{} + limit)));
#else
  constexpr Ints<4> kBits = {1, 2, 4, 8};
  const Ints<4> set = (x < Ints<4>{} + limit) & kBits;
#if defined(__ARM_NEON)
  return static_cast<std::uint32_t>(vaddvq_s32(__builtin_bit_cast(int32x4_t, set)));
#else
  return static_cast<std::uint32_t>(set[0] | set[1] | set[2] | set[3]);
#endif
#endif
}

struct Counters {
  Pairs words[4];
};

// The keys of all rounds.
struct Keys {
  std::uint32_t words[kRounds][2];
  explicit Keys(std::uint64_t seed) {
    auto low = static_cast<std::uint32_t>(seed);
    auto high = static_cast<std::uint32_t>(seed >> 32U);
    for (auto& round : words) {
      round[0] = low;
      round[1] = high;
      low += 0x9e3779b9U;
      high += 0xbb67ae85U;
    }
  }
};

MPSGRAD_INLINE void run_rounds(Counters& c, const Keys& keys) {
  for (const auto& round : keys.words) {
    const Pairs first = multiply(c.words[0], 0xd2511f53U);
    const Pairs second = multiply(c.words[2], 0xcd9e8d57U);
    c.words[0] = (second >> 32U) ^ c.words[1] ^ (Pairs{} + round[0]);
    c.words[1] = second;
    c.words[2] = (first >> 32U) ^ c.words[3] ^ (Pairs{} + round[1]);
    c.words[3] = first;
  }
}

// Every second one of kWidest counters, from `first` on.
MPSGRAD_INLINE Counters counters_from(const DropoutStream& stream, std::uint64_t first) {
  Pairs lane = {};
  for (int k = 0; k < kPairs; ++k) {
    lane[k] = static_cast<std::uint64_t>(2 * k);
  }
  const Pairs index = Pairs{} + first + lane;
  return {{index, index >> 32U, Pairs{} + stream.image, Pairs{} + stream.encode}};
}

MPSGRAD_INLINE std::uint64_t draw_word(const DropoutStream& stream, const Keys& keys, Index word) {
  std::uint64_t bits = 0;
  for (Index l = 0; l < kCounters; l += kWidest) {
    const auto first = static_cast<std::uint64_t>(word * kCounters + l);
    Counters even = counters_from(stream, first);
    Counters odd = counters_from(stream, first + 1);
    run_rounds(even, keys);
    run_rounds(odd, keys);
    for (Index w = 0; w < 4; ++w) {
      const Pairs both = (even.words[w] & 0xffffffffU) | (odd.words[w] << 32U);
      const std::uint32_t some = less_bits(__builtin_bit_cast(Ints<kWidest>, both), stream.limit);
      bits |= std::uint64_t{some} << static_cast<std::uint64_t>(kCounters * w + l);
    }
  }
  return bits;
}

void draw(const DropoutStream& stream, Index first, Index count, std::uint64_t* words) {
  const Keys keys(stream.seed);
  for (Index i = 0; i < count; ++i) {
    words[i] = draw_word(stream, keys, first + i);
  }
}

struct Division {
  float keep;
  template <class Value>
  MPSGRAD_INLINE Value of(Value x) const {
    return x / keep;
  }
};

// The same where 1 / keep is a float.
struct ExactProduct {
  float reciprocal;
  template <class Value>
  MPSGRAD_INLINE Value of(Value x) const {
    return x * reciprocal;
  }
};

// The same as a product with 1 / keep in two parts, which takes half the time. It is off by less
// than 2^-46 of itself before it is rounded, so that one result of some 10^9 is not the quotient
// rounded once, and more of those below 10^-30.
struct Product {
  float high, low;  // low > 0, so that infinity times it is infinity too
  MPSGRAD_INLINE float of(float x) const { return multiply_add(x, high, x * low); }
  template <class Vector>
  MPSGRAD_INLINE Vector of(Vector x) const {
    const Vector rest = opaque(x * low);  // or compilers may round the other product
    return x * high + rest;
  }
};

// Calls body(quotient), quotient.of(x) being x / keep.
template <class Body>
MPSGRAD_INLINE void with_quotient(float keep, const Body& body) {
  const bool has_reciprocal = keep >= 0x1p-126F;
  if (!MPSGRAD_HAS_FMA || !has_reciprocal) {
    return body(Division{keep});
  }
  const double exact = 1.0 / static_cast<double>(keep);
  auto high = static_cast<float>(exact);
  if (static_cast<double>(high) == exact) {
    return body(ExactProduct{high});
  }
  if (static_cast<double>(high) > exact) {
    high = bits_float(float_bits(high) - 1);
  }
  body(Product{high, static_cast<float>(exact - static_cast<double>(high))});
}

// At least 16 bits from `first` on.
MPSGRAD_INLINE std::int32_t bits_from(const std::uint64_t* words, Index first) {
  const auto* bytes = reinterpret_cast<const std::byte*>(words) + first / 8;
  return static_cast<std::int32_t>(load<std::uint32_t>(bytes) >>
                                   static_cast<std::uint32_t>(first % 8));
}

// Where bits are set, x, else 0.
template <class Vector>
MPSGRAD_INLINE Vector choose(Vector x, std::int32_t bits) {
  constexpr int kLanes = sizeof(Vector) / sizeof(float);
  Ints<kLanes> lane = {};
  for (int k = 0; k < kLanes; ++k) {
    lane[k] = 1 << k;
  }
  const Ints<kLanes> chosen = ((Ints<kLanes>{} + bits) & lane) != Ints<kLanes>{};
  return __builtin_bit_cast(Vector, __builtin_bit_cast(Ints<kLanes>, x) & chosen);
}

template <class Element, class Quotient>
MPSGRAD_INLINE void apply_run(const Element* x, Results<Element> y, const std::uint64_t* words,
                              Index first, Index count, const Quotient& quotient) {
  put_blocks(0, count, y, [&](Index begin, Index end, Element* to) MPSGRAD_MELT {
    for_blocks(end - begin, [&](auto block, Index i) MPSGRAD_MELT {
      const auto value = quotient.of(block.floats(x + begin + i));
      block.put(to + i, choose(value, bits_from(words, first + begin + i)));
    });
  });
}

template <class Element>
void apply(const Element* x, Results<Element> y, const std::uint64_t* words, Index first,
           Index count, float keep) {
  y.asks = false;
  with_quotient(keep,
                [=](const auto& quotient) { apply_run(x, y, words, first, count, quotient); });
}

template <class Element>
void apply_tiles(const Element* x, Results<Element> y, const std::int32_t* kept, Index count,
                 Index tile, float keep) {
  with_quotient(keep, [=](const auto& quotient) {
    for_tiles(
        count, tile, y,
        [=](Index j, float value) {
          return bits_float(float_bits(quotient.of(value)) & static_cast<std::uint32_t>(kept[j]));
        },
        x);
  });
}

void spread(const std::uint64_t* words, Index count, std::int32_t* kept) {
  for (Index i = 0; i < count; ++i) {
    const std::uint64_t word = words[i / kWordBits] >> static_cast<std::uint64_t>(i % kWordBits);
    kept[i] = -static_cast<std::int32_t>(word & 1U);
  }
}

// Pieces are so short that they stay in the nearest cache, where the memory that the application of
// one reads has arrived when its bits are drawn.
template <class Element, class Quotient>
MPSGRAD_INLINE void draw_and_apply_by(const Quotient& quotient, const DropoutStream& stream,
                                      const Element* x, Results<Element> y, std::uint64_t* kept,
                                      Index first, Index count) {
  constexpr Index kPiece = 16 * kWordBits;
  constexpr auto kLineElements = kLine / static_cast<Index>(sizeof(Element));
  const Keys keys(stream.seed);
  std::uint64_t words[kPiece / kWordBits + 1] = {};
  y.asks = false;
  for (Index i = 0; i < count;) {
    const Index begin = first + i;
    const Index left = kPiece - begin % kPiece;
    const Index some = left < count - i ? left : count - i;
    const Index word = begin / kWordBits;
    const Index end = (begin + some - 1) / kWordBits + 1;
    for (Index w = word; w < end; ++w) {
      for (Index k = 0; k < kWordBits; k += kLineElements) {
        request(x, w * kWordBits - first + k);
      }
      words[w - word] = draw_word(stream, keys, w);
      if (kept != nullptr && w * kWordBits >= begin) {
        kept[w] = words[w - word];
      }
    }
    Results<Element> to = y;
    to.at = y.at + i;
    apply_run(x + i, to, words, begin - word * kWordBits, some, quotient);
    i += some;
  }
}

template <class Element>
void draw_and_apply(const DropoutStream& stream, const Element* x, Results<Element> y,
                    std::uint64_t* kept, Index first, Index count, float keep) {
  with_quotient(keep, [&](const auto& quotient) {
    draw_and_apply_by(quotient, stream, x, y, kept, first, count);
  });
}

template <class Element>
constexpr DropoutElementLoops<Element> kLoops{&apply<Element>, &apply_tiles<Element>,
                                              &draw_and_apply<Element>};

}  // namespace

const DropoutLoops dropout_loops{&draw, &spread, {kLoops<float>, kLoops<Half>}};

}  // namespace mpsgrad::MPSGRAD_ISA
