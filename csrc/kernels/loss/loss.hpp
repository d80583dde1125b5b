// Loss kernels: Loss (MPSCNNLoss) and the states that carry its labels, and the separate kernels
// ForwardLoss, LossGradient and InitialGradient (MPSNNForwardLoss, MPSNNLossGradient,
// MPSNNInitialGradient). The loss of object detection is in yolo_loss.hpp.
#pragma once

#include <memory>
#include <vector>

#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"
#include "kernels/loss/loss_type.hpp"

namespace mpsgrad {

enum class ReductionType : std::int32_t { None = 0, Sum = 1, Mean = 2, SumByNonZeroWeights = 3 };

struct LossDescriptor {  // MPSCNNLossDescriptor
  LossType type = LossType::MeanSquaredError;
  ReductionType reduction = ReductionType::Sum;
  bool reduce_across_batch = false;
  float weight = 1.0F;
  float label_smoothing = 0.0F;  // the two cross entropies on logits
  Index number_of_classes = 1;   // softmax cross entropy with label smoothing
  float epsilon = 1e-7F;         // Log
  float delta = 1.0F;            // Huber

  bool operator==(const LossDescriptor&) const = default;
  bool smooths() const;  // label smoothing has an effect
  // One value for all images, in the first loss image.
  bool reduces_batch() const { return reduce_across_batch && reduction != ReductionType::None; }
};
class LossBackend;

// Throw std::invalid_argument, naming `who`, unless each field is in range; and unless they agree.
void check_loss_fields(const char* who, const LossDescriptor& loss);
void check_loss(const char* who, const LossDescriptor& loss);
// Warns, once in the life of a kernel, of labels that are smoothed over another number of classes
// than the `count` that the source has; `counted` names these.
void warn_of_classes(const KernelBase& kernel, const LossDescriptor& loss, Index count,
                     const char* counted, bool& warned);
// The device's, unless it has none.
const LossBackend& loss_backend(const Device& device, const char* who);
// Of the loss image of one source.
ImageDescriptor loss_image_descriptor(const LossDescriptor& loss, const ImageDescriptor& source);

class LossLabels;
using LossLabelsBatch = std::vector<std::shared_ptr<LossLabels>>;

// Labels, optional weights and the loss of one image (MPSCNNLossLabels).
class LossLabels final : public State {
 public:
  // One state for each image of `labels`. `weights` may be null. Width, height and channels of the
  // loss image; reduced losses have 1 x 1 x 1.
  static LossLabelsBatch make(const std::shared_ptr<Device>& device, const ImageBatch& labels,
                              const ImageBatch* weights, const Size& loss_image_size);

  LossLabels(std::shared_ptr<Device> device, std::shared_ptr<Image> labels,
             std::shared_ptr<Image> weights, std::shared_ptr<Image> loss,
             std::shared_ptr<StatePayload> own_payload)
      : State(std::move(device), ResourceList{}),
        payload(std::move(own_payload)),
        labels_(std::move(labels)),
        weights_(std::move(weights)),
        loss_(std::move(loss)) {}

  const char* class_name() const override { return "LossLabels"; }
  bool is_temporary() const override { return false; }
  const std::shared_ptr<Image>& labels() const { return labels_; }
  const std::shared_ptr<Image>& weights() const { return weights_; }  // null if there are none
  const std::shared_ptr<Image>& loss() const { return loss_; }
  Index resource_size() const override;
  void synchronize(CommandBuffer& command_buffer) override;

  void note_encoded(const CommandBuffer& command_buffer);
  // Throws std::runtime_error unless a kernel has written the loss and it was synchronised after.
  void require_loss() const;

  const std::shared_ptr<StatePayload> payload;  // what the device keeps beside the images

