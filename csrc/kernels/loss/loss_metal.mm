// Loss kernels of the Metal device (MPSCNNLoss, MPSCNNYOLOLoss, MPSNNForwardLoss,
// MPSNNLossGradient, MPSNNInitialGradient).
#include "kernels/loss/loss.hpp"
#include "kernels/loss/yolo_loss.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"

namespace mpsgrad {
namespace {

using metal::MetalCommandBuffer;
using metal::MetalStatePayload;
using metal::PoolScope;
using metal::Retained;
using metal::to_ns;

// Autoreleased.
MPSCNNLossDescriptor* to_mps(const LossDescriptor& loss) {
  MPSCNNLossDescriptor* result = [MPSCNNLossDescriptor
      cnnLossDescriptorWithType:static_cast<MPSCNNLossType>(loss.type)
                  reductionType:static_cast<MPSCNNReductionType>(loss.reduction)];
  result.reduceAcrossBatch = loss.reduce_across_batch;
  result.weight = loss.weight;
  result.labelSmoothing = loss.label_smoothing;
  result.numberOfClasses = to_ns(loss.number_of_classes);
  result.epsilon = loss.epsilon;
  result.delta = loss.delta;
  return result;
}

MPSCNNYOLOLossDescriptor* to_mps(const YOLOLossDescriptor& loss) {
  NSData* anchors = [NSData dataWithBytes:loss.anchors.data()
                                   length:loss.anchors.size() * sizeof(loss.anchors.front())];
  MPSCNNYOLOLossDescriptor* result = [MPSCNNYOLOLossDescriptor
      cnnLossDescriptorWithXYLossType:static_cast<MPSCNNLossType>(loss.xy.type)
                           WHLossType:static_cast<MPSCNNLossType>(loss.wh.type)
                   confidenceLossType:static_cast<MPSCNNLossType>(loss.confidence.type)
                      classesLossType:static_cast<MPSCNNLossType>(loss.classes.type)
                        reductionType:static_cast<MPSCNNReductionType>(loss.reduction)
                          anchorBoxes:anchors
                  numberOfAnchorBoxes:to_ns(loss.anchor_count())];
  result.XYLossDescriptor = to_mps(loss.xy);
  result.WHLossDescriptor = to_mps(loss.wh);
  result.confidenceLossDescriptor = to_mps(loss.confidence);
  result.classesLossDescriptor = to_mps(loss.classes);
  result.reduceAcrossBatch = loss.reduce_across_batch;
  result.rescore = loss.rescore;
  result.scaleXY = loss.scale_xy;
  result.scaleWH = loss.scale_wh;
  result.scaleNoObject = loss.scale_no_object;
  result.scaleObject = loss.scale_object;
  result.scaleClass = loss.scale_class;
  result.minIOUForObjectPresence = loss.min_iou_for_object_presence;
  result.maxIOUForObjectAbsence = loss.max_iou_for_object_absence;
  return result;
}

// MPSNNForwardLoss and MPSNNLossGradient have these four in common, but no class.
template <class Kernel>
void set_settings(Kernel* kernel, const LossDescriptor& loss) {
  kernel.weight = loss.weight;
  kernel.labelSmoothing = loss.label_smoothing;
  kernel.epsilon = loss.epsilon;
  kernel.delta = loss.delta;
}

// Loss kernels take no clip rectangle at all, not even one of the whole destination.
void set_unary_properties(MPSCNNKernel* kernel, const UnaryCall& call) {
  metal::set_properties(kernel, call);
  kernel.clipRect = MPSRectNoClip;
}

NSArray<MPSImage*>* images_or_nil(const ImageBatch::Images& images) {
  return images.empty() ? nil : metal::mps_images(images, false);
}

// MPSCNNLoss and MPSCNNYOLOLoss have their encodes in common, but no class.
template <class Kernel>
class MetalLabelledLoss final : public LossEncoder {
 public:
  explicit MetalLabelledLoss(Retained<Kernel*> kernel) : kernel_(std::move(kernel)) {}

