// The kinds of steps that filter nodes become: one class for each way in which kernels are encoded.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/binary_kernel.hpp"
#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"
#include "graph/graph.hpp"
#include "kernels/batch_normalization/batch_normalization.hpp"
#include "kernels/convolution/convolution_transpose.hpp"
#include "kernels/loss/loss.hpp"
#include "kernels/reshape/reshape.hpp"

namespace mpsgrad::graph_steps {

// In all of them `state` may be GraphStep::kNone: then the kernel makes none.

class Unary final : public GraphStep {
 public:
  // `stand_in`: what rehearses in place of a kernel that every encode changes; else null.
  Unary(std::string node, std::shared_ptr<UnaryKernel> kernel,
        std::shared_ptr<UnaryKernel> stand_in, int source, int result, int state)
      : GraphStep(std::move(node)),
        kernel_(std::move(kernel)),
        stand_in_(std::move(stand_in)),
        source_(source),
        result_(result),
        state_(state) {}
  std::vector<int> image_reads() const override { return {source_}; }
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<UnaryKernel> kernel_, stand_in_;
  int source_, result_, state_;
};

// To a shape that the node names.
class Reshaped final : public GraphStep {
 public:
  Reshaped(std::string node, std::shared_ptr<Reshape> kernel, const Reshape::Shape& shape,
           int source, int result, int state)
      : GraphStep(std::move(node)),
        kernel_(std::move(kernel)),
        shape_(shape),
        source_(source),
        result_(result),
        state_(state) {}
  std::vector<int> image_reads() const override { return {source_}; }
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<Reshape> kernel_;
  Reshape::Shape shape_;
  int source_, result_, state_;
};

// A transposed convolution that undoes a convolution, whose state it only looks at.
class Transpose final : public GraphStep {
 public:
  Transpose(std::string node, std::shared_ptr<ConvolutionTranspose> kernel, int source,
            int convolution_state, int result, int state)
      : GraphStep(std::move(node)),
        kernel_(std::move(kernel)),
        source_(source),
        convolution_state_(convolution_state),
        result_(result),
        state_(state) {}
  std::vector<int> image_reads() const override { return {source_}; }
  std::vector<int> state_reads() const override { return {convolution_state_}; }
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<ConvolutionTranspose> kernel_;
  int source_, convolution_state_, result_, state_;
};

class Binary final : public GraphStep {
 public:
  Binary(std::string node, std::shared_ptr<ForwardBinaryKernel> kernel, int primary, int secondary,
         int result, int state)
      : GraphStep(std::move(node)),
        kernel_(std::move(kernel)),
        primary_(primary),
        secondary_(secondary),
        result_(result),
        state_(state) {}
  std::vector<int> image_reads() const override { return {primary_, secondary_}; }
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<ForwardBinaryKernel> kernel_;
  int primary_, secondary_, result_, state_;
};

class Gradient final : public GraphStep {
 public:
  Gradient(std::string node, std::shared_ptr<GradientKernel> kernel, int gradient, int source,
           int state, int result)
      : GraphStep(std::move(node)),
        kernel_(std::move(kernel)),
        gradient_(gradient),
        source_(source),
        state_(state),
        result_(result) {}
  std::vector<int> image_reads() const override { return {gradient_, source_}; }
  std::vector<int> state_reads() const override { return {state_}; }
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<GradientKernel> kernel_;
  int gradient_, source_, state_, result_;
};

// Statistics of the whole batch, and then the normalization by them. Without a state the stored
// statistics serve, and the node is Unary.
class BatchNormalizationTraining final : public GraphStep {
 public:
  BatchNormalizationTraining(std::string node, std::shared_ptr<BatchNormalization> kernel,
                             std::shared_ptr<BatchNormalizationStatistics> statistics, int source,
                             int result, int state)
      : GraphStep(std::move(node)),
        kernel_(std::move(kernel)),
        statistics_(std::move(statistics)),
        source_(source),
        result_(result),
        state_(state) {}
  std::vector<int> image_reads() const override { return {source_, source_}; }
  std::vector<int> state_reads() const override { return {state_}; }
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<BatchNormalization> kernel_;
  std::shared_ptr<BatchNormalizationStatistics> statistics_;
  int source_, result_, state_;
};

// `kernel` may be null where nobody reads the gradient with respect to the source.
class BatchNormalizationBackward final : public GraphStep {
 public:
  BatchNormalizationBackward(std::string node,
                             std::shared_ptr<BatchNormalizationStatisticsGradient> statistics,
                             std::shared_ptr<BatchNormalizationGradient> kernel, int gradient,
                             int source, int state, int result)
      : GraphStep(std::move(node)),
        statistics_(std::move(statistics)),
        kernel_(std::move(kernel)),
        gradient_(gradient),
        source_(source),
        state_(state),
        result_(result) {}
  std::vector<int> image_reads() const override;
  std::vector<int> state_reads() const override;
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<BatchNormalizationStatisticsGradient> statistics_;
  std::shared_ptr<BatchNormalizationGradient> kernel_;
  int gradient_, source_, state_, result_;
};

// Channels of several images, each from a multiple of four on; what lies between is 0.
class Concatenation final : public GraphStep {
 public:
  // `copies`: one kernel a source that leaves values as they are.
  Concatenation(std::string node, std::vector<std::shared_ptr<UnaryKernel>> copies,
                std::vector<int> sources, int result, int state)
      : GraphStep(std::move(node)),
        copies_(std::move(copies)),
        sources_(std::move(sources)),
        result_(result),
        state_(state) {}
  std::vector<int> image_reads() const override { return sources_; }
  void encode(GraphRun& run) override;

