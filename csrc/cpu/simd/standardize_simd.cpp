// Centring and scaling loops: tile by tile, so that neighbours depend on nothing of each other
// whatever the number of channels.
#include "cpu/simd/standardize.hpp"

#include "cpu/simd/column_sums.hpp"
#include "cpu/simd/tiles.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

template <class Element>
void moments(const Element* x, Index count, const double* shift, double* sum, double* squares,
             Index tile, Index step) {
  const auto add = [=](auto block, Index i, Index j, auto& terms) {
    const auto d = block.widened(x + i) - load<typename decltype(block)::Numbers>(shift + j);
    terms[0] = added(terms[0], d);
    terms[1] += d * d;
  };
  if (count > kLongRun) {
    add_tiles<2, 2>(count, tile, step, {sum, squares}, add, x);
  } else {
    add_tiles<2, 4>(count, tile, step, {sum, squares}, add, x);
  }
}

template <class Element>
void forward(const Element* x, Results<Element> y, Index count, const float* MPSGRAD_RESTRICT mean,
             const float* MPSGRAD_RESTRICT scale, const float* MPSGRAD_RESTRICT offset, Index tile,
             const float* relu) {
  const auto standardized = [=](Index j, float value) {
    return (value - mean[j]) * scale[j] + offset[j];
  };
  if (relu == nullptr) {
    for_tiles(count, tile, y, standardized, x);
    return;
  }
  for_tiles(
      count, tile, y,
      [=, slope = *relu](Index j, float value) {
        const float z = standardized(j, value);
        return z >= 0.0F ? z : slope * z;
      },
      x);
}

// `gradient` times the slope of the ReLU at x.
template <class Singles>
MPSGRAD_INLINE Singles times_slope(const FusedReLU& relu, Singles gradient, Singles x, Index j) {
  const Singles z = (x - load<Singles>(relu.mean + j)) * load<Singles>(relu.scale + j) +
                    load<Singles>(relu.offset + j);
  return z >= Singles{} ? gradient : gradient * relu.slope;
}

template <class Element>
void gradient_sums(const Element* g, const Element* x, Index count, double* sum_g, double* sum_gx,
                   Index tile, Index step, const FusedReLU* relu) {
  const auto add_all = [=](const auto& values) {
    add_tiles<2, 2>(
        count, tile, step, {sum_g, sum_gx},
        [=](auto block, Index i, Index j, auto& terms) {
          const auto gradient = block.widened(values(block, i, j));
          terms[0] = added(terms[0], gradient);
          terms[1] += gradient * block.widened(x + i);
        },
        g, x);
  };
  if (relu == nullptr) {
    add_all(
        [=](auto block, Index i, Index) { return load<typename decltype(block)::Singles>(g + i); });
    return;
  }
  add_all([=, neuron = *relu](auto block, Index i, Index j) {
    using Singles = typename decltype(block)::Singles;
    return times_slope(neuron, load<Singles>(g + i), load<Singles>(x + i), j);
  });
}

template <class Element>
void gradient_moments(const Element* g, const Element* x, Index count, const double* shift,
                      double* sums, Index tile) {
  add_tiles<4, 2>(
      count, tile, tile, {sums, sums + tile, sums + 2 * tile, sums + 3 * tile},
      [=](auto block, Index i, Index j, auto& terms) {
        add_gradient_moments(block, g + i, x + i, shift + j, terms);
      },
      g, x);
}

template <class Element>
void gradient(const Element* g, const Element* x, Results<Element> y, Index count,
              const float* MPSGRAD_RESTRICT mean, const float* MPSGRAD_RESTRICT scale,
              const float* MPSGRAD_RESTRICT constant, const float* MPSGRAD_RESTRICT slope,
              Index tile, const FusedReLU* relu) {
  const auto gradient_of = [=](Index j, float incoming, float value) {
    return scale[j] * incoming - (constant[j] + (value - mean[j]) * slope[j]);
  };
  if (relu == nullptr) {
    for_tiles(count, tile, y, gradient_of, g, x);
    return;
  }
  for_tiles(
      count, tile, y,
      [=, neuron = *relu](Index j, float incoming, float value) {
        return gradient_of(j, times_slope(neuron, incoming, value, j), value);
      },
      g, x);
}

template <class Element>
constexpr StandardizeLoops<Element> kLoops{&moments<Element>, &forward<Element>,
                                           &gradient_sums<Element>, &gradient_moments<Element>,
                                           &gradient<Element>};

}  // namespace

const ByElement<StandardizeLoops> standardize_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