 private:
  std::shared_ptr<Image> labels_, weights_, loss_;
  Filled has_loss_;
  bool is_synchronized_ = false;
};

// The images of one loss encode besides sources and destinations; `weights` may be empty.
struct LabelImages {
  ImageBatch::Images labels;
  ImageBatch::Images weights;
};

struct LossCall {
  const UnaryCall& images;
  const LabelImages& labels;
  const ImageBatch::Images& losses;  // of the states
  const LossLabelsBatch& states;
};

class LossEncoder {
 public:
  virtual ~LossEncoder() = default;
  virtual void encode(CommandBuffer& command_buffer, const LossCall& call) = 0;
};

// The settings may change between encodes, so each call carries them.
struct ForwardLossCall {
  const UnaryCall& images;
  const LabelImages& labels;
  const LossDescriptor& loss;
};

class ForwardLossEncoder {
 public:
  virtual ~ForwardLossEncoder() = default;
  virtual void encode(CommandBuffer& command_buffer, const ForwardLossCall& call) = 0;
  // What the device must keep inside a state; null if nothing.
  virtual std::shared_ptr<StatePayload> make_payload() { return nullptr; }
};

struct LossGradientCall {
  const ImageBatch::Images& gradients;
  const ImageBatch::Images& sources;
  const LabelImages& labels;
  const ImageBatch::Images& destinations;
  const BinaryProperties&
      properties;  // channel windows; offsets and clip rectangle are the default
  Index channels;  // of sources, labels and results
  const LossDescriptor& loss;
  bool by_labels;
  const StateBatch& states;  // empty, or one an image
  const KernelBase& kernel;
};

class LossGradientEncoder {
 public:
  virtual ~LossGradientEncoder() = default;
  virtual void encode(CommandBuffer& command_buffer, const LossGradientCall& call) = 0;
};

struct YOLOLossDescriptor;

// What a device supplies to run the family.
class LossBackend {
 public:
  virtual ~LossBackend() = default;
  virtual std::unique_ptr<LossEncoder> make_loss(Device& device,
                                                 const LossDescriptor& loss) const = 0;
  virtual std::unique_ptr<LossEncoder> make_yolo_loss(Device& device,
                                                      const YOLOLossDescriptor& loss) const = 0;
  virtual std::unique_ptr<ForwardLossEncoder> make_forward(Device& device,
                                                           const LossDescriptor& loss) const = 0;
  virtual std::unique_ptr<LossGradientEncoder> make_gradient(Device& device,
                                                             const LossDescriptor& loss) const = 0;
  virtual std::unique_ptr<UnaryEncoder> make_initial_gradient(Device& device) const = 0;

  // The loss images of new labels, one allocation where the device can, and what the device keeps
  // beside each (empty if nothing).
  struct LossStorage {
    std::shared_ptr<ImageBatch> losses;
    std::vector<std::shared_ptr<StatePayload>> payloads;
  };
  virtual LossStorage make_losses(const std::shared_ptr<Device>& device, const ImageBatch& labels,
                                  const ImageBatch* weights, const ImageDescriptor& loss) const;
};

// A kernel whose labels are a state an image; what it writes or returns is the gradient.
class LabelledLoss : public UnaryKernel {
 public:
  void encode(const std::shared_ptr<CommandBuffer>& command_buffer,
              const ImageBatch::Images& sources, const StateBatch& labels,
              const ImageBatch::Images& destinations, bool batch);
  std::shared_ptr<ImageBatch> encode_creating(const std::shared_ptr<CommandBuffer>& command_buffer,
                                              const ImageBatch::Images& sources,
                                              const StateBatch& labels, bool batch,
                                              ImageAllocator* allocator);

 protected:
  // `reduced`: what the elements of all channels become.
  LabelledLoss(std::shared_ptr<Device> device, const char* class_name,
               const LossDescriptor& reduced);
  // Throws std::invalid_argument if the kernel cannot read that many channels.
  virtual void check_channels(Index consumed) const = 0;
  // Before an encode of which nothing can fail any more.
  virtual void warn_of(Index consumed) = 0;

