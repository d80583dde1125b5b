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

struct UpdateSelector {
  SEL selector;
  SourceUpdates::What what;
  bool on_completion;
};

// What the protocols leave to choice.
const std::vector<UpdateSelector>& update_selectors() {
  using What = SourceUpdates::What;
  static const std::vector<UpdateSelector> all{
      {@selector(updateGammaAndBetaWithCommandBuffer:batchNormalizationState:), What::Weights,
       false},
      {@selector(updateMeanAndVarianceWithCommandBuffer:batchNormalizationState:), What::Statistics,
       false},
      {@selector(updateGammaAndBetaWithCommandBuffer:instanceNormalizationStateBatch:),
       What::Weights, false},
      {@selector(updateGammaAndBetaWithCommandBuffer:groupNormalizationStateBatch:), What::Weights,
       false},
      {@selector(updateGammaAndBetaWithBatchNormalizationState:), What::Weights, true},
      {@selector(updateMeanAndVarianceWithBatchNormalizationState:), What::Statistics, true},
      {@selector(updateGammaAndBetaWithInstanceNormalizationStateBatch:), What::Weights, true},
      {@selector(updateGammaAndBetaWithGroupNormalizationStateBatch:), What::Weights, true},
  };
  return all;
}

}  // namespace
}  // namespace mpsgrad::metal

using What = mpsgrad::metal::SourceUpdates::What;

@interface MpsgradNormalizationSource
    : NSObject <MPSCNNBatchNormalizationDataSource, MPSCNNInstanceNormalizationDataSource> {
 @public
  mpsgrad::metal::NormalizationNumbers* numbers_;
  std::shared_ptr<mpsgrad::metal::SourceUpdates>* updates_;  // null where nobody asks for any
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
  if (updates_ != nullptr) {
    copy->updates_ = new std::shared_ptr<mpsgrad::metal::SourceUpdates>(*updates_);
  }
  return copy;
}
- (void)dealloc {
  delete updates_;
  [super dealloc];
}

- (BOOL)respondsToSelector:(SEL)selector {
  for (const mpsgrad::metal::UpdateSelector& update : mpsgrad::metal::update_selectors()) {
    if (sel_isEqual(update.selector, selector) != NO) {
      return updates_ != nullptr && (*updates_)->has(update.what, update.on_completion);
    }
  }
  return [super respondsToSelector:selector];
}
- (nullable MPSCNNNormalizationGammaAndBetaState*)
    updateGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState {
  (void)commandBuffer;
  return static_cast<MPSCNNNormalizationGammaAndBetaState*>(
      (*updates_)->now(What::Weights, [NSArray arrayWithObject:batchNormalizationState], nil));
}
- (nullable MPSCNNNormalizationMeanAndVarianceState*)
    updateMeanAndVarianceWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState {
  (void)commandBuffer;
  return static_cast<MPSCNNNormalizationMeanAndVarianceState*>(
      (*updates_)->now(What::Statistics, [NSArray arrayWithObject:batchNormalizationState], nil));
}
- (nullable MPSCNNNormalizationGammaAndBetaState*)
    updateGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
        instanceNormalizationStateBatch:(MPSCNNInstanceNormalizationGradientStateBatch*)states {
  (void)commandBuffer;
  return static_cast<MPSCNNNormalizationGammaAndBetaState*>(
      (*updates_)->now(What::Weights, static_cast<NSArray*>(states), nil));
}
- (BOOL)updateGammaAndBetaWithBatchNormalizationState:
    (MPSCNNBatchNormalizationState*)batchNormalizationState {
  return (*updates_)->on_completion(What::Weights,
                                    [NSArray arrayWithObject:batchNormalizationState], nil);
}
- (BOOL)updateMeanAndVarianceWithBatchNormalizationState:
    (MPSCNNBatchNormalizationState*)batchNormalizationState {
  return (*updates_)->on_completion(What::Statistics,
                                    [NSArray arrayWithObject:batchNormalizationState], nil);
}
- (BOOL)updateGammaAndBetaWithInstanceNormalizationStateBatch:
    (MPSCNNInstanceNormalizationGradientStateBatch*)states {
  return (*updates_)->on_completion(What::Weights, static_cast<NSArray*>(states), nil);
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
- (nullable MPSCNNNormalizationGammaAndBetaState*)
    updateGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
           groupNormalizationStateBatch:(MPSCNNGroupNormalizationGradientStateBatch*)states {
  (void)commandBuffer;
  return static_cast<MPSCNNNormalizationGammaAndBetaState*>(
      (*updates_)->now(What::Weights, static_cast<NSArray*>(states), nil));
}
- (BOOL)updateGammaAndBetaWithGroupNormalizationStateBatch:
    (MPSCNNGroupNormalizationGradientStateBatch*)states {
  return (*updates_)->on_completion(What::Weights, static_cast<NSArray*>(states), nil);
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
Retained<id> make(Source* source, NormalizationNumbers& numbers,
                  std::shared_ptr<SourceUpdates> updates) {
  source->numbers_ = &numbers;
  if (updates) {
    source->updates_ = new std::shared_ptr<SourceUpdates>(std::move(updates));
  }
  return Retained<id>::adopt(source);
}

}  // namespace

Retained<id> make_normalization_source(NormalizationNumbers& numbers,
                                       std::shared_ptr<SourceUpdates> updates) {
  return make([[MpsgradNormalizationSource alloc] init], numbers, std::move(updates));
}

Retained<id> make_group_normalization_source(NormalizationNumbers& numbers,
                                             std::shared_ptr<SourceUpdates> updates) {
  return make([[MpsgradGroupNormalizationSource alloc] init], numbers, std::move(updates));
}

MetalCommandBuffer& for_reload(const char* who, CommandBuffer& command_buffer) {
  require<UnsupportedError>(command_buffer.predicate == nullptr, who,
                            ": Metal cannot make a reload depend on a predicate; encode it while "
                            "none is set");
  return as<MetalCommandBuffer>(command_buffer);
}

}  // namespace mpsgrad::metal
