// How each kind of step encodes its kernels.
#include "graph/steps.hpp"

#include "base/errors.hpp"
#include "core/destinations.hpp"
#include "kernels/pooling/pooling.hpp"

namespace mpsgrad::graph_steps {
namespace {

// A concatenated image begins at a slice, which holds four channels.
constexpr Index kSlice = 4;

LabelImages labels_of(const GraphRun& run, int labels, int weights) {
  return {run.images(labels),
          weights == GraphStep::kNone ? ImageBatch::Images{} : run.images(weights)};
}

std::vector<int> with_labels(std::vector<int> reads, int labels, int weights) {
  reads.push_back(labels);
  if (weights != GraphStep::kNone) {
    reads.push_back(weights);
  }
  return reads;
}

}  // namespace

void Unary::encode(GraphRun& run) {
  UnaryKernel& kernel = run.is_rehearsal() && stand_in_ ? *stand_in_ : *kernel_;
  EncodeResult made = kernel.encode_creating(
      run.command_buffer(), run.images(source_), true, state_ != kNone,
      state_ != kNone && run.is_temporary_state(state_), &run.allocator(result_));
  run.set_result(result_, std::move(made.images));
  run.set_result(state_, std::move(made.states));
}

void Reshaped::encode(GraphRun& run) {
  EncodeResult made = kernel_->encode_reshaped(
      run.command_buffer(), run.images(source_), true, state_ != kNone,
      state_ != kNone && run.is_temporary_state(state_), &run.allocator(result_), shape_);
  run.set_result(result_, std::move(made.images));
  run.set_result(state_, std::move(made.states));
}

void Transpose::encode(GraphRun& run) {
  EncodeResult made = kernel_->encode_creating(
      run.command_buffer(), run.images(source_), run.states(convolution_state_), true,
      state_ != kNone, state_ != kNone && run.is_temporary_state(state_), &run.allocator(result_));
  run.set_result(result_, std::move(made.images));
  run.set_result(state_, std::move(made.states));
}

void Binary::encode(GraphRun& run) {
  EncodeResult made = kernel_->encode_creating(
      run.command_buffer(), run.images(primary_), run.images(secondary_), true, state_ != kNone,
      state_ != kNone && run.is_temporary_state(state_), &run.allocator(result_));
  run.set_result(result_, std::move(made.images));
  run.set_result(state_, std::move(made.states));
}

void Gradient::encode(GraphRun& run) {
  run.set_result(result_, kernel_->encode_creating(run.command_buffer(), run.images(gradient_),
                                                   run.images(source_), run.states(state_), true,
                                                   &run.allocator(result_)));
}

void BatchNormalizationTraining::encode(GraphRun& run) {
  const ImageBatch::Images& sources = run.images(source_);
  const auto count = static_cast<Index>(sources.size());
  const ImageDescriptor descriptor = kernel_->destination_descriptor({sources.front()}, {});
  std::shared_ptr<ImageBatch> result = run.allocator(result_).allocate(
      run.command_buffer(), descriptor, *kernel_, count,
      leaves_gaps(kernel_->properties(), kernel_->padding()->method(), *run.command_buffer()));
  run.begin_result(result_, result);
  StateBatch states = kernel_->result_states(
      sources, result->images(), run.is_temporary_state(state_) ? run.command_buffer() : nullptr);
  run.set_result(state_, states);
  statistics_->encode_batch(run.command_buffer(), sources, states.front());
  kernel_->encode_with_state(run.command_buffer(), sources, states.front(), result->images(), true);
  run.set_result(result_, result);
}

std::vector<int> BatchNormalizationBackward::image_reads() const {
  return kernel_ ? std::vector<int>{gradient_, source_, gradient_, source_}
                 : std::vector<int>{gradient_, source_};
}

std::vector<int> BatchNormalizationBackward::state_reads() const {
  return std::vector<int>(kernel_ ? 2 : 1, state_);
}

void BatchNormalizationBackward::encode(GraphRun& run) {
  const StateBatch& states = run.states(state_);
  statistics_->encode_batch(run.command_buffer(), run.images(gradient_), run.images(source_),
                            states.front());
  if (kernel_) {
    run.set_result(result_, kernel_->encode_creating(run.command_buffer(), run.images(gradient_),
                                                     run.images(source_), states, true,
                                                     &run.allocator(result_)));
  }
}

void Concatenation::encode(GraphRun& run) {
  ImageDescriptor descriptor = run.images(sources_.front()).front()->descriptor();
  const Index width = descriptor.width, height = descriptor.height;
  std::vector<Index> offsets;
  Index channels = 0;
  bool gaps = false;
  for (const int source : sources_) {
    const ImageDescriptor& image = run.images(source).front()->descriptor();
    require(image.width == width && image.height == height,
            "the sources of a concatenation must "
            "be of one size, got ",
            width, "x", height, " and ", image.width, "x", image.height);
    offsets.push_back(channels);
    gaps = gaps || image.feature_channels % kSlice != 0;
    channels += (image.feature_channels + kSlice - 1) / kSlice * kSlice;
  }
  descriptor.feature_channels = channels;
  descriptor.check(copies_.front()->class_name());
  const auto count = static_cast<Index>(run.images(sources_.front()).size());
  std::shared_ptr<ImageBatch> result =
      run.allocator(result_).allocate(run.command_buffer(), descriptor, *copies_.front(), count,
                                      gaps || run.command_buffer()->predicate != nullptr);
  run.begin_result(result_, result);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    copies_[i]->set_destination_channel_offset(offsets[i]);
    copies_[i]->encode(run.command_buffer(), run.images(sources_[i]), {}, result->images(), true);
  }
  run.set_result(result_, result);
  if (state_ != kNone) {
    run.channel_offsets(state_) = std::move(offsets);
  }
}