  void check_call(const UnaryCall& call) const override;
  std::shared_ptr<GradientState> make_state(ForwardSnapshot,
                                            const std::shared_ptr<CommandBuffer>&) override {
    return nullptr;  // labels are this kernel's only state
  }
  void encode_on_device(CommandBuffer&, const UnaryCall&) override;

  LossDescriptor reduced_;
  std::unique_ptr<LossEncoder> encoder_;
  bool warned_ = false;
};

class Loss final : public LabelledLoss {
 public:
  Loss(std::shared_ptr<Device> device, const LossDescriptor& loss);
  const LossDescriptor& loss() const { return reduced_; }

 protected:
  void check_channels(Index) const override {}
  void warn_of(Index consumed) override;
};

// The settings of a ForwardLoss when it was encoded, for its LossGradient.
class ForwardLossState final : public GradientState {
 public:
  using GradientState::GradientState;
  const char* class_name() const override { return "ForwardLossState"; }
  const LossDescriptor& loss() const { return snapshot().properties.settings.as<LossDescriptor>(); }
};

// Labels and weights are images; batch forms only.
class ForwardLoss final : public UnaryKernel {
 public:
  ForwardLoss(std::shared_ptr<Device> device, const LossDescriptor& loss);
  const LossDescriptor& loss() const { return loss_; }
  void set_loss(const LossDescriptor& loss);  // weight, smoothing, epsilon and delta

  void encode(const std::shared_ptr<CommandBuffer>& command_buffer,
              const ImageBatch::Images& sources, const LabelImages& labels,
              const StateBatch& states, const ImageBatch::Images& destinations);
  EncodeResult encode_creating(const std::shared_ptr<CommandBuffer>& command_buffer,
                               const ImageBatch::Images& sources, const LabelImages& labels,
                               bool with_states, bool temporary_states, ImageAllocator* allocator);

 protected:
  Index produced_channels(Index consumed) const override;
  FamilySettings current_settings() const override { return loss_; }
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
  void check_call(const UnaryCall& call) const override;
  std::shared_ptr<GradientState> make_state(
      ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) override;
  void encode_on_device(CommandBuffer&, const UnaryCall&) override;

 private:
  LossDescriptor loss_;
  std::unique_ptr<ForwardLossEncoder> encoder_;
  bool warned_ = false;
};

// The chain rule through ForwardLoss, its divisor included; batch forms only. primary: gradients
// with respect to the loss images; secondary: the forward sources.
class LossGradient final : public BinaryKernel {
 public:
  LossGradient(std::shared_ptr<Device> device, const LossDescriptor& loss);
  const LossDescriptor& loss() const { return loss_; }
  void set_loss(const LossDescriptor& loss);
  bool compute_label_gradients = false;

  // `states` may be empty; else their four settings hold.
  void encode(const std::shared_ptr<CommandBuffer>& command_buffer,
              const ImageBatch::Images& gradients, const ImageBatch::Images& sources,
              const LabelImages& labels, const StateBatch& states,
              const ImageBatch::Images& destinations);
  std::shared_ptr<ImageBatch> encode_creating(const std::shared_ptr<CommandBuffer>& command_buffer,
                                              const ImageBatch::Images& gradients,
                                              const ImageBatch::Images& sources,
                                              const LabelImages& labels, const StateBatch& states,
                                              ImageAllocator* allocator);

 private:
  // Everything but the destination; the channels that are consumed.
  Index check_sources(const CommandBuffer& command_buffer, const ImageBatch::Images& gradients,
                      const ImageBatch::Images& sources, const LabelImages& labels,
                      const StateBatch& states) const;

  LossDescriptor loss_;
  std::unique_ptr<LossGradientEncoder> encoder_;
  bool warned_ = false;
};

// Ones in the size of the source, whose contents are not read.
class InitialGradient final : public UnaryKernel {
 public:
  explicit InitialGradient(std::shared_ptr<Device> device);

 protected:
  std::shared_ptr<GradientState> make_state(ForwardSnapshot,
                                            const std::shared_ptr<CommandBuffer>&) override {
    return nullptr;
  }
};

}  // namespace mpsgrad
