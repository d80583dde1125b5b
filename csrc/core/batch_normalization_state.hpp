// BatchNormalizationState (MPSCNNBatchNormalizationState): statistics and weight gradients of one
// batch, and which of the four kernels may run next. In core, because optimizers read it too.
#pragma once

#include <memory>

#include "core/gradient_state.hpp"
#include "core/normalization_states.hpp"
#include "device/work.hpp"

namespace mpsgrad {

class BatchNormalizationState final : public GradientState, public GammaAndBetaGradients {
 public:
  // The buffers, one float32 a channel each, and what the device keeps beside them.
  struct Contents {
    std::shared_ptr<Buffer> mean, variance;
    std::shared_ptr<Buffer> gradient_for_gamma, gradient_for_beta;
    std::shared_ptr<StatePayload> payload;
  };
  // Both are the kernel's, and live: a reload of the kernel shows here.
  struct Live {
    std::shared_ptr<const NormalizationPair> gamma_and_beta;
    std::shared_ptr<const NormalizationPair> mean_and_variance;
  };

  BatchNormalizationState(std::shared_ptr<Device> device,
                          const std::shared_ptr<CommandBuffer>& temporary, ForwardSnapshot snapshot,
                          std::shared_ptr<KernelBase> producer, Live live, float epsilon,
                          Contents contents);

  const char* class_name() const override { return "BatchNormalizationState"; }
  // How far it has come: "statistics of 8 images, sums of 4".
  std::string progress() const;
  const std::shared_ptr<KernelBase>& producer() const { return producer_; }
  float epsilon() const { return epsilon_; }  // the kernel's when the state was made
  Index channels() const override { return snapshot().consumed_channels; }

  // Null where the data source has none.
  const std::shared_ptr<Buffer>& gamma() const { return live_.gamma_and_beta->first(); }
  const std::shared_ptr<Buffer>& beta() const { return live_.gamma_and_beta->second(); }
  // Of the batch; the kernel's stored ones before there are any.
  std::shared_ptr<Buffer> mean();
  std::shared_ptr<Buffer> variance();
  // Sums over the images processed so far; null before the first.
  std::shared_ptr<Buffer> gradient_for_gamma();
  std::shared_ptr<Buffer> gradient_for_beta();

  // The state's own buffers, for encodes; whether they hold anything is a question of the phase.
  std::shared_ptr<Buffer> batch_mean() { return resource_at(0, false); }
  std::shared_ptr<Buffer> batch_variance() { return resource_at(1, false); }
  std::shared_ptr<Buffer> gamma_sums() override { return resource_at(2, false); }
  std::shared_ptr<Buffer> beta_sums() override { return resource_at(3, false); }

  // With a part of statistics or gradients on a command buffer that was dropped, both are gone:
  // Metal's states cannot go back by one encode.
  bool has_statistics() const { return phase_ != Phase::Initial && !sums_.lost(); }
  bool has_gradients() const { return phase_ >= Phase::Gradients && !sums_.lost(); }
  // Whether the next statistics, or gradients, replace what is there.
  bool starts_statistics() const { return phase_ != Phase::Statistics || sums_.lost(); }
  bool starts_gradients() const { return !has_gradients(); }
  Index gradient_images() const { return gradient_images_; }
  Index samples() const { return samples_; }  // of one channel, in the statistics

  // Each throws, naming `who`, unless the encode is in turn; nothing is changed.
  void require_statistics_turn(const char* who, const ImageDescriptor& image, Index images) const;
  void require_size(const char* who, const ImageDescriptor& image) const;
  void require_statistics_gradient_turn(const char* who, Index images) const;
  // The sums are of the whole batch.
  void require_complete_gradients(const char* who) const override;

  // An encode has been made, of `work`.
  void note_statistics(const std::shared_ptr<Work>& work, const ImageDescriptor& image,
                       Index images);
  void note_normalized();
  void note_statistics_gradient(const std::shared_ptr<Work>& work, Index images);
  void note_gradient();

  // Forgets everything accumulated, for the encodes that follow.
  void reset();

 private:
  enum class Phase { Initial, Statistics, StatisticsRead, Gradients, GradientsRead };

  std::shared_ptr<KernelBase> producer_;
  Live live_;
  float epsilon_;
  Phase phase_ = Phase::Initial;
  Accumulated sums_;
  Index statistics_images_ = 0;
  Index gradient_images_ = 0;
  Index samples_ = 0;
  Index width_ = 0, height_ = 0;  // of the accumulation's images
};

}  // namespace mpsgrad
