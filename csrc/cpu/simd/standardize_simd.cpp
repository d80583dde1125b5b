// Centring and scaling loops: tile by tile, so that neighbours depend on nothing of each other
// whatever the number of channels.
#include "cpu/simd/standardize.hpp"

#include "cpu/simd/simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// Calls body(first, length) for each tile of a run; the last may be shorter.
template <class Body>
MPSGRAD_INLINE void for_tiles(Index count, Index tile, const Body& body) {
  for (Index first = 0; first < count; first += tile) {
    body(first, count - first < tile ? count - first : tile);
  }
}

void moments(const float* x, Index count, const double* MPSGRAD_RESTRICT shift,
             double* MPSGRAD_RESTRICT sum, double* MPSGRAD_RESTRICT squares, Index tile) {
  for_tiles(count, tile, [=](Index first, Index length) {
    const float* MPSGRAD_RESTRICT values = x + first;
    MPSGRAD_VECTOR_LOOP
    for (Index j = 0; j < length; ++j) {
      const double d = static_cast<double>(values[j]) - shift[j];
      sum[j] += d;
      squares[j] += d * d;
    }
  });
}

void forward(const float* x, float* y, Index count, const float* MPSGRAD_RESTRICT mean,
             const float* MPSGRAD_RESTRICT scale, const float* MPSGRAD_RESTRICT offset,
             Index tile) {
  for_tiles(count, tile, [=](Index first, Index length) {
    const float* MPSGRAD_RESTRICT values = x + first;
    float* MPSGRAD_RESTRICT out = y + first;
    MPSGRAD_VECTOR_LOOP
    for (Index j = 0; j < length; ++j) {
      out[j] = (values[j] - mean[j]) * scale[j] + offset[j];
    }
  });
}

void gradient_sums(const float* g, const float* x, Index count, const double* MPSGRAD_RESTRICT mean,
                   const double* MPSGRAD_RESTRICT r, double* MPSGRAD_RESTRICT sum_g,
                   double* MPSGRAD_RESTRICT sum_gx, Index tile) {
  for_tiles(count, tile, [=](Index first, Index length) {
    const float* values = x + first;
    const float* gradients = g + first;
    MPSGRAD_VECTOR_LOOP
    for (Index j = 0; j < length; ++j) {
      const auto gradient = static_cast<double>(gradients[j]);
      sum_g[j] += gradient;
      sum_gx[j] += gradient * ((static_cast<double>(values[j]) - mean[j]) * r[j]);
    }
  });
}

void gradient(const float* g, const float* x, float* y, Index count,
              const float* MPSGRAD_RESTRICT mean, const float* MPSGRAD_RESTRICT scale,
              const float* MPSGRAD_RESTRICT constant, const float* MPSGRAD_RESTRICT slope,
              Index tile) {
  for_tiles(count, tile, [=](Index first, Index length) {
    const float* values = x + first;
    const float* gradients = g + first;
    float* MPSGRAD_RESTRICT out = y + first;
    MPSGRAD_VECTOR_LOOP
    for (Index j = 0; j < length; ++j) {
      out[j] = scale[j] * gradients[j] - (constant[j] + (values[j] - mean[j]) * slope[j]);
    }
  });
}

}  // namespace

const StandardizeLoops standardize_loops{&moments, &forward, &gradient_sums, &gradient};

}  // namespace mpsgrad::MPSGRAD_ISA
