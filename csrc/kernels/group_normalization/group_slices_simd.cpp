// Column by column: sums and coefficients stay in registers from the first pixel to the last.
#include "kernels/group_normalization/group_slices_simd.hpp"

#include "cpu/simd/column_sums.hpp"
#include "cpu/simd/elements.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

constexpr int kDoubles = kWidest / 2;

// Asks for the lines of `count` elements from `first` on, which may begin within a line.
template <class Element>
MPSGRAD_INLINE void request_run(const Element* array, Index first, Index count) {
  constexpr auto kElements = kLine / static_cast<Index>(sizeof(Element));
  for (Index i = 0; i < count; i += kElements) {
    request(array, first + i);
  }
  request(array, first + count - 1);
}

// Calls add(block, i, j, terms) as add_tiles() does, for each place j of a slice and each pixel,
// whose element is i. The next places of the pixel are asked for meanwhile: no processor foresees
// them.
template <int kSums, class Add, class... Sources>
MPSGRAD_INLINE void sum_columns(const GroupSlice& slice, double* sums, const Add& add,
                                const Sources*... x) {
  const auto [pixels, step, channels] = slice;
  const auto sum_places = [&, pixels = pixels, step = step, channels = channels](
                              auto block, auto vectors, Index width, Index j) MPSGRAD_MELT {
    constexpr Index kVectors = vectors;
    using Numbers = typename decltype(block)::Numbers;
    Numbers terms[kVectors][kSums] = {};
    for (Index pixel = 0; pixel < pixels; ++pixel) {
      const Index first = pixel * step + j;
      (request_run(x, first + kVectors * width, kVectors * width), ...);
      for (Index v = 0; v < kVectors; ++v) {
        add(block, first + v * width, j + v * width, terms[v]);
      }
    }
    for (Index v = 0; v < kVectors; ++v) {
      for (int k = 0; k < kSums; ++k) {
        store(sums + k * channels + j + v * width, terms[v][k]);
      }
    }
  };
  constexpr int kTogether = kRegisters / 2 / kSums < 4 ? kRegisters / 2 / kSums : 4;
  Index j = 0;
  for (; j + kTogether * kDoubles <= channels; j += kTogether * kDoubles) {
    sum_places(SeveralDoubles<kDoubles>{}, Exactly<kTogether>{}, kDoubles, j);
  }
  for (; j + kDoubles <= channels; j += kDoubles) {
    sum_places(SeveralDoubles<kDoubles>{}, Exactly<1>{}, kDoubles, j);
  }
  for (; j < channels; ++j) {
    sum_places(OneDouble{}, Exactly<1>{}, 1, j);
  }
}

// Some coefficients of one place or of several neighbouring ones.
template <class Floats, int kCount>
struct Coefficients {
  Floats of[kCount];
};

// y[i] = value(coefficients of its place, x[i]...) for every element of a slice. Of pixels that lie
// a page or more apart, or that go past the caches, one is written after the other.
template <int kCount, class Element, class Value, class... Sources>
MPSGRAD_INLINE void transform_slice(const GroupSlice& slice, Results<Element> y,
                                    const float* const (&coefficients)[kCount], const Value& value,
                                    const Sources*... x) {
  const auto [pixels, step, channels] = slice;
  constexpr Index kPage = 4096;
  if (y.streamed || step * static_cast<Index>(sizeof(Element)) >= kPage) {
    const float* own[kCount];
    for (int k = 0; k < kCount; ++k) {
      own[k] = coefficients[k];
    }
    for (Index row = 0; row < pixels * step; row += step) {
      transform_run(
          0, channels, Results<Element>{y.at + row, y.streamed},
          [=](Index j, auto... values) MPSGRAD_MELT {
            Coefficients<float, kCount> here;
            for (int k = 0; k < kCount; ++k) {
              here.of[k] = own[k][j];
            }
            return value(here, values...);
          },
          (x + row)...);
    }
    return;
  }
  const auto transform_places = [&, pixels = pixels, step = step](
                                    auto block, auto vectors, Index width, Index j) MPSGRAD_MELT {
    constexpr Index kVectors = vectors;
    Coefficients<typename decltype(block)::Floats, kCount> own[kVectors];
    for (Index v = 0; v < kVectors; ++v) {
      for (int k = 0; k < kCount; ++k) {
        own[v].of[k] = block.floats(coefficients[k] + j + v * width);
      }
    }
    for (Index pixel = 0; pixel < pixels; ++pixel) {
      const Index first = pixel * step + j;
      typename decltype(block)::Floats results[kVectors];  // all of them before the first is stored
      for (Index v = 0; v < kVectors; ++v) {
        results[v] = value(own[v], block.floats(x + first + v * width)...);
      }
      for (Index v = 0; v < kVectors; ++v) {
        block.put(y.at + first + v * width, results[v]);
      }
    }
  };
  constexpr int kTogether = kRegisters / 2 / 4;
  Index j = 0;
  for (; j + kTogether * kWidest <= channels; j += kTogether * kWidest) {
    transform_places(WholeBlock<kWidest>{}, Exactly<kTogether>{}, kWidest, j);
  }
  for_blocks(channels - j, [&](auto block, Index i)
                               MPSGRAD_MELT { transform_places(block, Exactly<1>{}, 0, j + i); });
}

template <class Element>
void moments(const GroupSlice& slice, const Element* x, const double* shift, double* sums) {
  sum_columns<2>(
      slice, sums,
      [=](auto block, Index i, Index j, auto& terms) MPSGRAD_MELT {
        const auto d = block.widened(x + i) - load<typename decltype(block)::Numbers>(shift + j);
        terms[0] = added(terms[0], d);
        terms[1] += d * d;
      },
      x);
}

template <class Element>
void gradient_moments(const GroupSlice& slice, const Element* g, const Element* x,
                      const double* shift, double* sums) {
  sum_columns<4>(
      slice, sums,
      [=](auto block, Index i, Index j, auto& terms)
          MPSGRAD_MELT { add_gradient_moments(block, g + i, x + i, shift + j, terms); },
      g, x);
}

template <class Element>
void forward(const GroupSlice& slice, const Element* x, Results<Element> y, const float* mean,
             const float* scale, const float* offset) {
  transform_slice(
      slice, y, {mean, scale, offset},
      [](const auto& here, auto value)
          MPSGRAD_MELT { return (value - here.of[0]) * here.of[1] + here.of[2]; },
      x);
}

template <class Element>
void gradient(const GroupSlice& slice, const Element* g, const Element* x, Results<Element> y,
              const float* mean, const float* scale, const float* constant, const float* slope) {
  transform_slice(
      slice, y, {mean, scale, constant, slope},
      [](const auto& here, auto incoming, auto value) MPSGRAD_MELT {
        return here.of[1] * incoming - (here.of[2] + (value - here.of[0]) * here.of[3]);
      },
      g, x);
}

template <class Element>
constexpr GroupSliceLoops<Element> kLoops{&moments<Element>, &gradient_moments<Element>,
                                          &forward<Element>, &gradient<Element>};

}  // namespace

const ByElement<GroupSliceLoops> group_slice_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
