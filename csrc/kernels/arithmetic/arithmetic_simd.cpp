// Arithmetic loops. Those that write a mask, or a result for each of its bits, go by its bytes.
#include "kernels/arithmetic/arithmetic_simd.hpp"

#include <type_traits>

#include "cpu/simd/column_sums.hpp"
#include "cpu/simd/elements.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;
// What of eight elements, the bits of one byte, fits a register.
constexpr int kGroup = kWidest < 8 ? kWidest : 8;
using Group = Floats<kGroup>;
using GroupInts = Ints<kGroup>;
constexpr Index kAhead = 384;  // elements, asked for before they are needed
typedef std::uint8_t GroupBytes __attribute__((vector_size(kGroup)));

template <class Value>
MPSGRAD_INLINE Value all(float x) {
  if constexpr (sizeof(Value) == sizeof(float)) {
    return x;
  } else {
    return x - Value{};
  }
}

struct Sum {
  float a, b, bias;
  template <class Value>
  MPSGRAD_INLINE Value at(Value x, Value y) const {
    return a * x + b * y + bias;
  }
};
struct Product {
  float a, b, bias;
  template <class Value>
  MPSGRAD_INLINE Value at(Value x, Value y) const {
    return (a * x) * (b * y) + bias;
  }
};
struct Quotient {
  float a, b, bias;
  template <class Value>
  MPSGRAD_INLINE Value at(Value x, Value y) const {
    return (a * x) / (b * y) + bias;
  }
};

template <class Operation, class Element>
MPSGRAD_INLINE void plain(const Operation& operation, const ArithmeticFunction& f, const Element* x,
                          const Element* y, Results<Element> out, Index count) {
  if (f.minimum == -__builtin_inff() && f.maximum == __builtin_inff()) {
    return transform_run(
        0, count, out,
        [=](Index, float first, float second) { return operation.at(first, second); }, x, y);
  }
  transform_run(
      0, count, out,
      [=, minimum = f.minimum, maximum = f.maximum](Index, float first, float second) {
        const float r = operation.at(first, second);
        const float above = r < minimum ? minimum : r;
        return above > maximum ? maximum : above;
      },
      x, y);
}

// Bit k is set where lane k of a comparison holds.
MPSGRAD_INLINE std::uint8_t bits_of(GroupInts holds) {
#if defined(__AVX512F__)
  return _mm256_movepi32_mask(reinterpret_cast<__m256i>(holds));
#else
  const GroupBytes ones = __builtin_convertvector(holds & 1, GroupBytes);
  std::uint64_t bytes = 0;
  __builtin_memcpy(&bytes, &ones, sizeof ones);
  return static_cast<std::uint8_t>(bytes * 0x0102040810204080U >> 56);
#endif
}

MPSGRAD_INLINE void put_bit(std::uint8_t* mask, Index bit, bool value) {
  std::uint8_t& byte = mask[bit / 8];
  const auto one = static_cast<std::uint8_t>(1U << (bit % 8));
  byte = static_cast<std::uint8_t>(value ? byte | one : byte & ~one);
}

