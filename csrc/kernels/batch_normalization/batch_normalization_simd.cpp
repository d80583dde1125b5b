// Loops over channels. Each is written so that compilers take several channels at a time. Quotients
// by the number of samples are products with its reciprocal: where pixels are few and channels
// many, divisions in double show.
#include "kernels/batch_normalization/batch_normalization_simd.hpp"

#include "cpu/simd/simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

MPSGRAD_INLINE double reciprocal_deviation(float variance, float epsilon) {
  return 1.0 / __builtin_sqrt(double{variance} + double{epsilon});
}

// Calls loop(gamma_at), gamma_at(c) being 1 where there is no gamma.
template <class Loop>
MPSGRAD_INLINE void with_gamma(const float* gamma, const Loop& loop) {
  if (gamma == nullptr) {
    return loop([](Index) MPSGRAD_MELT { return 1.0; });
  }
  loop([gamma](Index c) MPSGRAD_MELT { return double{gamma[c]}; });
}

void statistics(Index channels, const double* shift, const double* sum, const double* squares,
                double samples, float* mean, float* variance) {
  const double share = 1.0 / samples;
  MPSGRAD_VECTOR_LOOP
  for (Index c = 0; c < channels; ++c) {
    const double from_shift = sum[c] * share;
    mean[c] = static_cast<float>(shift[c] + from_shift);
    const double moment = (squares[c] - sum[c] * from_shift) * share;
    variance[c] = static_cast<float>(moment < 0.0 ? 0.0 : moment);  // NaN stays
  }
}

void scales(Index channels, const float* gamma, const float* variance, float epsilon,
            float* scale) {
  with_gamma(gamma, [&](const auto& gamma_at) MPSGRAD_MELT {
    MPSGRAD_VECTOR_LOOP
    for (Index c = 0; c < channels; ++c) {
      scale[c] = static_cast<float>(gamma_at(c) * reciprocal_deviation(variance[c], epsilon));
    }
  });
}

void add_sums(Index channels, const double* sum_g, const double* sum_gx, const float* mean,
              const float* variance, float epsilon, double* beta_sum, double* gamma_sum,
              float* beta, float* gamma) {
  // Without spread every sample is the mean, and what is left after rounding is not to meet an r of
  // up to 2^63. Of smaller samples a variance of 0 says nothing: neighbours differ by less than
  // float32 can square, even if one in 2^40 is the other one. There little is left.
  constexpr float kTellsSpread = 0x1p-30F;
  MPSGRAD_VECTOR_LOOP
  for (Index c = 0; c < channels; ++c) {
    const bool same = variance[c] == 0.0F && __builtin_fabsf(mean[c]) > kTellsSpread;
    const double centred = same ? 0.0 * sum_g[c] : sum_gx[c] - double{mean[c]} * sum_g[c];
    beta_sum[c] += sum_g[c];
    gamma_sum[c] += reciprocal_deviation(variance[c], epsilon) * centred;
    beta[c] = static_cast<float>(beta_sum[c]);
    gamma[c] = static_cast<float>(gamma_sum[c]);
  }
}

void corrections(Index channels, const float* gamma, const float* variance, float epsilon,
                 const float* beta_sum, const float* gamma_sum, double samples, float* constant,
                 float* slope) {
  const double share = 1.0 / samples;
  with_gamma(gamma, [&](const auto& gamma_at) MPSGRAD_MELT {
    MPSGRAD_VECTOR_LOOP
    for (Index c = 0; c < channels; ++c) {
      const double r = reciprocal_deviation(variance[c], epsilon);
      const double factor = gamma_at(c) * r * share;
      constant[c] = static_cast<float>(factor * double{beta_sum[c]});
      slope[c] = static_cast<float>(factor * r * double{gamma_sum[c]});
    }
  });
}

}  // namespace

const BatchNormalizationLoops batch_normalization_loops{&statistics, &scales, &add_sums,
                                                        &corrections};

}  // namespace mpsgrad::MPSGRAD_ISA
