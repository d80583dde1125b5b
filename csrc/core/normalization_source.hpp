// Where a normalization kernel's numbers come from (MPSCNNBatchNormalizationDataSource,
// MPSCNNInstanceNormalizationDataSource, MPSCNNGroupNormalizationDataSource).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace mpsgrad {

// What a reader wants of a source.
struct NormalizationWanted {
  bool gamma_and_beta = true;
  bool mean_and_variance = false;
  bool settings = false;  // epsilon, groups and label
};

// What the source said between one load and its purge.
struct NormalizationSourceData {
  Index channels = 0;
  std::optional<std::vector<float>> gamma, beta, mean, variance;
  std::optional<float> epsilon;
  std::optional<Index> groups;
  std::string label;
};

class NormalizationDataSource {
 public:
  virtual ~NormalizationDataSource() = default;
  // load, what is wanted, purge. Throws std::invalid_argument, naming `who`, if the source refuses
  // to load; purge is not called then.
  virtual NormalizationSourceData read(const char* who, const NormalizationWanted& wanted) = 0;
};

// Reads, and throws unless there is at least one channel and every array has one value for each.
// `channels`: what the kernel has already, 0 while it is being made.
NormalizationSourceData read_normalization_source(
    const char* who, const std::shared_ptr<NormalizationDataSource>& source,
    const NormalizationWanted& wanted, Index channels);

// Epsilon of a source that names none: the smallest normal float32.
inline constexpr float kDefaultNormalizationEpsilon = 1.17549435e-38F;

// Throws unless the value is finite and not negative.
void check_normalization_epsilon(const char* who, float value);

}  // namespace mpsgrad
