// Rules of the loss kernels.
#include "kernels/loss/loss.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/warnings.hpp"

namespace mpsgrad {

bool LossDescriptor::smooths() const {
  return label_smoothing > 0.0F &&
         (type == LossType::SoftMaxCrossEntropy || type == LossType::SigmoidCrossEntropy);
}

void check_loss_fields(const char* who, const LossDescriptor& loss) {
  require(!std::isnan(loss.weight), who, ": weight must be a number, got ", loss.weight);
  require(loss.label_smoothing >= 0.0F && loss.label_smoothing <= 1.0F, who,
          ": label_smoothing must be in [0, 1], got ", loss.label_smoothing);
  require(loss.number_of_classes >= 1, who, ": number_of_classes must be at least 1, got ",
          loss.number_of_classes);
  require(loss.epsilon >= 0.0F, who, ": epsilon must not be negative, got ", loss.epsilon);
  require(loss.delta > 0.0F, who, ": delta must be positive, got ", loss.delta);
}

void check_loss(const char* who, const LossDescriptor& loss) {
  check_loss_fields(who, loss);
  require(loss.type != LossType::CosineDistance || loss.reduction == ReductionType::Sum, who,
          ": the only valid reduction_type of COSINE_DISTANCE is SUM");
}

ImageDescriptor loss_image_descriptor(const LossDescriptor& loss, const ImageDescriptor& source) {
  ImageDescriptor result;
  if (loss.reduction == ReductionType::None) {
    result.width = source.width;
    result.height = source.height;
    result.feature_channels = source.feature_channels;
  }
  return result;
}

const LossBackend& loss_backend(const Device& device, const char* who) {
  return require_family(device, who, device.loss(), "loss");
}

void warn_of_classes(const KernelBase& kernel, const LossDescriptor& loss, Index count,
                     const char* counted, bool& warned) {
  if (warned || !loss.smooths() || loss.type != LossType::SoftMaxCrossEntropy ||
      loss.number_of_classes == count) {
    return;
  }
  warned = true;
  warn(WarningKind::Runtime,
       text(kernel.class_name(),
            ": label_smoothing adds label_smoothing / number_of_classes to "
            "every label, and number_of_classes is ",
            loss.number_of_classes, ", but the source has ", count, " ", counted));
}

LossBackend::LossStorage LossBackend::make_losses(const std::shared_ptr<Device>& device,
                                                  const ImageBatch& labels, const ImageBatch*,
                                                  const ImageDescriptor& loss) const {
  return {ImageBatch::make(device, loss, labels.size(), true), {}};
}

// ---- labels

LossLabelsBatch LossLabels::make(const std::shared_ptr<Device>& device, const ImageBatch& labels,
                                 const ImageBatch* weights, const Size& loss_image_size) {
  const LossBackend& backend = loss_backend(*device, "LossLabels");
  ImageDescriptor loss;
  loss.width = loss_image_size.width;
  loss.height = loss_image_size.height;
  loss.feature_channels = loss_image_size.depth;
  loss.check("LossLabels: loss_image_size");
  const auto check = [&](const char* name, const ImageBatch& images) {
    for (const auto& image : images.images()) {
      require(image->device() == device, "LossLabels: ", name, " is on another device");
      require(image->descriptor().number_of_images == 1, "LossLabels: ", name,
              " must hold one image, got ", image->descriptor().number_of_images);
    }
  };
  check("labels", labels);
  if (weights) {
    check("weights", *weights);
    require(weights->size() == labels.size(), "LossLabels: there are ", labels.size(),
            " images of labels, but ", weights->size(), " of weights");
    const Size expected = labels[0]->descriptor().extent();
    const Size got = (*weights)[0]->descriptor().extent();
    require(got == expected, "LossLabels: weights are ", got, ", but labels are ", expected);
  }
  const LossBackend::LossStorage storage = backend.make_losses(device, labels, weights, loss);
  LossLabelsBatch result;
  result.reserve(static_cast<std::size_t>(labels.size()));
  for (Index i = 0; i < labels.size(); ++i) {
    result.push_back(std::make_shared<LossLabels>(
        device, labels[i], weights ? (*weights)[i] : nullptr, (*storage.losses)[i],
        storage.payloads.empty() ? nullptr : storage.payloads[static_cast<std::size_t>(i)]));
  }
  return result;
}

Index LossLabels::resource_size() const {
  return labels_->resource_size() + (weights_ ? weights_->resource_size() : 0) +
         loss_->resource_size();
}

void LossLabels::synchronize(CommandBuffer& command_buffer) {
  State::synchronize(command_buffer);
  loss_->synchronize(command_buffer);
  is_synchronized_ = static_cast<bool>(has_loss_);
}

void LossLabels::note_encoded(const CommandBuffer& command_buffer) {
  has_loss_.by(command_buffer.work());
  is_synchronized_ = false;
}

void LossLabels::require_loss() const {
  require<std::runtime_error>(static_cast<bool>(has_loss_),
                              "LossLabels: the loss is undefined until a loss kernel has written "
                              "it");
  require<std::runtime_error>(is_synchronized_,
                              "LossLabels: the loss can be read only after "
                              "synchronize(command_buffer), encoded after the loss kernel");
}

// ---- what the kernels share

namespace {

void check_unclipped(const KernelBase& kernel, const char* name, const Offset& offset,
                     const Region& clip) {
  require(offset == Offset{}, kernel.class_name(), ": ", name, " must be (0, 0, 0), got ", offset);
  require(clip == Region{}, kernel.class_name(), ": clip_rect must be NO_CLIP");
}

// Labels and weights have the size of what is read of the source.
void check_labels(const KernelBase& kernel, const CommandBuffer& command_buffer,
                  const LossDescriptor& loss, const LabelImages& labels,
                  const ImageBatch::Images& sources, Index channels) {
  const ImageDescriptor& source = sources.front()->descriptor();
  const Size expected{source.width, source.height, channels};
  const auto check = [&](const char* name, const ImageBatch::Images& images) {
    check_operand(kernel, command_buffer, {name, &images, true});
    require(images.size() == sources.size(), kernel.class_name(), ": there are ", sources.size(),
            " sources, but ", images.size(), " ", name);
    const Size got = images.front()->descriptor().extent();
    require(got == expected, kernel.class_name(), ": ", name, " are ", got, ", but the source is ",
            expected);
  };
  check("labels", labels.labels);
  if (!labels.weights.empty()) {
    require(loss.type != LossType::CosineDistance, kernel.class_name(),
            ": COSINE_DISTANCE takes no weights");
    check("weights", labels.weights);
  }
}

void check_label_aliasing(const KernelBase& kernel, const LabelImages& labels,
                          const Operand& destination) {
  check_aliasing(kernel, {"labels", &labels.labels, true}, destination);
  if (!labels.weights.empty()) {
    check_aliasing(kernel, {"weights", &labels.weights, true}, destination);
  }
}

// Reads of one encode.
Reads reads_of(const ImageBatch::Images& sources, const LabelImages& labels) {
  Reads reads;
  reads.add(sources);
  reads.add(labels.labels);
  reads.add(labels.weights);
  return reads;
}

void note_reads(const CommandBuffer& command_buffer, const ImageBatch::Images& sources,
                const LabelImages& labels) {
  note_uses(command_buffer, sources, false);
  note_uses(command_buffer, labels.labels, false);
  note_uses(command_buffer, labels.weights, false);
}

// The settings that a descriptor shares with another one, type and reduction kept.
LossDescriptor with_settings(LossDescriptor loss, const LossDescriptor& settings) {
  loss.weight = settings.weight;
  loss.label_smoothing = settings.label_smoothing;
  loss.epsilon = settings.epsilon;
  loss.delta = settings.delta;
  return loss;
}

}  // namespace

// ---- combined

LabelledLoss::LabelledLoss(std::shared_ptr<Device> device, const char* class_name,
                           const LossDescriptor& reduced)
    : UnaryKernel(std::move(device), class_name, {}), reduced_(reduced) {}

void LabelledLoss::check_call(const UnaryCall& call) const {
  check_unclipped(*this, "offset", call.properties.offset, call.properties.clip_rect);
  const ImageDescriptor& source = call.sources.front()->descriptor();
  const ImageDescriptor& result = call.destinations.front()->descriptor();
  require_size(*this, "destination", result, "source is", source.width, source.height);
  require(source.number_of_images == 1, class_name(),
          ": source must hold one image; pass several as a batch, got ", source.number_of_images);
  check_channels(call.consumed_channels);
}

void LabelledLoss::encode_on_device(CommandBuffer&, const UnaryCall&) {
  fail<TypeError>(class_name(), ": an encode needs labels");
}

void LabelledLoss::encode(const std::shared_ptr<CommandBuffer>& command_buffer,
                          const ImageBatch::Images& sources, const StateBatch& states,
                          const ImageBatch::Images& destinations, bool batch) {
  const UnaryProperties properties = current_properties();
  const StateBatch no_gradient_states;  // which the call refers to
  const UnaryCall call =
      prepare(*command_buffer, sources, destinations, no_gradient_states, batch, properties);
  check_states(*this, *command_buffer, "labels", states, static_cast<Index>(sources.size()));
  LossLabelsBatch own;
  LabelImages images;
  ImageBatch::Images losses;
  for (const auto& state : states) {
    auto labels = std::dynamic_pointer_cast<LossLabels>(state);
    require<TypeError>(labels != nullptr, class_name(), ": labels must be LossLabels, got ",
                       state->class_name());
    images.labels.push_back(labels->labels());
    if (labels->weights()) {
      images.weights.push_back(labels->weights());
    }
    losses.push_back(labels->loss());
    own.push_back(std::move(labels));
  }
  LossLabelsBatch sorted = own;
  std::sort(sorted.begin(), sorted.end());
  require(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), class_name(),
          ": labels holds the same object twice, and its loss image can hold one loss");
  require(images.weights.empty() || images.weights.size() == own.size(), class_name(),
          ": some labels have weights and some have none");
  check_labels(*this, *command_buffer, reduced_, images, sources, call.consumed_channels);
  ImageDescriptor read = sources.front()->descriptor();
  read.feature_channels = call.consumed_channels;
  const Size expected = loss_image_descriptor(reduced_, read).extent();
  for (const auto& image : losses) {
    const Size got = image->descriptor().extent();
    require(got == expected, class_name(), ": labels have a loss_image_size of ", got,
            ", but a source of ", read.extent(), " and this reduction need ", expected);
  }
  const Operand destination{"destination", &destinations, batch};
  check_label_aliasing(*this, images, destination);
  check_aliasing(*this, {"the loss image", &losses, true}, destination);
  check_aliasing(*this, {"source", &sources, batch}, {"the loss image", &losses, true});
  Reads reads = reads_of(sources, images);
  reads.check();
  warn_of(call.consumed_channels);

