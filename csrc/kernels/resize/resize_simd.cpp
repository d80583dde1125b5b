// Loops of GridSample.
#include "kernels/resize/resize_simd.hpp"

#include <type_traits>

#include "cpu/simd/put_pixels.hpp"
#include "cpu/simd/row_folds.hpp"
#include "cpu/simd/with_channels.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// Sums of positions and pixels fit 32 bits; nobody tells apart what lies further away than that.
constexpr std::int32_t kFarPixel = 1 << 30;
constexpr float kFarPosition = 1 << 29;

MPSGRAD_INLINE std::int32_t within(std::int32_t value, std::int32_t least, std::int32_t most) {
  const std::int32_t low = value < least ? least : value;
  return low > most ? most : low;
}

// Without a jump, for the compiler to take several results at once.
template <bool kClamps>
void find_taps(const float* grid, Index results, const GridAxis& axis, GridTaps& taps) {
  const auto last = static_cast<std::int32_t>(axis.length - 1);
  const auto step = static_cast<std::int32_t>(axis.step);
  const Index first = axis.first < -kFarPixel  ? -kFarPixel
                      : axis.first > kFarPixel ? kFarPixel
                                               : axis.first;
  const auto begin = static_cast<std::int32_t>(first);
  const float* const own = grid + axis.channel;
  const float* const other = grid + 1 - axis.channel;
  const auto count = static_cast<std::int32_t>(results);
  for (std::int32_t i = 0; i < count; ++i) {
    const float given = own[2 * i];
    const bool is_number = (given == given) & (other[2 * i] == other[2 * i]);
    const float near = given < -kFarPosition ? -kFarPosition : given;
    const float near_on_both = near > kFarPosition ? kFarPosition : near;
    const float position = is_number ? near_on_both : __builtin_nanf("");
    const float below = __builtin_floorf(is_number ? position : 0.0F);
    const float beyond = position - below;  // NaN if a number is, and then the result is
    const std::int32_t at = begin + i * step + static_cast<std::int32_t>(below);
    const std::int32_t low = within(at, 0, last);
    const std::int32_t high = within(at + 1, 0, last);
    taps.offset[0][i] = low * axis.stride;
    taps.offset[1][i] = high * axis.stride;
    if constexpr (kClamps) {
      const bool is_one = (low == high) & is_number;
      taps.weight[0][i] = is_one ? 1.0F : 1.0F - beyond;
      taps.weight[1][i] = is_one ? 0.0F : beyond;
    } else {
      const bool reads_low = (low == at) | !is_number;
      const bool reads_high = (high == at + 1) | !is_number;
      taps.weight[0][i] = reads_low ? 1.0F - beyond : 0.0F;
      taps.weight[1][i] = reads_high ? beyond : 0.0F;
    }
  }
}

void find(const float* grid, Index results, const GridAxis& axis, GridTaps& taps) {
  axis.clamps ? find_taps<true>(grid, results, axis, taps)
              : find_taps<false>(grid, results, axis, taps);
}

// A pixel as the sum of others.
template <class Element>
struct Terms {
  const Element* from[4];
  float weight[4];
  int count = 0;

  MPSGRAD_INLINE void add(const Element* pixel, float times) {
    from[count] = pixel;
    weight[count] = times;
    ++count;
  }
};

// The four weights of every result of a run, in the order upper left, upper right, lower left,
// lower right.
struct GridWeights {
  float corner[4][kGridRun];
  float product[kGridRun];  // of the four weights along the axes: 0 where one of them is
};

void weigh(const GridTaps& x, const GridTaps& y, Index first, Index count, GridWeights& weights) {
  const auto end = static_cast<std::int32_t>(first + count);
  for (auto i = static_cast<std::int32_t>(first); i < end; ++i) {
    const float left = x.weight[0][i];
    const float right = x.weight[1][i];
    const float above = y.weight[0][i];
    const float below = y.weight[1][i];
    weights.corner[0][i] = above * left;
    weights.corner[1][i] = above * right;
    weights.corner[2][i] = below * left;
    weights.corner[3][i] = below * right;
    weights.product[i] = left * right * (above * below);
  }
}

// Two channels, as the lower half of a vector.
struct Couple {
  using Floats = Lanes<4>::Floats;
  typedef double Halves __attribute__((vector_size(16)));
  MPSGRAD_INLINE Floats floats(const float* from) const {
    return __builtin_bit_cast(Floats, Halves{load<double>(from), 0.0});
  }
  MPSGRAD_INLINE void put(float* to, Floats v) const {
    const double lower = __builtin_bit_cast(Halves, v)[0];
    store(to, lower);
  }
};

#if defined(__AVX512VL__)
// Three, as a vector whose last lane is neither read nor written.
struct Triple {
  using Floats = Lanes<4>::Floats;
  MPSGRAD_INLINE Floats floats(const float* from) const {
    return __builtin_bit_cast(Floats, _mm_maskz_loadu_ps(0b111, from));
  }
  MPSGRAD_INLINE void put(float* to, Floats v) const {
    Couple{}.put(to, v);
    to[2] = v[2];
  }
};
#endif

