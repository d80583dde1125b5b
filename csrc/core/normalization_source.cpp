// Rules of the data sources of normalization kernels.
#include "core/normalization_source.hpp"

#include <cmath>

#include "base/errors.hpp"
#include "device/image_descriptor.hpp"

namespace mpsgrad {

NormalizationSourceData read_normalization_source(
    const char* who, const std::shared_ptr<NormalizationDataSource>& source,
    const NormalizationWanted& wanted, Index channels) {
  require<TypeError>(source != nullptr, who, ": data_source must not be None");
  NormalizationSourceData data = source->read(who, wanted);
  require(data.channels >= 1 && data.channels <= 4 * kMaximumImageSlices, who,
          ": number_of_feature_channels of the data source must be between 1 and ",
          4 * kMaximumImageSlices, ", got ", data.channels);
  require(channels == 0 || data.channels == channels, who, ": the data source now has ",
          data.channels, " channels, but the kernel was made with ", channels);
  const auto check = [&](const char* name, const std::optional<std::vector<float>>& values) {
    require(!values || static_cast<Index>(values->size()) == data.channels, who, ": ", name,
            " of the data source must have ", data.channels, " values, got ",
            values ? values->size() : 0);
  };
  check("gamma", data.gamma);
  check("beta", data.beta);
  check("mean", data.mean);
  check("variance", data.variance);
  return data;
}

void check_normalization_epsilon(const char* who, float value) {
  require(std::isfinite(value) && value >= 0.0F, who,
          ": epsilon must be finite and not negative, got ", value);
}

}  // namespace mpsgrad