// Returns whether all bits that it writes are set.
template <class Operation, class Element>
MPSGRAD_INLINE bool masked(const Operation& operation, const ArithmeticFunction& f,
                           const Element* x, const Element* y, Element* out, std::uint8_t* mask,
                           Index first, Index count) {
  bool all_set = true;
  int kept = 0xffff;  // bits that no group lacks
  const auto one = [&](Index i) {
    const float r = operation.at(load<float>(x + i), load<float>(y + i));
    const float above = r < f.minimum ? f.minimum : r;
    store(out + i, above > f.maximum ? f.maximum : above);
    const bool set = f.minimum < r && r < f.maximum;
    put_bit(mask, first + i, set);
    all_set &= set;
  };
  Index i = 0;
  for (; i < count && (first + i) % 8 != 0; ++i) {
    one(i);
  }
#if defined(__AVX512F__)
  const __m512 least = _mm512_set1_ps(f.minimum);
  const __m512 most = _mm512_set1_ps(f.maximum);
  for (; i + 16 <= count; i += 16) {
    request(x, i + kAhead);
    request(y, i + kAhead);
    const __m512 r = operation.at(load<Floats<16>>(x + i), load<Floats<16>>(y + i));
    const __m512 above = r < least ? least : r;
    store(out + i, Floats<16>(above > most ? most : above));
    const __mmask16 past_least = _mm512_cmp_ps_mask(least, r, _CMP_LT_OQ);
    const __mmask16 bits = _mm512_mask_cmp_ps_mask(past_least, r, most, _CMP_LT_OQ);
    __builtin_memcpy(mask + (first + i) / 8, &bits, sizeof bits);
    kept &= bits;
  }
#endif
  const auto minimum = all<Group>(f.minimum);
  const auto maximum = all<Group>(f.maximum);
  for (; i + 8 <= count; i += 8) {
    int bits = 0;
    request(x, i + kAhead);
    request(y, i + kAhead);
    for (int part = 0; part < 8; part += kGroup) {
      const Group r = operation.at(load<Group>(x + i + part), load<Group>(y + i + part));
      const Group above = r < minimum ? minimum : r;
      store(out + i + part, above > maximum ? maximum : above);
      bits |= bits_of((minimum < r) & (r < maximum)) << part;
    }
    mask[(first + i) / 8] = static_cast<std::uint8_t>(bits);
    kept &= bits | 0xff00;
  }
  for (; i < count; ++i) {
    one(i);
  }
  return all_set && kept == 0xffff;
}

template <ComparisonType kComparison, class Element>
void compare(float threshold, const Element* x, const Element* y, Results<Element> out,
             Index count) {
  transform_run(
      0, count, out,
      [=](Index, float first, float second) {
        const float equal = __builtin_fabsf(first - second) <= threshold ? 1.0F : 0.0F;
        const float less = first < second ? 1.0F : 0.0F;
        const float greater = first > second ? 1.0F : 0.0F;
        if constexpr (kComparison == ComparisonType::Equal) {
          return equal;
        } else if constexpr (kComparison == ComparisonType::NotEqual) {
          return 1.0F - equal;
        } else if constexpr (kComparison == ComparisonType::Less) {
          return less;
        } else if constexpr (kComparison == ComparisonType::LessOrEqual) {
          return less > equal ? less : equal;
        } else if constexpr (kComparison == ComparisonType::Greater) {
          return greater;
        } else {
          return greater > equal ? greater : equal;
        }
      },
      x, y);
}

template <class Element>
void compare_all(const ArithmeticFunction& f, const Element* x, const Element* y,
                 Results<Element> out, Index count) {
  // In the order of ComparisonType.
  constexpr void (*kComparisons[])(float, const Element*, const Element*, Results<Element>,
                                   Index) = {
      &compare<ComparisonType::Equal>,   &compare<ComparisonType::NotEqual>,
      &compare<ComparisonType::Less>,    &compare<ComparisonType::LessOrEqual>,
      &compare<ComparisonType::Greater>, &compare<ComparisonType::GreaterOrEqual>};
  kComparisons[static_cast<int>(f.comparison)](f.threshold, x, y, out, count);
}

template <class Element>
void forward_piece(const ArithmeticFunction& f, const Element* x, const Element* y,
                   Results<Element> out, ClampMask mask, Index first, Index count) {
  const auto run = [&](const auto& operation) {
    if (mask.bits) {
      bool all_set = true;
      put_blocks(0, count, out, [&](Index begin, Index end, Element* to) {
        all_set &=
            masked(operation, f, x + begin, y + begin, to, mask.bits, first + begin, end - begin);
      });
      if (!all_set) {
        __atomic_store_n(mask.some_clear, std::uint8_t{1}, __ATOMIC_RELAXED);
      }
    } else {
      plain(operation, f, x, y, out, count);
    }
  };
  switch (f.kind) {
    case ArithmeticKind::Add:
      return run(Sum{f.a, f.b, f.bias});
    case ArithmeticKind::Subtract:
      return run(Sum{f.a, -f.b, f.bias});
    case ArithmeticKind::Multiply:
      return run(Product{f.a, f.b, f.bias});
    case ArithmeticKind::Divide:
      return run(Quotient{f.a, f.b, f.bias});
    default:
      return compare_all(f, x, y, out, count);
  }
}

