// Loss kernels of the CPU device: one pass over runs of pixels, sums in double in a fixed order.
#include "kernels/loss/loss_cpu.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cpu/cpu_calls.hpp"
#include "kernels/loss/yolo_loss.hpp"

namespace mpsgrad {

LossFunction loss_function(const LossDescriptor& loss) {
  LossFunction f;
  f.type = loss.type;
  if (loss.smooths()) {
    const auto s = static_cast<double>(loss.label_smoothing);
    const bool softmax = loss.type == LossType::SoftMaxCrossEntropy;
    f.smooth_keep = static_cast<float>(1.0 - s);
    f.smooth_add =
        static_cast<float>(s / (softmax ? static_cast<double>(loss.number_of_classes) : 2.0));
  }
  f.epsilon = loss.epsilon;
  f.delta = loss.delta;
  return f;
}

namespace {

// Roles of the calling thread's scratch arrays.
enum Scratch : int { kSource, kLabels, kWeights, kGradient, kSlopes, kLosses, kFree };

// Views of the images that every loss kernel reads; no samples where there are no weights.
struct Inputs {
  cpu::CpuImages sources, labels, weights;
  Index count() const { return sources.count(); }
  Index channels() const { return sources.channels; }
  Index elements() const { return sources.width * sources.height * sources.channels; }
  bool weighted() const { return weights.count() > 0; }
};

cpu::CpuImages view_all(const ImageBatch::Images& images) {
  if (images.empty()) {
    return {};
  }
  return cpu::view_images(images, true, 0, static_cast<Index>(images.size()), 0,
                          images.front()->descriptor().feature_channels);
}

Inputs inputs_of(cpu::CpuImages sources, const LabelImages& labels) {
  return {std::move(sources), view_all(labels.labels), view_all(labels.weights)};
}

// Runs of pixels that cover every image of the work: of whole images where all of them are gapless,
// else of rows. Cut by shape alone.
class Runs {
 public:
  Runs(const Inputs& inputs, std::initializer_list<const cpu::CpuImages*> others) {
    bool flat = inputs.sources.packed_rows() && inputs.labels.packed_rows() &&
                (!inputs.weighted() || inputs.weights.packed_rows());
    for (const cpu::CpuImages* other : others) {
      flat = flat && (other->count() == 0 || other->packed_rows());
    }
    const Index width = inputs.sources.width;
    const Index height = inputs.sources.height;
    row_pixels_ = flat ? width * height : width;
    run_pixels_ = std::clamp<Index>(kFloats / inputs.channels(), 1, row_pixels_);
    row_runs_ = cpu::chunks_of(row_pixels_, run_pixels_);
    per_image_ = (flat ? 1 : height) * row_runs_;
    total_ = inputs.count() * per_image_;
    floats_ = run_pixels_ * inputs.channels();
  }

  Index total() const { return total_; }
  Index per_image() const { return per_image_; }
  Index floats() const { return floats_; }  // of the longest run

  struct Run {
    Index index, sample, y, x, pixels;
  };
  template <class Body>
  void each(const Body& body) const {
    const Index group = std::max<Index>(1, kFloats / floats_);  // short runs together
    cpu::parallel_for(cpu::chunks_of(total_, group), [&](Index chunk) {
      for (Index i = chunk * group; i < std::min(total_, (chunk + 1) * group); ++i) {
        const Index x = i % row_runs_ * run_pixels_;
        body(Run{i, i / per_image_, i % per_image_ / row_runs_, x,
                 std::min(run_pixels_, row_pixels_ - x)});
      }
    });
  }