// out[i] = value(block, i), the block being one of a pixel's channels from i on.
template <class Block, class Element, class Value>
MPSGRAD_INLINE void fill_pixel(Block block, Index count, Element* out, const Value& value) {
  constexpr int kLanes = sizeof(typename Block::Floats) / sizeof(float);
  if constexpr (std::is_same_v<Block, WholeBlock<kLanes>>) {
    fill_row<kLanes>(count, out, [=](Index i) MPSGRAD_MELT { return value(block, i); });
  } else {
    block.put(out, value(block, Index{0}));
  }
}

template <int kCount, class Block, class Element>
MPSGRAD_INLINE void add_terms(Block block, const Terms<Element>& terms, Index count, Element* to) {
  const Element* from[kCount];
  float weight[kCount];
  for (int k = 0; k < kCount; ++k) {
    from[k] = terms.from[k];
    weight[k] = terms.weight[k];
  }
  fill_pixel(block, count, to, [=](auto some, Index i) MPSGRAD_MELT {
    auto sum = some.floats(from[0] + i) * weight[0];
    for (int k = 1; k < kCount; ++k) {
      sum += some.floats(from[k] + i) * weight[k];
    }
    return sum;
  });
}

// What is read may lie anywhere, so all of a run is asked for, of neighbours in half a line once;
// longer pixels are read as fast without.
template <class Element>
MPSGRAD_INLINE void request_taps(const GridSource<Element>& source, Index channels,
                                 const GridTaps& x, const GridTaps& y, Index first, Index count) {
  const Index neighbours = static_cast<Index>(kLine / 2 / sizeof(Element)) / channels;
  if (neighbours == 0) {
    return;
  }
  for (Index i = first; i < first + count; i += neighbours) {
    const Element* const column = source.image + x.offset[0][i];
    request(column, y.offset[0][i]);
    request(column, y.offset[1][i]);
  }
}

template <class Block, class Element>
MPSGRAD_INLINE void sample_pixels(Block block, const GridSource<Element>& given, Index channels,
                                  const GridTaps& x, const GridTaps& y, Index first, Index count,
                                  Results<Element> out) {
  const GridSource<Element> source = given;
  request_taps(source, channels, x, y, first, count);
  GridWeights weights;
  weigh(x, y, first, count, weights);
  const auto put = [=, &x, &y, &weights](Index p, Index c, Index some, Element* to) {
    const Index i = first + p;
    const Element* const upper = source.image + y.offset[0][i] + c;
    const Element* const lower = source.image + y.offset[1][i] + c;
    const Index left = x.offset[0][i];
    const Index right = x.offset[1][i];
    if (weights.product[i] != 0.0F) {  // mostly
      return fill_pixel(block, some, to, [=, &weights](auto part, Index j) MPSGRAD_MELT {
        auto sum = part.floats(upper + left + j) * weights.corner[0][i];
        sum += part.floats(upper + right + j) * weights.corner[1][i];
        sum += part.floats(lower + left + j) * weights.corner[2][i];
        sum += part.floats(lower + right + j) * weights.corner[3][i];
        return sum;
      });
    }
    const Element* const pixels[] = {upper + left, upper + right, lower + left, lower + right};
    Terms<Element> terms;
    for (int k = 0; k < 4; ++k) {
      if (weights.corner[k][i] != 0.0F) {
        terms.add(pixels[k], weights.corner[k][i]);
      }
    }
    switch (terms.count) {
      case 4:  // weights so small that the product of all is 0
        return add_terms<4>(block, terms, some, to);
      case 3:
        return add_terms<3>(block, terms, some, to);
      case 2:
        return add_terms<2>(block, terms, some, to);
      case 1:
        return add_terms<1>(block, terms, some, to);
      default:
        return clear(to, some);
    }
  };
  put_pixels(count, channels, out, put);
}

template <class Element>
void sample(const GridSource<Element>& source, const GridTaps& x, const GridTaps& y, Index first,
            Index count, Results<Element> out) {
  if constexpr (std::is_same_v<Element, float>) {
    if (source.channels == 2) {
      return sample_pixels(Couple{}, source, Exactly<2>{}, x, y, first, count, out);
    }
#if defined(__AVX512VL__)
    if (source.channels == 3) {
      return sample_pixels(Triple{}, source, Exactly<3>{}, x, y, first, count, out);
    }
#endif
  }
  with_channels(source.channels, [&](auto lanes, auto channels) {
    sample_pixels(WholeBlock<lanes>{}, source, channels, x, y, first, count, out);
  });
}

template <class Element>
constexpr GridLoops<Element> kLoops{&find, &sample<Element>};

}  // namespace

const ByElement<GridLoops> grid_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