  encoder_->encode(*command_buffer, {call, images, losses, own});
  command_buffer->note_encoded();
  note_reads(*command_buffer, sources, images);
  note_uses(*command_buffer, destinations, true);
  note_uses(*command_buffer, losses, true);
  for (const auto& labels : own) {
    labels->note_encoded(*command_buffer);
  }
  reads.spend();
}

std::shared_ptr<ImageBatch> LabelledLoss::encode_creating(
    const std::shared_ptr<CommandBuffer>& command_buffer, const ImageBatch::Images& sources,
    const StateBatch& labels, bool batch, ImageAllocator* allocator) {
  PropertyGuard guard(properties_);
  Created result = make_destinations(command_buffer, sources, batch, allocator);
  encode(command_buffer, sources, labels, result.images(), batch);
  guard.keep();
  return result.take().images;
}

Loss::Loss(std::shared_ptr<Device> device, const LossDescriptor& loss)
    : LabelledLoss(std::move(device), "Loss", loss) {
  check_loss(class_name(), loss);
  encoder_ = loss_backend(*this->device(), class_name()).make_loss(*this->device(), loss);
}

void Loss::warn_of(Index consumed) {
  warn_of_classes(*this, reduced_, consumed, "channels", warned_);
}

// ---- separate forward

ForwardLoss::ForwardLoss(std::shared_ptr<Device> device, const LossDescriptor& loss)
    : UnaryKernel(std::move(device), "ForwardLoss", {}), loss_(loss) {
  check_loss(class_name(), loss_);
  encoder_ = loss_backend(*this->device(), class_name()).make_forward(*this->device(), loss_);
}