 private:
  static constexpr Index kFloats = 8192;
  Index row_pixels_, run_pixels_, row_runs_, per_image_, total_, floats_;
};

// One run of an image as float32.
const float* load(const cpu::CpuImages& images, const Runs::Run& run, Scratch slot, Index floats) {
  return cpu::load_run(images, run.sample, run.y, run.x, run.pixels,
                       cpu::thread_scratch(slot, floats));
}

// What the reductions need to know of a run, or of an image.
struct Partial {
  double sum = 0.0;
  Index counted = 0;  // elements whose weight is not 0
};

Index counted(const LossDescriptor& loss, const float* weights, Index elements) {
  if (loss.weight == 0.0F) {
    return 0;
  }
  return weights ? loss_loops().count_nonzero(weights, elements) : elements;
}

// Sums of the runs of each image, in order.
std::vector<Partial> by_image(const std::vector<Partial>& runs, Index images, Index per_image) {
  std::vector<Partial> result(static_cast<std::size_t>(images));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Partial& image = result[i / static_cast<std::size_t>(per_image)];
    image.sum += runs[i].sum;
    image.counted += runs[i].counted;
  }
  return result;
}

// What the sum over an image, or over the batch, is divided by; infinite where nothing counts.
std::vector<double> divisors_of(const LossDescriptor& loss, const Inputs& inputs,
                                const std::vector<Partial>& images) {
  std::vector<double> result(images.size(), 1.0);
  const Index pixels = inputs.sources.width * inputs.sources.height;
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (loss.reduction == ReductionType::Mean) {
      const bool by_pixel = loss.type == LossType::SoftMaxCrossEntropy;
      result[i] = static_cast<double>(by_pixel ? pixels : inputs.elements());
    } else if (loss.reduction == ReductionType::SumByNonZeroWeights) {
      result[i] = static_cast<double>(images[i].counted);
    }
  }
  const bool divides =
      loss.reduction == ReductionType::Mean || loss.reduction == ReductionType::SumByNonZeroWeights;
  if (divides && loss.reduces_batch()) {
    double total = 0.0;
    for (const double divisor : result) {
      total += divisor;
    }
    std::fill(result.begin(), result.end(), total);
  }
  for (double& divisor : result) {
    divisor = divisor == 0.0 ? std::numeric_limits<double>::infinity() : divisor;
  }
  return result;
}

// Writes the reduced losses: one value an image, or all in the first.
void store_losses(const LossDescriptor& loss, const Inputs& inputs, std::vector<Partial> images,
                  const cpu::CpuImages& losses) {
  if (loss.type == LossType::CosineDistance) {
    for (Partial& image : images) {  // one minus the product, once an image
      image.sum += static_cast<double>(loss.weight);
    }
  }
  const std::vector<double> divisors = divisors_of(loss, inputs, images);
  std::vector<double> values(images.size());
  double total = 0.0;
  for (std::size_t i = 0; i < images.size(); ++i) {
    // Where nothing counts the loss is 0, whatever the sum is.
    values[i] = std::isinf(divisors[i]) ? 0.0 : images[i].sum / divisors[i];
    total += values[i];
  }
  if (loss.reduces_batch()) {
    std::fill(values.begin(), values.end(), 0.0);
    values.front() = total;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    float value = 0.0F;
    float* out = cpu::begin_store(losses, static_cast<Index>(i), 0, 0, &value);
    *out = static_cast<float>(values[i]);
    cpu::finish_store(losses, static_cast<Index>(i), 0, 0, 1, out);
  }
}

// One of the ten losses.
class PlainElements final : public LossElements {
 public:
  explicit PlainElements(const LossDescriptor& loss) : function_(loss_function(loss)) {}
  void compute(const float* y, const float* t, float* losses, float* slopes, float* scratch,
               Index pixels, Index channels) const override {
    loss_loops().elements(function_, y, t, losses, slopes, scratch, pixels, channels);
  }

 private:
  LossFunction function_;
};

// Losses, and gradients unless there is no `gradients`.
struct ForwardWork {
  LossDescriptor loss;
  std::shared_ptr<const LossElements> elements;
  Inputs inputs;
  cpu::CpuImages losses, gradients;
};