template <class Element>
void forward(const ArithmeticFunction& f, Cycle<Element> x, Cycle<Element> y, Results<Element> out,
             ClampMask mask, Index first, Index count) {
  for (Index begin = 0; begin < count;) {
    const Index piece = smaller(count - begin, smaller(x.left_from(begin), y.left_from(begin)));
    forward_piece(f, x.from(begin), y.from(begin), {out.at + begin, out.streamed}, mask,
                  first + begin, piece);
    begin += piece;
  }
}

// Whether `count` bits from `first` on are set.
bool all_set(const ClampMask& of, Index first, Index count) {
  if (*of.some_clear == 0) {
    return true;
  }
  const std::uint8_t* const mask = of.bits;
  const Index end = first + count;
  const auto bits_set = [mask](Index from, Index to) {
    bool set = true;
    for (Index bit = from; bit < to; ++bit) {
      set &= (mask[bit / 8] >> (bit % 8) & 1) != 0;
    }
    return set;
  };
  const Index first_byte = (first + 7) / 8;
  const Index last_byte = end / 8;
  if (first_byte >= last_byte) {
    return bits_set(first, end);
  }
  std::uint8_t all = 0xff;
  for (Index byte = first_byte; byte < last_byte; ++byte) {
    all &= mask[byte];
  }
  return all == 0xff && bits_set(first, first_byte * 8) && bits_set(last_byte * 8, end);
}

template <class Term, class Element>
MPSGRAD_INLINE void masked_terms(const Term& term, const std::uint8_t* mask, Index first,
                                 Element* MPSGRAD_RESTRICT out, Index count) {
  const auto one = [&](Index i) {
    const bool set = (mask[(first + i) / 8] >> ((first + i) % 8) & 1) != 0;
    store(out + i, set ? term.template at<float>(i) : 0.0F);
  };
  Index i = 0;
  for (; i < count && (first + i) % 8 != 0; ++i) {
    one(i);
  }
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    std::uint16_t bits = 0;
    __builtin_memcpy(&bits, mask + (first + i) / 8, sizeof bits);
    term.request_at(i + kAhead);
    store(out + i, _mm512_maskz_mov_ps(bits, term.template at<Floats<16>>(i)));
  }
#endif
  GroupInts places;
  for (int lane = 0; lane < kGroup; ++lane) {
    places[lane] = 1 << lane;
  }
  for (; i + 8 <= count; i += 8) {
    const int bits = mask[(first + i) / 8];
    term.request_at(i + kAhead);
    for (int part = 0; part < 8; part += kGroup) {
      const GroupInts set = ((bits >> part) & places) != 0;
      store(out + i + part, set ? term.template at<Group>(i + part) : Group{});
    }
  }
  for (; i < count; ++i) {
    one(i);
  }
}

template <class Element>
struct Scaled {
  float a;
  const Element* g;
  template <class Value>
  MPSGRAD_INLINE Value at(Index i) const {
    return a * load<Value>(g + i);
  }
  // As at(), but for factor().
  MPSGRAD_INLINE float factor() const { return a; }
  template <class Value>
  MPSGRAD_INLINE Value rest_at(Index i) const {
    return load<Value>(g + i);
  }
  MPSGRAD_INLINE void request_at(Index i) const { request(g, i); }
};
template <class Element>
struct ScaledProduct {
  float a, b;
  const Element* g;
  const Element* other;
  template <class Value>
  MPSGRAD_INLINE Value at(Index i) const {
    return (a * load<Value>(g + i)) * (b * load<Value>(other + i));
  }
  MPSGRAD_INLINE float factor() const { return 1.0F; }
  template <class Value>
  MPSGRAD_INLINE Value rest_at(Index i) const {
    return at<Value>(i);
  }
  MPSGRAD_INLINE void request_at(Index i) const {
    request(g, i);
    request(other, i);
  }
};

// A piece of a gradient, of which all bits are set or some may be clear.
template <class Element>
void gradient_piece(float a, float b, const Element* g, const Element* other, ClampMask mask,
                    Index first, Results<Element> out, Index count) {
  const auto by_bits = [&](const auto& term_from) {
    put_blocks(0, count, out, [&](Index from, Index to, Element* at) {
      masked_terms(term_from(from), mask.bits, first + from, at, to - from);
    });
  };
  const bool whole = all_set(mask, first, count);
  if (whole && other) {
    const auto term = [=](Index, float x, float y) { return (a * x) * (b * y); };
    transform_run(0, count, out, term, g, other);
  } else if (whole) {
    transform_run(0, count, out, [=](Index, float x) { return a * x; }, g);
  } else if (other) {
    by_bits([=](Index from) { return ScaledProduct<Element>{a, b, g + from, other + from}; });
  } else {
    by_bits([=](Index from) { return Scaled<Element>{a, g + from}; });
  }
}