void ForwardLoss::set_loss(const LossDescriptor& loss) {
  check_loss(class_name(), loss);
  loss_ = with_settings(loss_, loss);
}

Index ForwardLoss::produced_channels(Index consumed) const {
  return loss_.reduction == ReductionType::None ? consumed : 1;
}

void ForwardLoss::adjust_destination(const ImageBatch::Images&, Index, ImageDescriptor& result) {
  if (loss_.reduction != ReductionType::None) {
    result.width = result.height = 1;
  }
}

void ForwardLoss::check_call(const UnaryCall& call) const {
  check_unclipped(*this, "offset", call.properties.offset, call.properties.clip_rect);
  const ImageDescriptor expected = loss_image_descriptor(loss_, call.sources.front()->descriptor());
  const ImageDescriptor& result = call.destinations.front()->descriptor();
  require_size(*this, "destination", result, "the loss image is", expected.width, expected.height);
}

std::shared_ptr<GradientState> ForwardLoss::make_state(
    ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) {
  auto state = std::make_shared<ForwardLossState>(device(), temporary, std::move(snapshot));
  state->payload = encoder_->make_payload();
  return state;
}

void ForwardLoss::encode_on_device(CommandBuffer&, const UnaryCall&) {
  fail<TypeError>(class_name(), ": an encode needs labels");
}

