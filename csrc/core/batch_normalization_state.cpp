// The phases of a batch normalization state.
#include "core/batch_normalization_state.hpp"

#include "base/errors.hpp"
#include "core/kernel.hpp"

namespace mpsgrad {

BatchNormalizationState::BatchNormalizationState(std::shared_ptr<Device> device,
                                                 const std::shared_ptr<CommandBuffer>& temporary,
                                                 ForwardSnapshot snapshot,
                                                 std::shared_ptr<KernelBase> producer, Live live,
                                                 float epsilon, Contents contents)
    : GradientState(std::move(device), temporary, std::move(snapshot)),
      producer_(std::move(producer)),
      live_(std::move(live)),
      epsilon_(epsilon) {
  const auto add = [this](std::shared_ptr<Buffer> buffer, const char* name) {
    buffer->expect_synchronize(name);
    add_resource(std::move(buffer));
  };
  add(std::move(contents.mean), "BatchNormalizationState.mean");
  add(std::move(contents.variance), "BatchNormalizationState.variance");
  add(std::move(contents.gradient_for_gamma), "BatchNormalizationState.gradient_for_gamma");
  add(std::move(contents.gradient_for_beta), "BatchNormalizationState.gradient_for_beta");
  payload = std::move(contents.payload);
}

std::shared_ptr<Buffer> BatchNormalizationState::mean() {
  return has_statistics() ? batch_mean() : live_.mean_and_variance->first();
}

std::shared_ptr<Buffer> BatchNormalizationState::variance() {
  return has_statistics() ? batch_variance() : live_.mean_and_variance->second();
}

std::shared_ptr<Buffer> BatchNormalizationState::gradient_for_gamma() {
  return has_gradients() ? gamma_sums() : nullptr;
}

std::shared_ptr<Buffer> BatchNormalizationState::gradient_for_beta() {
  return has_gradients() ? beta_sums() : nullptr;
}

void BatchNormalizationState::require_size(const char* who, const ImageDescriptor& image) const {
  require(!has_statistics() || (image.width == width_ && image.height == height_), who,
          ": the images are ", image.width, "x", image.height,
          ", but the statistics in the state are of images of ", width_, "x", height_);
}

void BatchNormalizationState::require_statistics_turn(const char* who, const ImageDescriptor& image,
                                                      Index images) const {
  if (!starts_statistics()) {
    require_size(who, image);
  }
  require(image.width * image.height <= kFurthest / images &&
              (starts_statistics() || samples_ <= kFurthest - image.width * image.height * images),
          who, ": statistics of more than ", kFurthest, " pixels are not supported");
}

void BatchNormalizationState::require_statistics_gradient_turn(const char* who,
                                                               Index images) const {
  require<StateError>(has_statistics(), who,
                      ": the state has no statistics of this batch; encode "
                      "BatchNormalizationStatistics first");
  require<StateError>(phase_ != Phase::GradientsRead, who,
                      ": BatchNormalizationGradient has used this state's sums already; encode "
                      "BatchNormalizationStatistics for the next batch first");
  const Index seen = starts_gradients() ? 0 : gradient_images_;
  require<StateError>(images <= statistics_images_ - seen, who, ": ", images, " images after the ",
                      seen, " seen so far are more than the ", statistics_images_,
                      " that BatchNormalizationStatistics was encoded for; encode "
                      "BatchNormalizationStatistics for every image of the batch first");
}

void BatchNormalizationState::require_complete_gradients(const char* who) const {
  require<StateError>(
      has_statistics(), who,
      ": the state has no statistics of this batch; encode "
      "BatchNormalizationStatistics and BatchNormalizationStatisticsGradient first");
  const Index seen = starts_gradients() ? 0 : gradient_images_;
  require<StateError>(seen == statistics_images_, who, ": the state's sums are incomplete, of ",
                      seen, " of the batch's ", statistics_images_,
                      " images; encode BatchNormalizationStatisticsGradient for the others first");
}

std::string BatchNormalizationState::progress() const {
  if (!has_statistics()) {
    return "no statistics";
  }
  return text("statistics of ", statistics_images_, statistics_images_ == 1 ? " image" : " images",
              has_gradients() ? text(", sums of ", gradient_images_) : "");
}

void BatchNormalizationState::note_statistics(const std::shared_ptr<Work>& work,
                                              const ImageDescriptor& image, Index images) {
  if (starts_statistics()) {
    sums_.start();
    statistics_images_ = samples_ = gradient_images_ = 0;
    width_ = image.width;
    height_ = image.height;
    ForwardSnapshot& shot = own_snapshot();
    shot.source_width = shot.destination_width = shot.clip.size.width = width_;
    shot.source_height = shot.destination_height = shot.clip.size.height = height_;
  }
  phase_ = Phase::Statistics;
  sums_.by(work);
  statistics_images_ += images;
  samples_ += images * width_ * height_;
}

void BatchNormalizationState::note_normalized() {
  if (phase_ == Phase::Statistics) {
    phase_ = Phase::StatisticsRead;
  }
}

void BatchNormalizationState::note_statistics_gradient(const std::shared_ptr<Work>& work,
                                                       Index images) {
  gradient_images_ = (starts_gradients() ? 0 : gradient_images_) + images;
  sums_.by(work);
  phase_ = Phase::Gradients;
}

void BatchNormalizationState::note_gradient() { phase_ = Phase::GradientsRead; }

void BatchNormalizationState::reset() {
  phase_ = Phase::Initial;
  statistics_images_ = gradient_images_ = samples_ = 0;
}

}  // namespace mpsgrad
