// Centring and scaling loops: tile by tile, so that neighbours depend on nothing of each other
// whatever the number of channels.
#include "cpu/simd/standardize.hpp"

#include "cpu/simd/column_sums.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// Calls body(i, j) for each value i of a run and its place j in a tile.
template <class Body>
MPSGRAD_INLINE void for_tiles(Index count, Index tile, const Body& body) {
  for_rows<1>(count, tile, tile, [&](auto /*rows*/, Index row, Index begin, Index end) {
    MPSGRAD_VECTOR_LOOP
    for (Index j = begin; j < end; ++j) {
      body(row + j, j);
    }
  });
}

void moments(const float* x, Index count, const double* shift, double* sum, double* squares,
             Index tile, Index step) {
  add_tiles<2>(
      count, tile, step, {sum, squares},
      [=](auto block, Index i, Index j, auto& terms) {
        const auto d = block.widened(x + i) - load<typename decltype(block)::Numbers>(shift + j);
        terms[0] += d;
        terms[1] += d * d;
      },
      x);
}

void forward(const float* x, float* MPSGRAD_RESTRICT y, Index count,
             const float* MPSGRAD_RESTRICT mean, const float* MPSGRAD_RESTRICT scale,
             const float* MPSGRAD_RESTRICT offset, Index tile, const float* relu) {
  if (relu == nullptr) {
    for_tiles(count, tile,
              [=](Index i, Index j) { y[i] = (x[i] - mean[j]) * scale[j] + offset[j]; });
    return;
  }
  for_tiles(count, tile, [=, slope = *relu](Index i, Index j) {
    const float z = (x[i] - mean[j]) * scale[j] + offset[j];
    y[i] = z >= 0.0F ? z : slope * z;
  });
}

// `gradient` times the slope of the ReLU at x[i].
template <class Singles>
MPSGRAD_INLINE Singles times_slope(const FusedReLU& relu, Singles gradient, const float* x, Index i,
                                   Index j) {
  const Singles z =
      (load<Singles>(x + i) - load<Singles>(relu.mean + j)) * load<Singles>(relu.scale + j) +
      load<Singles>(relu.offset + j);
  return z >= Singles{} ? gradient : gradient * relu.slope;
}

void gradient_sums(const float* g, const float* x, Index count, const double* shift, double* sum_g,
                   double* sum_gx, Index tile, Index step, const FusedReLU* relu) {
  const auto add_all = [=](const auto& values) {
    add_tiles<2>(
        count, tile, step, {sum_g, sum_gx},
        [=](auto block, Index i, Index j, auto& terms) {
          const auto gradient = block.widened(values(block, i, j));
          terms[0] += gradient;
          terms[1] += gradient *
                      (block.widened(x + i) - load<typename decltype(block)::Numbers>(shift + j));
        },
        g, x);
  };
  if (relu == nullptr) {
    add_all(
        [=](auto block, Index i, Index) { return load<typename decltype(block)::Singles>(g + i); });
    return;
  }
  add_all([=, neuron = *relu](auto block, Index i, Index j) {
    return times_slope(neuron, load<typename decltype(block)::Singles>(g + i), x, i, j);
  });
}

void gradient_moments(const float* g, const float* x, Index count, const double* shift,
                      double* sums, Index tile) {
  add_tiles<4>(
      count, tile, tile, {sums, sums + tile, sums + 2 * tile, sums + 3 * tile},
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
              Index tile, const FusedReLU* relu) {
  if (relu == nullptr) {
    for_tiles(count, tile, [=](Index i, Index j) {
      y[i] = scale[j] * g[i] - (constant[j] + (x[i] - mean[j]) * slope[j]);
    });
    return;
  }
  for_tiles(count, tile, [=, neuron = *relu](Index i, Index j) {
    y[i] =
        scale[j] * times_slope(neuron, g[i], x, i, j) - (constant[j] + (x[i] - mean[j]) * slope[j]);
  });
}

}  // namespace

const StandardizeLoops standardize_loops{&moments, &forward, &gradient_sums, &gradient_moments,
                                         &gradient};

}  // namespace mpsgrad::MPSGRAD_ISA