 private:
  std::vector<std::shared_ptr<UnaryKernel>> copies_;
  std::vector<int> sources_;
  int result_, state_;
};

// The channels of one source of a concatenation. Its image is looked at for its size alone.
class ConcatenationBackward final : public GraphStep {
 public:
  ConcatenationBackward(std::string node, std::shared_ptr<UnaryKernel> copy, int gradient,
                        int source, std::size_t position, int state, int result)
      : GraphStep(std::move(node)),
        copy_(std::move(copy)),
        gradient_(gradient),
        source_(source),
        position_(position),
        state_(state),
        result_(result) {}
  std::vector<int> image_reads() const override { return {gradient_}; }
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<UnaryKernel> copy_;
  int gradient_, source_;
  std::size_t position_;
  int state_, result_;
};

// Mean over width and height: average pooling with a window of the whole image, made for the size
// at hand.
class SpatialMean final : public GraphStep {
 public:
  SpatialMean(std::string node, int source, int result, int state)
      : GraphStep(std::move(node)), source_(source), result_(result), state_(state) {}
  std::vector<int> image_reads() const override { return {source_}; }
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<UnaryKernel> kernel_;
  int source_, result_, state_;
};

class SpatialMeanBackward final : public GraphStep {
 public:
  SpatialMeanBackward(std::string node, int gradient, int source, int state, int result)
      : GraphStep(std::move(node)),
        gradient_(gradient),
        source_(source),
        state_(state),
        result_(result) {}
  std::vector<int> image_reads() const override { return {gradient_, source_}; }
  std::vector<int> state_reads() const override { return {state_}; }
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<GradientKernel> kernel_;
  int gradient_, source_, state_, result_;
};

// Its result is the gradient; the loss goes into the labels.
class LossAndGradient final : public GraphStep {
 public:
  LossAndGradient(std::string node, std::shared_ptr<LabelledLoss> kernel, int source, int labels,
                  int result)
      : GraphStep(std::move(node)),
        kernel_(std::move(kernel)),
        source_(source),
        labels_(labels),
        result_(result) {}
  std::vector<int> image_reads() const override { return {source_}; }
  std::vector<int> state_reads() const override { return {labels_}; }
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<LabelledLoss> kernel_;
  int source_, labels_, result_;
};

// `weights` may be kNone in both.
class LossForward final : public GraphStep {
 public:
  LossForward(std::string node, std::shared_ptr<ForwardLoss> kernel, int source, int labels,
              int weights, int result, int state)
      : GraphStep(std::move(node)),
        kernel_(std::move(kernel)),
        source_(source),
        labels_(labels),
        weights_(weights),
        result_(result),
        state_(state) {}
  std::vector<int> image_reads() const override;
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<ForwardLoss> kernel_;
  int source_, labels_, weights_, result_, state_;
};

class LossBackward final : public GraphStep {
 public:
  LossBackward(std::string node, std::shared_ptr<LossGradient> kernel, int gradient, int source,
               int labels, int weights, int state, int result)
      : GraphStep(std::move(node)),
        kernel_(std::move(kernel)),
        gradient_(gradient),
        source_(source),
        labels_(labels),
        weights_(weights),
        state_(state),
        result_(result) {}
  std::vector<int> image_reads() const override;
  std::vector<int> state_reads() const override { return {state_}; }
  void encode(GraphRun& run) override;

 private:
  std::shared_ptr<LossGradient> kernel_;
  int gradient_, source_, labels_, weights_, state_, result_;
};

// A data source's chance to change its weights, with the gradients in `state`: at once, by work it
// encodes itself, or once the work that is encoded has completed.
class UpdateNow final : public GraphStep {
 public:
  using Callback = std::function<void(const std::shared_ptr<CommandBuffer>&, const StateBatch&)>;
  UpdateNow(std::string node, int state, Callback callback)
      : GraphStep(std::move(node)), state_(state), callback_(std::move(callback)) {}
  std::vector<int> image_reads() const override { return {}; }
  void encode(GraphRun& run) override;

 private:
  int state_;
  Callback callback_;
};

class UpdateOnCompletion final : public GraphStep {
 public:
  // What is to be done on completion; called now, so that the callback can export the weights that
  // the gradients belong to.
  using Callback =
      std::function<GraphCompletion(const std::shared_ptr<CommandBuffer>&, const StateBatch&)>;
  UpdateOnCompletion(std::string node, int state, Callback callback)
      : GraphStep(std::move(node)), state_(state), callback_(std::move(callback)) {}
  std::vector<int> image_reads() const override { return {}; }
  void encode(GraphRun& run) override;

 private:
  int state_;
  Callback callback_;
};

}  // namespace mpsgrad::graph_steps
