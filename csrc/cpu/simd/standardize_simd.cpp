// Centring and scaling loops: tile by tile, so that neighbours depend on nothing of each other
// whatever the number of channels.
#include "cpu/simd/standardize.hpp"

#include "cpu/simd/simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// Coefficients and sums of so many channels stay in a first-level cache while a run goes by.
constexpr Index kColumns = 512;

// Calls body(i, j) for each value i of a run and its place j in a tile, a vector loop for each row
// of a block of places.
template <class Body>
MPSGRAD_INLINE void for_tiles(Index count, Index tile, const Body& body) {
  for (Index begin = 0; begin < tile; begin += kColumns) {
    const Index end = begin + kColumns < tile ? begin + kColumns : tile;
    for (Index row = 0; row + begin < count; row += tile) {
      const Index last = count - row < end ? count - row : end;
      MPSGRAD_VECTOR_LOOP
      for (Index j = begin; j < last; ++j) {
        body(row + j, j);
      }
    }
  }
}

void moments(const float* MPSGRAD_RESTRICT x, Index count, const double* MPSGRAD_RESTRICT shift,
             double* MPSGRAD_RESTRICT sum, double* MPSGRAD_RESTRICT squares, Index tile) {
  for_tiles(count, tile, [=](Index i, Index j) {
    const double d = static_cast<double>(x[i]) - shift[j];
    sum[j] += d;
    squares[j] += d * d;
  });
}

void forward(const float* x, float* MPSGRAD_RESTRICT y, Index count,
             const float* MPSGRAD_RESTRICT mean, const float* MPSGRAD_RESTRICT scale,
             const float* MPSGRAD_RESTRICT offset, Index tile) {
  for_tiles(count, tile, [=](Index i, Index j) { y[i] = (x[i] - mean[j]) * scale[j] + offset[j]; });
}

void gradient_sums(const float* g, const float* x, Index count,
                   const double* MPSGRAD_RESTRICT shift, double* MPSGRAD_RESTRICT sum_g,
                   double* MPSGRAD_RESTRICT sum_gx, Index tile) {
  for_tiles(count, tile, [=](Index i, Index j) {
    const auto gradient = static_cast<double>(g[i]);
    sum_g[j] += gradient;
    sum_gx[j] += gradient * (static_cast<double>(x[i]) - shift[j]);
  });
}

void gradient_moments(const float* g, const float* x, Index count,
                      const double* MPSGRAD_RESTRICT shift, double* MPSGRAD_RESTRICT sums,
                      Index tile) {
  double* MPSGRAD_RESTRICT sum_g = sums;
  double* MPSGRAD_RESTRICT sum_gx = sums + tile;
  double* MPSGRAD_RESTRICT sum = sums + 2 * tile;
  double* MPSGRAD_RESTRICT squares = sums + 3 * tile;
  for_tiles(count, tile, [=](Index i, Index j) {
    const auto gradient = static_cast<double>(g[i]);
    const double d = static_cast<double>(x[i]) - shift[j];
    sum_g[j] += gradient;
    sum_gx[j] += gradient * d;
    sum[j] += d;
    squares[j] += d * d;
  });
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