template <class Element>
void gradient(float a, float b, const Element* g, Cycle<Element> other, ClampMask mask, Index first,
              Results<Element> out, Index count) {
  constexpr Index kFew = 1024;  // few results are clamped, so most pieces need no bits
  const Index most = *mask.some_clear == 0 ? count : kFew;
  for (Index begin = 0; begin < count;) {
    const Index left = smaller(most, count - begin);
    const Index piece = other.at == nullptr ? left : smaller(left, other.left_from(begin));
    gradient_piece(a, b, g + begin, other.at == nullptr ? nullptr : other.from(begin), mask,
                   first + begin, {out.at + begin, out.streamed}, piece);
    begin += piece;
  }
}

template <class Element>
void repeat_each(const Element* MPSGRAD_RESTRICT x, Index count, Index times,
                 Element* MPSGRAD_RESTRICT out) {
  for (Index i = 0; i < count; ++i, out += times) {
    for (Index k = 0; k < times; ++k) {
      out[k] = x[i];
    }
  }
}

template <class Element>
void repeat_row(const Element* x, Index count, Index times, Element* out) {
  if (count == 1) {
    return repeat_each(x, 1, times, out);
  }
  const Index total = count * times;
  const Index head = count < total ? count : total;
  __builtin_memcpy(out, x, static_cast<std::size_t>(head) * sizeof(Element));
  for (Index done = head; done < total;) {  // doubles what there is
    const Index more = done < total - done ? done : total - done;
    __builtin_memcpy(out + done, out, static_cast<std::size_t>(more) * sizeof(Element));
    done += more;
  }
}

// What sums are taken of: values as they are.
struct Values {
  const float* x;
  template <class Block>
  MPSGRAD_INLINE void add_to(typename Block::Numbers& sum, Block block, Index i) const {
    sum = added(sum, block.widened(x + i));
  }
};

// A term in double. A product of two floats is exact there, so that AVX-512, which converts while
// it loads, can leave the factor to a multiply-add.
template <class Term, class Block>
MPSGRAD_INLINE typename Block::Numbers number_at(const Term& term, Block block, Index i) {
  using Singles = typename Block::Singles;
#if defined(__AVX512F__)
  return static_cast<double>(term.factor()) * block.widened(term.template rest_at<Singles>(i));
#else
  return block.widened(term.template at<Singles>(i));
#endif
}

// Terms of a gradient all of whose bits are set.
template <class Term>
struct Unmasked {
  Term term;
  template <class Block>
  MPSGRAD_INLINE void add_to(typename Block::Numbers& sum, Block block, Index i) const {
    sum += number_at(term, block, i);
  }
};

// Terms of a gradient, 0 where the bit from `first` on is not set. kWholeBytes: `first` and what
// lies between pixels are multiples of eight.
template <class Term, bool kWholeBytes>
struct Masked {
  Term term;
  const std::uint8_t* mask;
  Index first;

  template <class Block>
  MPSGRAD_INLINE void add_to(typename Block::Numbers& sum, Block block, Index i) const {
    using Singles = typename Block::Singles;
    constexpr int kLanes = sizeof(Singles) / sizeof(float);
    static_assert(kLanes <= 8);
    const Index bit = first + i;
    unsigned bits = mask[bit >> 3];  // a division would look at the sign
    if constexpr (!kWholeBytes) {
      bits |= static_cast<unsigned>(mask[(bit + kLanes - 1) >> 3])
              << 8;  // the same byte or the next
    }
    if constexpr (!kWholeBytes || kLanes < 8) {
      bits >>= bit & 7;
    }
    if constexpr (kLanes == 1) {
      sum += (bits & 1) != 0 ? number_at(term, block, i) : 0.0;
    } else {
#if defined(__AVX512F__)
      const auto set = static_cast<__mmask8>(bits);
      const auto more = sum + number_at(term, block, i);
      if constexpr (kLanes == 8) {
        sum = _mm512_mask_mov_pd(sum, set, more);
      } else {
        sum = _mm256_mask_mov_pd(sum, set, more);
      }
#else
      Ints<kLanes> places;
      for (int lane = 0; lane < kLanes; ++lane) {
        places[lane] = 1 << lane;
      }
      const Singles value = term.template at<Singles>(i);
      sum += block.widened((static_cast<int>(bits) & places) != 0 ? value : Singles{});
#endif
    }
  }
};