void ForwardLoss::encode(const std::shared_ptr<CommandBuffer>& command_buffer,
                         const ImageBatch::Images& sources, const LabelImages& labels,
                         const StateBatch& states, const ImageBatch::Images& destinations) {
  const UnaryProperties properties = current_properties();
  const UnaryCall call = prepare(*command_buffer, sources, destinations, states, true, properties);
  check_labels(*this, *command_buffer, loss_, labels, sources, call.consumed_channels);
  check_label_aliasing(*this, labels, {"destination", &destinations, true});
  Reads reads = reads_of(sources, labels);
  reads.check();
  warn_of_classes(*this, loss_, call.consumed_channels, "channels", warned_);
  encoder_->encode(*command_buffer, {call, labels, loss_});
  command_buffer->note_encoded();
  note_reads(*command_buffer, sources, labels);
  note_uses(*command_buffer, destinations, true);
  reads.spend();
}

EncodeResult ForwardLoss::encode_creating(const std::shared_ptr<CommandBuffer>& command_buffer,
                                          const ImageBatch::Images& sources,
                                          const LabelImages& labels, bool with_states,
                                          bool temporary_states, ImageAllocator* allocator) {
  PropertyGuard guard(properties_);
  Created result = make_destinations(command_buffer, sources, true, allocator);
  if (with_states) {
    result.add(
        result_states(sources, result.images(), temporary_states ? command_buffer : nullptr));
  }
  encode(command_buffer, sources, labels, result.states(), result.images());
  guard.keep();
  return result.take();
}

// ---- separate gradient

LossGradient::LossGradient(std::shared_ptr<Device> device, const LossDescriptor& loss)
    : BinaryKernel(std::move(device), "LossGradient"), loss_(loss) {
  check_loss(class_name(), loss_);
  encoder_ = loss_backend(*this->device(), class_name()).make_gradient(*this->device(), loss_);
}

void LossGradient::set_loss(const LossDescriptor& loss) {
  check_loss(class_name(), loss);
  loss_ = with_settings(loss_, loss);
}

Index LossGradient::check_sources(const CommandBuffer& command_buffer,
                                  const ImageBatch::Images& gradients,
                                  const ImageBatch::Images& sources, const LabelImages& labels,
                                  const StateBatch& states) const {
  command_buffer.require_encodable_on(device(), class_name());
  const BinaryProperties& p = properties();
  check_unclipped(*this, "primary_offset", p.primary.offset, p.clip_rect);
  check_unclipped(*this, "secondary_offset", p.secondary.offset, p.clip_rect);
  const Operand gradient{"source_gradients", &gradients, true};
  const Operand source{"sources", &sources, true};
  check_operand(*this, command_buffer, gradient);
  check_operand(*this, command_buffer, source);
  require(gradients.size() == sources.size(), class_name(), ": source_gradients has ",
          gradients.size(), " images, but sources has ", sources.size());
  const Index channels =
      consumed_channels(*this, source, p.secondary.channel_offset, p.secondary.channel_maximum, 0);
  ImageDescriptor read = source.descriptor();
  read.feature_channels = channels;
  const Size expected = loss_image_descriptor(loss_, read).extent();
  Size got = gradient.descriptor().extent();
  got.depth =
      consumed_channels(*this, gradient, p.primary.channel_offset, p.primary.channel_maximum, 0);
  require(got == expected, class_name(), ": source_gradients are ", got,
          ", but the loss images are ", expected);
  check_labels(*this, command_buffer, loss_, labels, sources, channels);
  if (!states.empty()) {
    check_states(*this, command_buffer, "source_states", states,
                 static_cast<Index>(sources.size()));
    for (const auto& state : states) {
      const auto* own = dynamic_cast<const ForwardLossState*>(state.get());
      require<TypeError>(own != nullptr, class_name(),
                         ": source_states must come from ForwardLoss, got ", state->class_name());
      require(own->loss().type == loss_.type && own->loss().reduction == loss_.reduction &&
                  own->loss().reduce_across_batch == loss_.reduce_across_batch,
              class_name(),
              ": source_states were made by a ForwardLoss of another type or reduction");
      require(own->loss() == static_cast<const ForwardLossState&>(*states.front()).loss(),
              class_name(), ": source_states must come from one encode, but their settings differ");
    }
  }
  return channels;
}