  void encode(CommandBuffer& command_buffer, const LossCall& call) override {
    const PoolScope pool;
    auto& own = as<MetalCommandBuffer>(command_buffer);
    set_unary_properties(kernel_.get(), call.images);
    NSArray<MPSImage*>* sources = metal::mps_images(call.images.sources, false);
    NSArray<MPSImage*>* destinations = metal::mps_images(call.images.destinations, true);
    // Apple's labels hold the other images; what they are made of must be ready and is written.
    metal::mps_images(call.labels.labels, false);
    images_or_nil(call.labels.weights);
    metal::mps_images(call.losses, true);
    NSMutableArray<MPSCNNLossLabels*>* labels =
        [NSMutableArray arrayWithCapacity:call.states.size()];
    for (const auto& state : call.states) {
      auto& payload = dynamic_cast<MetalStatePayload&>(*state->payload);
      [labels addObject:static_cast<MPSCNNLossLabels*>(payload.get())];
    }
    MPSCommandBuffer* buffer = own.for_kernel();
    if (call.images.batch) {
      [kernel_.get() encodeBatchToCommandBuffer:buffer
                                   sourceImages:sources
                                         labels:labels
                              destinationImages:destinations];
    } else {
      [kernel_.get() encodeToCommandBuffer:buffer
                               sourceImage:[sources objectAtIndex:0]
                                    labels:[labels objectAtIndex:0]
                          destinationImage:[destinations objectAtIndex:0]];
    }
    own.keep_all({sources, labels, destinations, kernel_.get()});
  }

 private:
  Retained<Kernel*> kernel_;
};

class MetalForwardLoss final : public ForwardLossEncoder {
 public:
  explicit MetalForwardLoss(Retained<MPSNNForwardLoss*> kernel) : kernel_(std::move(kernel)) {}

  std::shared_ptr<StatePayload> make_payload() override {
    const PoolScope pool;
    const auto set_more = [](MPSCNNKernel* kernel, const UnaryProperties& properties) {
      set_settings(static_cast<MPSNNForwardLoss*>(kernel),
                   properties.settings.as<LossDescriptor>());
    };
    return std::make_shared<MetalStatePayload>(
        metal::state_maker(Retained<MPSCNNKernel*>::share(kernel_.get()), set_more));
  }

  void encode(CommandBuffer& command_buffer, const ForwardLossCall& call) override {
    const PoolScope pool;
    auto& own = as<MetalCommandBuffer>(command_buffer);
    set_unary_properties(kernel_.get(), call.images);
    set_settings(kernel_.get(), call.loss);
    NSArray<MPSImage*>* sources = metal::mps_images(call.images.sources, false);
    NSArray<MPSImage*>* labels = metal::mps_images(call.labels.labels, false);
    NSArray<MPSImage*>* weights = images_or_nil(call.labels.weights);
    NSArray<MPSImage*>* destinations = metal::mps_images(call.images.destinations, true);
    NSArray<MPSState*>* states =
        metal::fill_states(own, kernel_.get(), call.images, sources, destinations);
    [kernel_.get() encodeBatchToCommandBuffer:own.for_kernel()
                                 sourceImages:sources
                                       labels:labels
                                      weights:weights
                            destinationStates:states
                            destinationImages:destinations];
    own.keep_all({sources, labels, weights, states, destinations, kernel_.get()});
  }

 private:
  Retained<MPSNNForwardLoss*> kernel_;
};

class MetalLossGradient final : public LossGradientEncoder {
 public:
  explicit MetalLossGradient(Retained<MPSNNLossGradient*> kernel) : kernel_(std::move(kernel)) {}

