// Positions and weights of upsampling.
#include "kernels/upsampling/upsampling_axes.hpp"

#include <algorithm>

namespace mpsgrad::cpu::upsampling {
namespace {

// The source pixels of result i.
InterpolationTaps taps_of(const AxisRule& rule, Index i) {
  if (rule.kind == UpsamplingKind::Nearest) {
    return taps_on(rule.source, i / rule.factor);
  }
  const Index length = rule.source.length;
  return taps_between(rule.source,
                      position_of(i, length, length * rule.factor, rule.align_corners));
}

}  // namespace

std::vector<InterpolationTaps> taps_of_all(const AxisRule& rule, Index results) {
  std::vector<InterpolationTaps> all;
  all.reserve(static_cast<std::size_t>(results));
  for (Index i = 0; i < results; ++i) {
    all.push_back(taps_of(rule, i));
  }
  return all;
}

AxisSums::AxisSums(const std::vector<InterpolationTaps>& taps, Index primary, Index given,
                   Index pixels)
    : sums_(static_cast<std::size_t>(pixels)) {
  const auto results = static_cast<Index>(taps.size());
  const Index first = std::clamp<Index>(-primary, 0, results);
  const Index last = std::clamp<Index>(given - primary, first, results);
  const auto visit = [&](const auto& body) {
    for (Index i = first; i < last; ++i) {
      const InterpolationTaps& own = taps[static_cast<std::size_t>(i)];
      for (int k = 0; k < own.count; ++k) {
        if (own.pixel[k] < pixels) {
          body(sums_[static_cast<std::size_t>(own.pixel[k])], primary + i, own.weight[k]);
        }
      }
    }
  };
  // Positions never go back, so the results of a pixel follow each other.
  visit([](UpsamplingSum& sum, Index i, float /*weight*/) {
    if (sum.count == 0) {
      sum.first = static_cast<std::int32_t>(i);
    }
    ++sum.count;
  });
  std::int32_t total = 0;
  for (UpsamplingSum& sum : sums_) {
    sum.weight = total;
    total += sum.count;
    most_ = std::max<Index>(most_, sum.count);
  }
  weights_.resize(static_cast<std::size_t>(total));
  visit([&](const UpsamplingSum& sum, Index i, float weight) {
    weights_[static_cast<std::size_t>(sum.weight + i - sum.first)] = weight;
  });
}

}  // namespace mpsgrad::cpu::upsampling