void LossGradient::encode(const std::shared_ptr<CommandBuffer>& command_buffer,
                          const ImageBatch::Images& gradients, const ImageBatch::Images& sources,
                          const LabelImages& labels, const StateBatch& states,
                          const ImageBatch::Images& destinations) {
  const Index channels = check_sources(*command_buffer, gradients, sources, labels, states);
  const Operand destination{"destination_gradients", &destinations, true};
  check_destination(*this, *command_buffer, destination);
  require(destinations.size() == sources.size(), class_name(), ": sources has ", sources.size(),
          " images, but destination_gradients has ", destinations.size());
  const ImageDescriptor& source = sources.front()->descriptor();
  const ImageDescriptor& result = destination.descriptor();
  const Index last = properties().destination_channel_offset + channels;
  require(result.width == source.width && result.height == source.height, class_name(),
          ": destination_gradients are ", result.width, "x", result.height, ", but sources are ",
          source.width, "x", source.height);
  require(last <= result.feature_channels, class_name(), ": channels ",
          properties().destination_channel_offset, " to ", last,
          " do not fit destination_gradients of ", result.feature_channels, " channels");
  check_aliasing(*this, {"source_gradients", &gradients, true}, destination);
  check_aliasing(*this, {"sources", &sources, true}, destination);
  check_label_aliasing(*this, labels, destination);
  Reads reads = reads_of(sources, labels);
  reads.add(gradients);
  reads.add(states);
  reads.check();
  // A state's settings override the kernel's; those of a batch were made by one encode.
  const LossDescriptor settings =
      states.empty()
          ? loss_
          : with_settings(loss_, static_cast<const ForwardLossState&>(*states.front()).loss());
  warn_of_classes(*this, settings, channels, "channels", warned_);
  const BinaryProperties encoded = properties();
  encoder_->encode(*command_buffer, {gradients, sources, labels, destinations, encoded, channels,
                                     settings, compute_label_gradients, states, *this});
  command_buffer->note_encoded();
  note_uses(*command_buffer, gradients, false);
  note_reads(*command_buffer, sources, labels);
  note_uses(*command_buffer, destinations, true);
  reads.spend();
}

std::shared_ptr<ImageBatch> LossGradient::encode_creating(
    const std::shared_ptr<CommandBuffer>& command_buffer, const ImageBatch::Images& gradients,
    const ImageBatch::Images& sources, const LabelImages& labels, const StateBatch& states,
    ImageAllocator* chosen) {
  const Index channels = check_sources(*command_buffer, gradients, sources, labels, states);
  Reads reads = reads_of(sources, labels);
  reads.add(gradients);
  reads.add(states);
  reads.check();
  ImageDescriptor descriptor = sources.front()->descriptor();
  descriptor.feature_channels = properties().destination_channel_offset + channels;
  descriptor.channel_format = gradients.front()->descriptor().channel_format;
  Created result(chosen, allocator(), command_buffer, descriptor, *this,
                 static_cast<Index>(sources.size()),
                 leaves_gaps(properties(), padding()->method(), *command_buffer));
  encode(command_buffer, gradients, sources, labels, states, result.images());
  return result.take().images;
}

// ---- ones

InitialGradient::InitialGradient(std::shared_ptr<Device> device)
    : UnaryKernel(std::move(device), "InitialGradient", {}) {
  set_device_encoder(
      loss_backend(*this->device(), class_name()).make_initial_gradient(*this->device()));
}

}  // namespace mpsgrad
