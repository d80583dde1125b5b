// Positions and weights of upsampling.
#include "kernels/upsampling/upsampling_axes.hpp"

#include <algorithm>

namespace mpsgrad::cpu::upsampling {
namespace {

// A place between two pixels, counted from the first one.
struct Position {
  Index pixel = 0;
  double beyond = 0.0;  // of the way to the next pixel, below 1
};

// Where result i of a bilinear axis lies. Apple does not say it for corners that are not aligned:
// this is the one place that decides.
Position position_of(const AxisRule& rule, Index i) {
  const Index along = rule.align_corners ? i * (rule.length - 1) : i;
  const Index of = rule.align_corners ? rule.length * rule.factor - 1 : rule.factor;
  if (of == 0) {
    return {};
  }
  return {along / of, static_cast<double>(along % of) / static_cast<double>(of)};
}

void add_tap(const AxisRule& rule, Index pixel, double weight, UpsamplingTaps& taps) {
  if (rule.edge == EdgeMode::Clamp) {
    pixel = std::clamp<Index>(pixel, 0, rule.length - 1);
  } else if (pixel < 0 || pixel >= rule.length) {
    return;
  }
  if (taps.count == 1 && taps.pixel[0] == pixel) {
    taps.weight[0] = 1.0F;  // both weights together
    return;
  }
  taps.pixel[taps.count] = static_cast<std::int32_t>(pixel);
  taps.weight[taps.count] = static_cast<float>(weight);
  ++taps.count;
}

// The source pixels of result i.
UpsamplingTaps taps_of(const AxisRule& rule, Index i) {
  UpsamplingTaps taps{};
  if (rule.kind == UpsamplingKind::Nearest) {
    add_tap(rule, rule.offset + i / rule.factor, 1.0, taps);
    return taps;
  }
  const Position position = position_of(rule, i);
  const Index pixel = rule.offset + position.pixel;
  add_tap(rule, pixel, 1.0 - position.beyond, taps);
  if (position.beyond > 0.0) {
    // Behind the last pixel of the source there is nothing to go to, in any edge mode.
    add_tap(rule, pixel == rule.length - 1 ? pixel : pixel + 1, position.beyond, taps);
  }
  return taps;
}

}  // namespace

std::vector<UpsamplingTaps> taps_of_all(const AxisRule& rule, Index results) {
  std::vector<UpsamplingTaps> all;
  all.reserve(static_cast<std::size_t>(results));
  for (Index i = 0; i < results; ++i) {
    all.push_back(taps_of(rule, i));
  }
  return all;
}

AxisSums::AxisSums(const std::vector<UpsamplingTaps>& taps, Index primary, Index given,
                   Index pixels)
    : sums_(static_cast<std::size_t>(pixels)) {
  const auto results = static_cast<Index>(taps.size());
  const Index first = std::clamp<Index>(-primary, 0, results);
  const Index last = std::clamp<Index>(given - primary, first, results);
  const auto visit = [&](const auto& body) {
    for (Index i = first; i < last; ++i) {
      const UpsamplingTaps& own = taps[static_cast<std::size_t>(i)];
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
  }
  weights_.resize(static_cast<std::size_t>(total));
  visit([&](const UpsamplingSum& sum, Index i, float weight) {
    weights_[static_cast<std::size_t>(sum.weight + i - sum.first)] = weight;
  });
}

std::pair<Index, Index> AxisSums::readers(Index first, Index last) const {
  std::pair<Index, Index> found{0, 0};
  for (Index k = first; k < last; ++k) {
    const UpsamplingSum& sum = sums_[static_cast<std::size_t>(k)];
    if (sum.count > 0) {
      if (found.first == found.second) {
        found.first = sum.first;
      }
      found.second = sum.first + sum.count;
    }
  }
  return found;
}

}  // namespace mpsgrad::cpu::upsampling