void run_forward(const ForwardWork& work) {
  const LossLoops& loops = loss_loops();
  const Inputs& in = work.inputs;
  const bool whole = work.loss.reduction == ReductionType::None;
  const bool wants_gradients = work.gradients.count() > 0;
  const Runs runs(in, {&work.gradients, whole ? &work.losses : &work.gradients});
  std::vector<Partial> partials(static_cast<std::size_t>(whole ? 0 : runs.total()));
  runs.each([&](const Runs::Run& run) {
    const Index floats = runs.floats();
    const Index count = run.pixels * in.channels();
    const float* y = load(in.sources, run, kSource, floats);
    const float* t = load(in.labels, run, kLabels, floats);
    const float* w = in.weighted() ? load(in.weights, run, kWeights, floats) : nullptr;
    float* losses = cpu::thread_scratch(kLosses, floats);
    if (whole) {
      losses = cpu::begin_store(work.losses, run.sample, run.y, run.x, losses);
    }
    float* slopes = nullptr;
    if (wants_gradients) {
      slopes = cpu::begin_store(work.gradients, run.sample, run.y, run.x,
                                cpu::thread_scratch(kSlopes, floats));
    }
    work.elements->compute(y, t, losses, slopes, cpu::thread_scratch(kFree, floats), run.pixels,
                           in.channels());
    loops.weigh(work.loss.weight, w, nullptr, losses, count);
    if (whole) {
      cpu::finish_store(work.losses, run.sample, run.y, run.x, run.pixels, losses);
    } else {
      partials[static_cast<std::size_t>(run.index)] = {loops.sum(losses, count),
                                                       counted(work.loss, w, count)};
    }
    if (wants_gradients) {
      loops.weigh(work.loss.weight, w, nullptr, slopes, count);
      cpu::finish_store(work.gradients, run.sample, run.y, run.x, run.pixels, slopes);
    }
  });
  if (!whole) {
    store_losses(work.loss, in, by_image(partials, in.count(), runs.per_image()), work.losses);
  }
}

struct GradientWork {
  LossDescriptor loss;
  bool by_labels;
  Inputs inputs;
  cpu::CpuImages incoming, gradients;
};

// The factor of every element of an image: its incoming gradient, over the forward divisor.
std::vector<float> factors_of(const GradientWork& work) {
  const Inputs& in = work.inputs;
  std::vector<Partial> images(static_cast<std::size_t>(in.count()));
  if (work.loss.reduction == ReductionType::SumByNonZeroWeights) {
    const Runs runs(in, {});
    std::vector<Partial> partials(static_cast<std::size_t>(runs.total()));
    runs.each([&](const Runs::Run& run) {
      const float* w = in.weighted() ? load(in.weights, run, kWeights, runs.floats()) : nullptr;
      partials[static_cast<std::size_t>(run.index)].counted =
          counted(work.loss, w, run.pixels * in.channels());
    });
    images = by_image(partials, in.count(), runs.per_image());
  }
  const std::vector<double> divisors = divisors_of(work.loss, in, images);
  std::vector<float> result(images.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    double incoming = 1.0;
    if (work.loss.reduction != ReductionType::None) {
      float scratch = 0.0F;
      const Index sample = work.loss.reduces_batch() ? 0 : static_cast<Index>(i);
      incoming = static_cast<double>(*cpu::load_run(work.incoming, sample, 0, 0, 1, &scratch));
    }
    result[i] = static_cast<float>(incoming * static_cast<double>(work.loss.weight) / divisors[i]);
  }
  return result;
}

void run_gradient(const GradientWork& work) {
  const LossFunction f = loss_function(work.loss);
  const LossLoops& loops = loss_loops();
  const Inputs& in = work.inputs;
  const bool whole = work.loss.reduction == ReductionType::None;
  const std::vector<float> factors = factors_of(work);
  const Runs runs(in, {&work.gradients, whole ? &work.incoming : &work.gradients});
  runs.each([&](const Runs::Run& run) {
    const Index floats = runs.floats();
    const Index count = run.pixels * in.channels();
    const float* y = load(in.sources, run, kSource, floats);
    const float* t = load(in.labels, run, kLabels, floats);
    const float* w = in.weighted() ? load(in.weights, run, kWeights, floats) : nullptr;
    const float* g = whole ? load(work.incoming, run, kGradient, floats) : nullptr;
    float* slopes = cpu::begin_store(work.gradients, run.sample, run.y, run.x,
                                     cpu::thread_scratch(kSlopes, floats));
    float* scratch = cpu::thread_scratch(kFree, floats);
    if (work.by_labels) {
      loops.label_slopes(f, y, t, slopes, scratch, run.pixels, in.channels());
    } else {
      loops.elements(f, y, t, nullptr, slopes, scratch, run.pixels, in.channels());
    }
    loops.weigh(factors[static_cast<std::size_t>(run.sample)], w, g, slopes, count);
    cpu::finish_store(work.gradients, run.sample, run.y, run.x, run.pixels, slopes);
  });
}

