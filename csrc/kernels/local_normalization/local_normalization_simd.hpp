// Loops of the local normalization kernels: sums over windows, one direction at a time, and what is
// made of them.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/results.hpp"

namespace mpsgrad {

// The parameters as the loops need them, N values in a window.
struct LocalNormalizationFormula {
  float delta, exponent;  // base = delta + scale * squares, raised to -beta
  float scale;            // alpha / N
  float weight;           // 2 alpha beta / N
  float p0, pm, ps;
  float mean_weight;      // p0 / N
  double alpha, inverse;  // 1 / N
};

inline constexpr std::int64_t kShortWindow = 12;  // is added up tap by tap

// How far a window reaches to one side at most.
constexpr std::int64_t gap_across(std::int64_t before, std::int64_t taps) {
  return before > taps - 1 - before ? before : taps - 1 - before;
}
constexpr std::int64_t scratch_across(std::int64_t pixels, std::int64_t channels,
                                      std::int64_t before, std::int64_t taps) {
  const std::int64_t gap = gap_across(before, taps);
  return taps <= kShortWindow ? 0 : gap + taps + 2 * pixels * (channels + gap);
}

// No two arrays overlap, but for what is said to be changed.
struct LocalNormalizationLoops {
  // Sums of rows, elements apart: weight * the sum over `count` rows of what each name says, added
  // to what the result holds unless `begins`.
  void (*add_rows)(const float* const* rows, std::int64_t count, bool begins, std::int64_t elements,
                   float* sums);
  void (*add_squares)(const float* const* rows, std::int64_t count, float weight, bool begins,
                      std::int64_t elements, float* squares);
  void (*add_moments)(const float* const* rows, std::int64_t count, double weight, bool begins,
                      std::int64_t elements, double* sums, double* squares);

  // Sums along a row: out[e] = values[e] + values[e + step] + ..., `taps` of them. Destroys
  // values, which hold elements + (taps - 1) * step.
  void (*add_taps)(float* values, std::int64_t taps, std::int64_t step, std::int64_t elements,
                   float* out);
  void (*add_taps_wide)(double* values, std::int64_t taps, std::int64_t step, std::int64_t elements,
                        double* out);

  // Sums over windows of the channels of each pixel, of squares or values: out[c] = x[c - before]^2
  // + ..., `taps` of them, zero where there is no channel; before < taps. `scratch` holds
  // scratch_across() floats.
  void (*squares_across)(const float* x, std::int64_t pixels, std::int64_t channels,
                         std::int64_t before, std::int64_t taps, float* scratch, float* out);
  void (*values_across)(const float* x, std::int64_t pixels, std::int64_t channels,
                        std::int64_t before, std::int64_t taps, float* scratch, float* out);

  // x * base^-beta.
  void (*normalize)(const LocalNormalizationFormula& f, const float* x, const float* squares,
                    std::int64_t elements, Results<float> out);
  // scaled = gradient * base^-beta, shared = scaled * x / base.
  void (*share)(const LocalNormalizationFormula& f, const float* gradient, const float* x,
                const float* squares, std::int64_t elements, float* scaled, float* shared);
  // scaled - weight * x * (shared summed over the transposed window).
  void (*collect)(const LocalNormalizationFormula& f, const float* x, const float* scaled,
                  const float* shared, std::int64_t elements, Results<float> out);

  // The same for local contrast: its base is delta + alpha * variance, and what is shared comes in
  // two parts, one of them to be multiplied by x.
  void (*contrast)(const LocalNormalizationFormula& f, const float* x, const double* sums,
                   const double* squares, std::int64_t elements, Results<float> out);
  void (*share_contrast)(const LocalNormalizationFormula& f, const float* gradient, const float* x,
                         const double* sums, const double* squares, std::int64_t elements,
                         float* scaled, float* by_value, float* by_mean);
  void (*collect_contrast)(const LocalNormalizationFormula& f, const float* x, const float* scaled,
                           const float* by_value, const float* by_mean, std::int64_t elements,
                           Results<float> out);
};

MPSGRAD_LOOPS(LocalNormalizationLoops, local_normalization_loops)

}  // namespace mpsgrad