void ConcatenationBackward::encode(GraphRun& run) {
  copy_->set_source_channel_offset(run.channel_offsets(state_)[position_]);
  copy_->set_source_channel_maximum(run.images(source_).front()->descriptor().feature_channels);
  run.set_result(result_, copy_
                              ->encode_creating(run.command_buffer(), run.images(gradient_), true,
                                                false, false, &run.allocator(result_))
                              .images);
}

void SpatialMean::encode(GraphRun& run) {
  const ImageBatch::Images& sources = run.images(source_);
  const ImageDescriptor& image = sources.front()->descriptor();
  const Window window{image.width, image.height, image.width, image.height, 1, 1};
  if (!kernel_ || kernel_->window() != window) {
    kernel_ = std::make_shared<PoolingAverage>(sources.front()->device(), window);
    kernel_->set_padding(std::make_shared<DefaultPadding>(padding_method::kSizeValidOnly));
  }
  EncodeResult made = kernel_->encode_creating(run.command_buffer(), sources, true, state_ != kNone,
                                               state_ != kNone && run.is_temporary_state(state_),
                                               &run.allocator(result_));
  run.set_result(result_, std::move(made.images));
  run.set_result(state_, std::move(made.states));
}

void SpatialMeanBackward::encode(GraphRun& run) {
  const ImageBatch::Images& sources = run.images(source_);
  const ImageDescriptor& image = sources.front()->descriptor();
  const Window window{image.width, image.height, image.width, image.height, 1, 1};
  if (!kernel_ || kernel_->properties().secondary.window != window) {
    kernel_ = std::make_shared<PoolingAverageGradient>(sources.front()->device(), window);
  }
  run.set_result(result_,
                 kernel_->encode_creating(run.command_buffer(), run.images(gradient_), sources,
                                          run.states(state_), true, &run.allocator(result_)));
}

void LossAndGradient::encode(GraphRun& run) {
  run.set_result(result_,
                 kernel_->encode_creating(run.command_buffer(), run.images(source_),
                                          run.states(labels_), true, &run.allocator(result_)));
}

std::vector<int> LossForward::image_reads() const {
  return with_labels({source_}, labels_, weights_);
}

void LossForward::encode(GraphRun& run) {
  EncodeResult made = kernel_->encode_creating(
      run.command_buffer(), run.images(source_), labels_of(run, labels_, weights_), state_ != kNone,
      state_ != kNone && run.is_temporary_state(state_), &run.allocator(result_));
  run.set_result(result_, std::move(made.images));
  run.set_result(state_, std::move(made.states));
}

std::vector<int> LossBackward::image_reads() const {
  return with_labels({gradient_, source_}, labels_, weights_);
}

void LossBackward::encode(GraphRun& run) {
  run.set_result(result_,
                 kernel_->encode_creating(run.command_buffer(), run.images(gradient_),
                                          run.images(source_), labels_of(run, labels_, weights_),
                                          run.states(state_), &run.allocator(result_)));
}

void UpdateNow::encode(GraphRun& run) {
  if (!run.is_rehearsal()) {
    callback_(run.command_buffer(), run.states(state_));
  }
}

void UpdateOnCompletion::encode(GraphRun& run) {
  if (!run.is_rehearsal()) {
    run.on_completion(callback_(run.command_buffer(), run.states(state_)));
  }
}

}  // namespace mpsgrad::graph_steps