class CpuLabelledLoss final : public LossEncoder {
 public:
  CpuLabelledLoss(const LossDescriptor& reduced, std::shared_ptr<const LossElements> elements)
      : reduced_(reduced), elements_(std::move(elements)) {}
  void encode(CommandBuffer& command_buffer, const LossCall& call) override {
    cpu::record(
        command_buffer,
        [work = ForwardWork{
             reduced_, elements_, inputs_of(cpu::view_source(call.images), call.labels),
             view_all(call.losses), cpu::view_destination(call.images)}] { run_forward(work); });
  }

 private:
  LossDescriptor reduced_;
  std::shared_ptr<const LossElements> elements_;
};

class CpuForwardLoss final : public ForwardLossEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const ForwardLossCall& call) override {
    cpu::record(command_buffer,
                [work = ForwardWork{call.loss,
                                    std::make_shared<PlainElements>(call.loss),
                                    inputs_of(cpu::view_source(call.images), call.labels),
                                    cpu::view_destination(call.images),
                                    {}}] { run_forward(work); });
  }
};

class CpuLossGradient final : public LossGradientEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const LossGradientCall& call) override {
    const auto count = static_cast<Index>(call.sources.size());
    const auto view = [&](const ImageBatch::Images& images, Index channel, Index channels) {
      return cpu::view_images(images, true, 0, count, channel, channels);
    };
    const Index offset = call.properties.destination_channel_offset;
    const ImageDescriptor& result = call.destinations.front()->descriptor();
    const Region clip{{0, 0, 0}, {result.width, result.height, count}};
    const Index incoming = call.loss.reduction == ReductionType::None ? call.channels : 1;
    cpu::record(
        command_buffer,
        [work = GradientWork{
             call.loss, call.by_labels,
             inputs_of(view(call.sources, call.properties.secondary.channel_offset, call.channels),
                       call.labels),
             view(call.gradients, call.properties.primary.channel_offset, incoming),
             cpu::view_destination(call.destinations, true, clip, offset, call.channels)}] {
          run_gradient(work);
        });
  }
};

class CpuInitialGradient final : public UnaryEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    cpu::record(command_buffer, [destination = cpu::view_destination(call), clip = call.clip] {
      const Index rows = clip.size.depth * clip.size.height;
      cpu::parallel_for(rows, [&](Index row) {
        const Index y = clip.origin.y + row % clip.size.height;
        const Index sample = row / clip.size.height;
        float* out =
            cpu::begin_store(destination, sample, y, clip.origin.x,
                             cpu::thread_scratch(kSlopes, clip.size.width * destination.channels));
        std::fill_n(out, clip.size.width * destination.channels, 1.0F);
        cpu::finish_store(destination, sample, y, clip.origin.x, clip.size.width, out);
      });
    });
  }
};

class CpuLossBackend final : public LossBackend {
 public:
  std::unique_ptr<LossEncoder> make_loss(Device&, const LossDescriptor& loss) const override {
    return std::make_unique<CpuLabelledLoss>(loss, std::make_shared<PlainElements>(loss));
  }
  std::unique_ptr<LossEncoder> make_yolo_loss(Device&,
                                              const YOLOLossDescriptor& loss) const override {
    return std::make_unique<CpuLabelledLoss>(loss.reduced(), make_yolo_elements(loss));
  }
  std::unique_ptr<ForwardLossEncoder> make_forward(Device&, const LossDescriptor&) const override {
    return std::make_unique<CpuForwardLoss>();
  }
  std::unique_ptr<LossGradientEncoder> make_gradient(Device&,
                                                     const LossDescriptor&) const override {
    return std::make_unique<CpuLossGradient>();
  }
  std::unique_ptr<UnaryEncoder> make_initial_gradient(Device&) const override {
    return std::make_unique<CpuInitialGradient>();
  }
};

}  // namespace

const LossBackend& cpu_loss() {
  static const CpuLossBackend backend;
  return backend;
}

}  // namespace mpsgrad
