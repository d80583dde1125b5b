// Data sources of Apple's normalization kernels.
#include "metal/metal_normalization.hpp"

#include <cstring>

namespace mpsgrad::metal {
namespace {

float* pointer_to(std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

std::vector<float> values_of(const std::shared_ptr<Buffer>& buffer, Index channels) {
  std::vector<float> values;
  if (buffer) {
    values.resize(static_cast<std::size_t>(channels));
    std::memcpy(values.data(), buffer->for_reading(), values.size() * sizeof(float));
  }
  return values;
}

}  // namespace
}  // namespace mpsgrad::metal

@interface MpsgradNormalizationSource
    : NSObject <MPSCNNBatchNormalizationDataSource, MPSCNNInstanceNormalizationDataSource> {
 @public
  mpsgrad::metal::NormalizationNumbers* numbers_;
}
@end

@implementation MpsgradNormalizationSource
- (NSUInteger)numberOfFeatureChannels {
  return static_cast<NSUInteger>(numbers_->channels);
}
- (float*)gamma {
  return mpsgrad::metal::pointer_to(numbers_->gamma);
}
- (float*)beta {
  return mpsgrad::metal::pointer_to(numbers_->beta);
}
- (float*)mean {
  return mpsgrad::metal::pointer_to(numbers_->mean);
}
- (float*)variance {
  return mpsgrad::metal::pointer_to(numbers_->variance);
}
- (float)epsilon {
  return numbers_->epsilon;
}
- (BOOL)load {
  return YES;
}
- (void)purge {
}
- (NSString*)label {
  return nil;
}
- (id)copyWithZone:(NSZone*)zone {
  MpsgradNormalizationSource* copy = [[[self class] allocWithZone:zone] init];
  copy->numbers_ = numbers_;
  return copy;
}
@end

// The only one that has a number of groups.
@interface MpsgradGroupNormalizationSource
    : MpsgradNormalizationSource <MPSCNNGroupNormalizationDataSource>
@end

@implementation MpsgradGroupNormalizationSource
- (NSUInteger)numberOfGroups {
  return static_cast<NSUInteger>(numbers_->groups);
}
- (void)setNumberOfGroups:(NSUInteger)groups {
  numbers_->groups = static_cast<mpsgrad::Index>(groups);
}
@end

namespace mpsgrad::metal {

void NormalizationNumbers::copy_gamma_and_beta(const NormalizationPair& arrays) {
  gamma = values_of(arrays.first(), channels);
  beta = values_of(arrays.second(), channels);
}

void NormalizationNumbers::copy_mean_and_variance(const NormalizationPair& arrays) {
  mean = values_of(arrays.first(), channels);
  variance = values_of(arrays.second(), channels);
}

namespace {

template <class Source>
Retained<id> make(Source* source, NormalizationNumbers& numbers) {
  source->numbers_ = &numbers;
  return Retained<id>::adopt(source);
}

}  // namespace

Retained<id> make_normalization_source(NormalizationNumbers& numbers) {
  return make([[MpsgradNormalizationSource alloc] init], numbers);
}

Retained<id> make_group_normalization_source(NormalizationNumbers& numbers) {
  return make([[MpsgradGroupNormalizationSource alloc] init], numbers);
}

MetalCommandBuffer& for_reload(const char* who, CommandBuffer& command_buffer) {
  require<UnsupportedError>(command_buffer.predicate == nullptr, who,
                            ": Metal cannot make a reload depend on a predicate; encode it while "
                            "none is set");
  return as<MetalCommandBuffer>(command_buffer);
}

}  // namespace mpsgrad::metal