  void encode(CommandBuffer& command_buffer, const LossGradientCall& call) override {
    const PoolScope pool;
    auto& own = as<MetalCommandBuffer>(command_buffer);
    metal::describe_states(own, call.states);
    NSArray<MPSState*>* states =
        call.states.empty() ? nil : metal::mps_states(call.kernel.class_name(), call.states);
    MPSNNLossGradient* kernel = kernel_.get();
    const BinaryProperties& p = call.properties;
    const bool whole = call.loss.reduction == ReductionType::None;
    metal::set_options(kernel, call.kernel);
    kernel.primarySourceFeatureChannelOffset = to_ns(p.primary.channel_offset);
    kernel.primarySourceFeatureChannelMaxCount = whole ? to_ns(call.channels) : 1;
    kernel.secondarySourceFeatureChannelOffset = to_ns(p.secondary.channel_offset);
    kernel.secondarySourceFeatureChannelMaxCount = to_ns(call.channels);
    kernel.destinationFeatureChannelOffset = to_ns(p.destination_channel_offset);
    kernel.computeLabelGradients = call.by_labels;
    set_settings(kernel, call.loss);
    NSArray<MPSImage*>* gradients = metal::mps_images(call.gradients, false);
    NSArray<MPSImage*>* sources = metal::mps_images(call.sources, false);
    NSArray<MPSImage*>* labels = metal::mps_images(call.labels.labels, false);
    NSArray<MPSImage*>* weights = images_or_nil(call.labels.weights);
    NSArray<MPSImage*>* destinations = metal::mps_images(call.destinations, true);
    [kernel encodeBatchToCommandBuffer:own.for_kernel()
                       sourceGradients:gradients
                          sourceImages:sources
                                labels:labels
                               weights:weights
                          sourceStates:states
                  destinationGradients:destinations];
    own.keep_all({gradients, sources, labels, weights, states, destinations, kernel});
  }

 private:
  Retained<MPSNNLossGradient*> kernel_;
};

class MetalLossBackend final : public LossBackend {
 public:
  std::unique_ptr<LossEncoder> make_loss(Device& device,
                                         const LossDescriptor& loss) const override {
    const PoolScope pool;
    return std::make_unique<MetalLabelledLoss<MPSCNNLoss>>(metal::adopt_kernel(
        [[MPSCNNLoss alloc] initWithDevice:metal::mtl_device(device) lossDescriptor:to_mps(loss)],
        "MPSCNNLoss"));
  }
  std::unique_ptr<LossEncoder> make_yolo_loss(Device& device,
                                              const YOLOLossDescriptor& loss) const override {
    const PoolScope pool;
    return std::make_unique<MetalLabelledLoss<MPSCNNYOLOLoss>>(
        metal::adopt_kernel([[MPSCNNYOLOLoss alloc] initWithDevice:metal::mtl_device(device)
                                                    lossDescriptor:to_mps(loss)],
                            "MPSCNNYOLOLoss"));
  }
  std::unique_ptr<ForwardLossEncoder> make_forward(Device& device,
                                                   const LossDescriptor& loss) const override {
    const PoolScope pool;
    return std::make_unique<MetalForwardLoss>(
        metal::adopt_kernel([[MPSNNForwardLoss alloc] initWithDevice:metal::mtl_device(device)
                                                      lossDescriptor:to_mps(loss)],
                            "MPSNNForwardLoss"));
  }
  std::unique_ptr<LossGradientEncoder> make_gradient(Device& device,
                                                     const LossDescriptor& loss) const override {
    const PoolScope pool;
    return std::make_unique<MetalLossGradient>(
        metal::adopt_kernel([[MPSNNLossGradient alloc] initWithDevice:metal::mtl_device(device)
                                                       lossDescriptor:to_mps(loss)],
                            "MPSNNLossGradient"));
  }
  std::unique_ptr<UnaryEncoder> make_initial_gradient(Device& device) const override {
    const PoolScope pool;
    return std::make_unique<metal::MetalUnaryEncoder>(metal::adopt_kernel<MPSCNNKernel>(
        [[MPSNNInitialGradient alloc] initWithDevice:metal::mtl_device(device)],
        "MPSNNInitialGradient"));
  }

