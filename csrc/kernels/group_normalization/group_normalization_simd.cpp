// Loops over the channels of groups, several channels at a time where a group has them.
#include "kernels/group_normalization/group_normalization_simd.hpp"

#include "cpu/simd/simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

constexpr Index kSide = 16;

// The sum of value(i) for i < count, in an order that keeps a processor's adders busy.
template <class Value>
MPSGRAD_INLINE double sum_of(Index count, const Value& value) {
  double total = 0.0;
  Index i = 0;
  if (count >= kSide) {
    double sums[kSide] = {};
    for (; i + kSide <= count; i += kSide) {
      for (Index k = 0; k < kSide; ++k) {
        sums[k] += value(i + k);
      }
    }
    for (Index half = kSide / 2; half > 0; half /= 2) {
      for (Index k = 0; k < half; ++k) {
        sums[k] += sums[k + half];
      }
    }
    total = sums[0];
  }
  for (; i < count; ++i) {
    total += value(i);
  }
  return total;
}

void statistics(const ChannelGroups& in, const double* sums, const double* squares, double epsilon,
                GroupStatistics* statistics) {
  for (Index group = 0; group < in.groups; ++group) {
    const Index first = group * in.channels;
    const double sum = sum_of(in.channels, [=](Index i) MPSGRAD_MELT { return sums[first + i]; });
    const double square =
        sum_of(in.channels, [=](Index i) MPSGRAD_MELT { return squares[first + i]; });
    const double moment = (square - sum * sum / in.count) / in.count;
    const double variance = moment < 0.0 ? 0.0 : moment;  // rounding only; NaN stays
    statistics[group] = {in.shift[first] + sum / in.count,
                         1.0 / __builtin_sqrt(variance + epsilon)};
  }
}

void forward(const ChannelGroups& in, const GroupStatistics* statistics, const float* beta,
             float* mean, float* scale, float* offset) {
  for (Index group = 0; group < in.groups; ++group) {
    const Index first = group * in.channels;
    const auto [own_mean, r] = statistics[group];
    const auto rounded = static_cast<float>(own_mean);
    const double rest = own_mean - double{rounded};
    for (Index c = first; c < first + in.channels; ++c) {
      const double factor = in.gamma != nullptr ? double{in.gamma[c]} * r : r;
      mean[c] = rounded;
      scale[c] = static_cast<float>(factor);
      offset[c] = static_cast<float>((beta != nullptr ? double{beta[c]} : 0.0) - factor * rest);
    }
  }
}

template <class Gamma>
MPSGRAD_INLINE void gradient_with(const Gamma& gamma_at, const ChannelGroups& in,
                                  const GroupStatistics* statistics, const double* sum_g,
                                  const double* sum_gx, const GroupGradientArrays& to) {
  const GroupGradientArrays out = to;
  const Index channels = in.channels;
  for (Index group = 0; group < in.groups; ++group) {
    const Index first = group * channels;
    const auto [mean, r] = statistics[group];
    const double apart = mean - in.shift[first];
    const auto centred = [=, r = r](Index c)
                             MPSGRAD_MELT { return r * (sum_gx[c] - apart * sum_g[c]); };
    const double by_beta = sum_of(
        channels, [=](Index i) MPSGRAD_MELT { return gamma_at(first + i) * sum_g[first + i]; });
    const double by_gamma = sum_of(
        channels, [=](Index i) MPSGRAD_MELT { return gamma_at(first + i) * centred(first + i); });
    // One value is its own mean, whatever it is: nothing comes through.
    const double factor = in.count > 1.0 ? r : 0.0;
    const double steepness = factor * (r * (by_gamma / in.count));
    const auto rounded = static_cast<float>(mean);
    const double rest = mean - double{rounded};
    const auto constant = static_cast<float>(factor * (by_beta / in.count) - rest * steepness);
    const auto slope = static_cast<float>(steepness);
    MPSGRAD_VECTOR_LOOP
    for (Index c = first; c < first + channels; ++c) {
      out.mean[c] = rounded;
      out.scale[c] = static_cast<float>(gamma_at(c) * factor);
      out.constant[c] = constant;
      out.slope[c] = slope;
      out.beta_sums[c] = static_cast<float>(sum_g[c]);
      out.gamma_sums[c] = static_cast<float>(centred(c));
    }
  }
}

void gradient(const ChannelGroups& in, const GroupStatistics* statistics, const double* sum_g,
              const double* sum_gx, const GroupGradientArrays& out) {
  if (in.gamma == nullptr) {
    return gradient_with([](Index) MPSGRAD_MELT { return 1.0; }, in, statistics, sum_g, sum_gx,
                         out);
  }
  gradient_with([gamma = in.gamma](Index c) MPSGRAD_MELT { return double{gamma[c]}; }, in,
                statistics, sum_g, sum_gx, out);
}

}  // namespace

const GroupNormalizationLoops group_normalization_loops{&statistics, &forward, &gradient};

}  // namespace mpsgrad::MPSGRAD_ISA