// Adds `count` values, made of one or two arrays, to a tile of sums, again and again. Products in
// whole vectors everywhere: they are found in vectors as long as those they are added in.
template <class Source, class Element>
MPSGRAD_INLINE void add_runs(const Source& source, double* sums, Index count, Index tile,
                             const Element* x) {
  const auto add = [=](auto block, Index i, Index /*j*/, auto& terms)
                       MPSGRAD_MELT { source.add_to(terms[0], block, i); };
  if (count > kLongRun) {
    add_tiles<1, 2>(count, tile, tile, {sums}, add, x);
  } else {
    add_tiles<1, 4>(count, tile, tile, {sums}, add, x);
  }
}
template <class Source, class Element>
MPSGRAD_INLINE void add_runs(const Source& source, double* sums, Index count, Index tile,
                             const Element* x, const Element* y) {
  add_tiles_by<1, 2>(
      SeveralDoubles<kWidest / 2>{}, count, tile, tile, {sums},
      [=](auto block, Index i, Index /*j*/, auto& terms) { source.add_to(terms[0], block, i); }, x,
      y);
}

void add(const float* x, double* sums, Index count) { add_runs(Values{x}, sums, count, count, x); }

template <class Source, class... Arrays>
MPSGRAD_INLINE void add_each_pixel(const Source& source, double* sums, Index pixels, Index channels,
                                   const Arrays*... arrays) {
  constexpr Index kParts = 64;
  const Index together = channels < kParts ? kParts / channels : 1;  // pixels added side by side
  if (together == 1 || pixels < 2 * together) {
    add_runs(source, sums, pixels * channels, channels, arrays...);
    return;
  }
  alignas(64) double parts[kParts] = {};
  add_runs(source, parts, pixels * channels, together * channels, arrays...);
  for (Index k = 0; k < together; ++k) {
    for (Index c = 0; c < channels; ++c) {
      sums[c] += parts[k * channels + c];
    }
  }
}

void add_pixels(const float* x, double* sums, Index pixels, Index channels) {
  add_each_pixel(Values{x}, sums, pixels, channels, x);
}

template <class Term, class... Arrays>
void add_terms(const Term& term, const ClampMask& mask, Index first, double* sums, Index pixels,
               Index channels, const Arrays*... arrays) {
  if (all_set(mask, first, pixels * channels)) {
    add_each_pixel(Unmasked<Term>{term}, sums, pixels, channels, arrays...);
  } else if (first % 8 == 0 && channels % 8 == 0) {
    add_each_pixel(Masked<Term, true>{term, mask.bits, first}, sums, pixels, channels, arrays...);
  } else {
    add_each_pixel(Masked<Term, false>{term, mask.bits, first}, sums, pixels, channels, arrays...);
  }
}

template <class Element>
void gradient_pixels(float a, float b, const Element* g, const Element* other, ClampMask mask,
                     Index first, double* sums, Index pixels, Index channels) {
  if (other) {
    add_terms(ScaledProduct<Element>{a, b, g, other}, mask, first, sums, pixels, channels, g,
              other);
  } else {
    add_terms(Scaled<Element>{a, g}, mask, first, sums, pixels, channels, g);
  }
}

void add_channels(const float* x, double* sums, Index pixels, Index channels) {
  for (Index p = 0; p < pixels; ++p) {
    add_pixels(x + p * channels, sums + p, channels, 1);
  }
}

template <class Element>
constexpr ArithmeticElementLoops<Element> kLoops{&forward<Element>, &gradient<Element>,
                                                 &gradient_pixels<Element>, &repeat_each<Element>,
                                                 &repeat_row<Element>};

}  // namespace

const ArithmeticLoops arithmetic_loops{
    {kLoops<float>, kLoops<Half>}, &add, &add_pixels, &add_channels};

}  // namespace mpsgrad::MPSGRAD_ISA