  // Apple's labels make the loss images.
  LossStorage make_losses(const std::shared_ptr<Device>& device, const ImageBatch& labels,
                          const ImageBatch* weights, const ImageDescriptor& loss) const override {
    const PoolScope pool;
    LossStorage result;
    NSMutableArray<MPSImage*>* images = [NSMutableArray arrayWithCapacity:to_ns(labels.size())];
    for (Index i = 0; i < labels.size(); ++i) {
      const auto made = Retained<MPSCNNLossLabels*>::adopt([[MPSCNNLossLabels alloc]
          initWithDevice:metal::mtl_device(*device)
           lossImageSize:MTLSizeMake(to_ns(loss.width), to_ns(loss.height),
                                     to_ns(loss.feature_channels))
             labelsImage:metal::mps_image(*labels[i])
            weightsImage:weights ? metal::mps_image(*(*weights)[i]) : nil]);
      require<DeviceError>(static_cast<bool>(made), "LossLabels: the device could not make them");
      [images addObject:[made.get() lossImage]];
      auto payload = std::make_shared<MetalStatePayload>();
      payload->assign(made.get(), nullptr);
      result.payloads.push_back(std::move(payload));
    }
    ImageDescriptor descriptor = loss;
    descriptor.channel_format = static_cast<ChannelFormat>(
        static_cast<MPSImage*>([images objectAtIndex:0]).featureChannelFormat);
    metal::MetalImageStorage::Options options;
    options.zero_when_used = true;
    const auto storage = std::make_shared<metal::MetalImageStorage>(
        std::static_pointer_cast<metal::MetalDeviceBase>(device), descriptor, labels.size(),
        Retained<NSArray<MPSImage*>*>::share(images), std::move(options));
    ImageBatch::Images views;
    for (Index i = 0; i < labels.size(); ++i) {
      views.push_back(std::make_shared<Image>(device, descriptor, storage, i));
    }
    result.losses = std::make_shared<ImageBatch>(std::move(views));
    return result;
  }
};

}  // namespace

const LossBackend& metal_loss() {
  static const MetalLossBackend backend;
  return backend;
}

namespace metal {

Node make_loss_node(const NodeRequest& request) {
  if (const auto* kernel = request.kernel<Loss>()) {
    return adopt_node([[MPSCNNLossNode alloc] initWithSource:request.source()
                                              lossDescriptor:to_mps(kernel->loss())]);
  }
  if (const auto* kernel = request.kernel<YOLOLoss>()) {
    return adopt_node([[MPSCNNYOLOLossNode alloc] initWithSource:request.source()
                                                  lossDescriptor:to_mps(kernel->loss())]);
  }
  if (const auto* kernel = request.kernel<ForwardLoss>()) {
    NSArray<MPSNNImageNode*>* sources = request.sources;
    return adopt_node([[MPSNNForwardLossNode alloc]
        initWithSource:[sources objectAtIndex:0]
                labels:[sources objectAtIndex:1]
               weights:sources.count > 2 ? [sources objectAtIndex:2] : nil
        lossDescriptor:to_mps(kernel->loss())]);
  }
  if (request.kernel<InitialGradient>() != nullptr) {
    return adopt_node([[MPSNNInitialGradientNode alloc] initWithSource:request.source()]);
  }
  return {};
}

StateAdopter loss_state_adopter(const State& like) {
  const auto* ours = dynamic_cast<const ForwardLossState*>(&like);
  if (ours == nullptr) {
    return nullptr;
  }
  return [snapshot = ours->snapshot()](MPSState* made,
                                       StateAdoption& adoption) -> std::shared_ptr<State> {
    auto result = std::make_shared<ForwardLossState>(adoption.device, adoption.owner(), snapshot);
    result->payload = adoption.payload(made);
    return result;
  };
}

}  // namespace metal
}  // namespace mpsgrad
