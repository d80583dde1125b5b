// Loops of the upsampling gradients.
#include "kernels/upsampling/upsampling_simd.hpp"

#include "cpu/simd/lanes.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

template <int kLanes, int kTargets, class Element>
MPSGRAD_INLINE void gather_pixels(const Element* gradient, const UpsamplingSums& sums,
                                  const UpsamplingTarget* targets) {
  using V = Floats<kLanes>;
  const Index channels = sums.channels;
  const UpsamplingTarget first = targets[0];
  const UpsamplingTarget second = targets[kTargets - 1];
  const auto added = [](const UpsamplingTarget& target, Index i, V value) MPSGRAD_MELT {
    const V share = value * target.weight;
    return target.begins ? share : load<V>(target.row + i) + share;
  };
  for (Index p = 0; p < sums.pixels; ++p) {
    const UpsamplingSum& sum = sums.columns[p];
    const float* const weights = sums.weights + sum.weight;
    const Element* const from = gradient + sum.first * channels;
    const Index taps = sum.count;
    const auto total_at = [=](Index c) MPSGRAD_MELT {
      V total = {};
      for (Index t = 0; t < taps; ++t) {
        total += load<V>(from + t * channels + c) * weights[t];
      }
      return total;
    };
    // The last vector reaches back over the one before, so it is found before anything is written.
    const Index at = p * channels;
    const Index last = channels - kLanes;
    const V end = total_at(last);
    const V first_end = added(first, at + last, end);
    V second_end = {};
    if constexpr (kTargets > 1) {
      second_end = added(second, at + last, end);
    }
    for (Index c = 0; c < last; c += kLanes) {
      const V total = total_at(c);
      store(first.row + at + c, added(first, at + c, total));
      if constexpr (kTargets > 1) {
        store(second.row + at + c, added(second, at + c, total));
      }
    }
    store(first.row + at + last, first_end);
    if constexpr (kTargets > 1) {
      store(second.row + at + last, second_end);
    }
  }
}

template <class Element>
void gather(const Element* gradient, const UpsamplingSums& sums, const UpsamplingTarget* targets,
            Index count) {
  with_lanes_for(sums.channels, [&](auto lanes) {
    constexpr int kLanes = lanes;
    count == 2 ? gather_pixels<kLanes, 2>(gradient, sums, targets)
               : gather_pixels<kLanes, 1>(gradient, sums, targets);
  });
}

template <class Element>
constexpr UpsamplingLoops<Element> kLoops{&gather<Element>};

}  // namespace

const ByElement<UpsamplingLoops> upsampling_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
