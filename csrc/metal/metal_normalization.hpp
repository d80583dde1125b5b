// What Apple's normalization kernels with data sources share: the source they ask, and reloads.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/normalization_source.hpp"
#include "core/normalization_states.hpp"
#include "metal/metal_objects.hpp"
#include "metal/metal_updates.hpp"

namespace mpsgrad::metal {

// What a data source of ours answers: a copy of a kernel's arrays, for as long as it is asked.
struct NormalizationNumbers {
  Index channels = 0;
  Index groups = 0;  // of group normalization
  float epsilon = kDefaultNormalizationEpsilon;
  std::vector<float> gamma, beta, mean, variance;  // empty: none

  void copy_gamma_and_beta(const NormalizationPair& arrays);
  void copy_mean_and_variance(const NormalizationPair& arrays);
};

// For batch and instance normalization. Lives as long as Apple's kernel, but is asked only while
// ours makes or reloads it, with the numbers alive. One with updates, which graphs have, keeps
// them.
Retained<id> make_normalization_source(NormalizationNumbers& numbers,
                                       std::shared_ptr<SourceUpdates> updates = nullptr);
// For group normalization.
Retained<id> make_group_normalization_source(NormalizationNumbers& numbers,
                                             std::shared_ptr<SourceUpdates> updates = nullptr);

// Where a kernel may encode a reload: throws UnsupportedError where a predicate is set.
MetalCommandBuffer& for_reload(const char* who, CommandBuffer& command_buffer);

template <class Kernel>
void encode_reload(const char* who, Kernel* kernel, CommandBuffer& command_buffer,
                   NormalizationGammaAndBetaState& state) {
  const PoolScope pool;
  auto& own = for_reload(who, command_buffer);
  auto container = Retained<MPSCNNNormalizationGammaAndBetaState*>::adopt(
      [[MPSCNNNormalizationGammaAndBetaState alloc]
          initWithGamma:as<MetalBuffer>(*state.gamma()).get()
                   beta:as<MetalBuffer>(*state.beta()).get()]);
  [kernel reloadGammaAndBetaWithCommandBuffer:own.for_kernel() gammaAndBetaState:container.get()];
  own.keep(container.get());
  own.keep(kernel);
}

}  // namespace mpsgrad::metal
