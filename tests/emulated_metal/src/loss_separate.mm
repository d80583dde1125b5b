// The loss in two kernels: values forward, chain rule backward; and the gradient of ones.
#include <algorithm>

#include "loss_kernels.hpp"

using namespace emulated_metal;

@implementation MPSNNForwardLoss
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<LossParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                lossDescriptor:(MPSCNNLossDescriptor*)lossDescriptor {
  self = [super initWithDevice:device];
  auto params = std::make_shared<LossParams>();
  params->function = loss_function(lossDescriptor, HERE);
  body_->params = params;
  return self;
}
LOSS_READ_ONLY
READ_WRITE_LOSS(float, weight, setWeight, weight)
READ_WRITE_LOSS(float, labelSmoothing, setLabelSmoothing, smoothing)
READ_WRITE_LOSS(float, epsilon, setEpsilon, epsilon)
READ_WRITE_LOSS(float, delta, setDelta, delta)
- (Class)emulatedStateClass {
  return [MPSNNGradientState class];
}
- (bool)reduces {
  return body_->as<LossParams>().function.reduction != MPSCNNReductionTypeNone;
}
- (long)emulatedProducedChannels:(long)consumed {
  return [self reduces] ? 1 : consumed;
}
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources {
  (void)sources;
  if (![self reduces]) return;
  descriptor.width = 1;
  descriptor.height = 1;
}
- (void)emulatedEncode:(const Call&)call where:(const Where&)where {
  (void)call;
  spring(Trap::labels_missing, where);
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
                            labels:(MPSImageBatch*)labels
                           weights:(MPSImageBatch*)weights
                 destinationStates:(MPSStateBatch*)destinationStates
                 destinationImages:(MPSImageBatch*)destinationImages {
  REQUIRE(labels != nil, labels_missing, HERE);
  check_geometry(*body_, HERE);
  const LossFunction f = body_->as<LossParams>().function;
  KernelBody kernel = *body_;
  Call call{commandBuffer, {sourceImages, labels}, destinationImages, nil, destinationStates, true};
  if (weights != nil) call.sources.push_back(weights);
  kernel.sources.resize(call.sources.size());
  const Plan plan = plan_encode(
      kernel, call,
      [self](const std::vector<long>& consumed) {
        return [self emulatedProducedChannels:consumed[0]];
      },
      HERE);
  const ImageBody& source = body_of([sourceImages objectAtIndex:0], HERE);
  for (size_t index = 1; index < call.sources.size(); ++index) {
    const ImageBody& other = body_of([call.sources[index] objectAtIndex:0], HERE);
    REQUIRE(other.shape.width == source.shape.width && other.shape.height == source.shape.height &&
                plan.consumed[index] == plan.consumed[0],
            labels_size, HERE);
  }
  const ImageBody& result = body_of([destinationImages objectAtIndex:0], HERE);
  REQUIRE([self reduces] ? result.shape.width == 1 && result.shape.height == 1
                         : result.shape.width == source.shape.width &&
                               result.shape.height == source.shape.height,
          loss_image_size, HERE, "%lu x %lu", static_cast<unsigned long>(result.shape.width),
          static_cast<unsigned long>(result.shape.height));
  REQUIRE(weights == nil || f.type != MPSCNNLossTypeCosineDistance, loss_descriptor, HERE,
          "a cosine distance takes no weights image");
  for (MPSState* state in destinationStates) {
    REQUIRE([state isKindOfClass:[MPSNNGradientState class]], state_wrong_class, HERE);
    StateBody& body = body_of(state, HERE);
    REQUIRE(body.snapshot && body.snapshot->kernel_class == [self class], state_foreign_kernel,
            HERE);
    REQUIRE(body.snapshot->fingerprint == body_->fingerprint(), kernel_changed, HERE);
    body.encoded = true;
  }
  Command command;
  for (const Job& job : plan.jobs) {
    for (const View& view : job.sources) command.reads.push_back(view.storage);
    command.writes.push_back(job.destination.storage);
  }
  command.run = [plan, f, kernel] {
    std::vector<Tensor> losses, weight_tensors;
    std::vector<View> results;
    const bool weighted = kernel.sources.size() == 3;
    for (const Job& job : plan.jobs) {
      const auto from = static_cast<long>(kernel.sources[0].channel_offset);
      const Tensor y = load(job.sources[0], from, plan.consumed[0]);
      const Tensor t = load(job.sources[1], 0, plan.consumed[1]);
      if (weighted) weight_tensors.push_back(load(job.sources[2], 0, plan.consumed[2]));
      Tensor loss(y.h, y.w, y.c);
      f.evaluate(y, t, &loss, nullptr, nullptr);
      losses.push_back(std::move(loss));
      results.push_back(job.destination);
    }
    std::vector<const Tensor*> pointers(losses.size(), nullptr);
    for (size_t n = 0; weighted && n < losses.size(); ++n) pointers[n] = &weight_tensors[n];
    store_losses(f, losses, pointers, results);
  };
  record(commandBuffer, HERE, std::move(command));
  consume(call, HERE);
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages
                                      labels:(MPSImageBatch*)labels
                                     weights:(MPSImageBatch*)weights
                           destinationStates:(MPSStateBatch**)outStates
                 destinationStateIsTemporary:(BOOL)isTemporary {
  NSArray* results = create_gradients(self, commandBuffer, sourceImages, HERE);
  NSArray* states = nil;
  if (outStates != nullptr) {
    states = isTemporary ? [self temporaryResultStateBatchForCommandBuffer:commandBuffer
                                                               sourceImage:sourceImages
                                                              sourceStates:nil
                                                          destinationImage:results]
                         : [self resultStateBatchForSourceImage:sourceImages
                                                   sourceStates:nil
                                               destinationImage:results];
    *outStates = states;
  }
  [self encodeBatchToCommandBuffer:commandBuffer
                      sourceImages:sourceImages
                            labels:labels
                           weights:weights
                 destinationStates:states
                 destinationImages:results];
  return results;
}
@end

@implementation MPSNNLossGradient
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<LossParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                lossDescriptor:(MPSCNNLossDescriptor*)lossDescriptor {
  self = [super initWithDevice:device];
  auto params = std::make_shared<LossParams>();
  params->function = loss_function(lossDescriptor, HERE);
  body_->params = params;
  return self;
}
LOSS_READ_ONLY
READ_WRITE_LOSS(float, weight, setWeight, weight)
READ_WRITE_LOSS(float, labelSmoothing, setLabelSmoothing, smoothing)
READ_WRITE_LOSS(float, epsilon, setEpsilon, epsilon)
READ_WRITE_LOSS(float, delta, setDelta, delta)
- (BOOL)computeLabelGradients {
  return body_->as<LossParams>().label_gradients;
}
- (void)setComputeLabelGradients:(BOOL)compute {
  body_->as<LossParams>().label_gradients = compute;
}
- (void)emulatedBinaryCheck:(const Call&)call where:(const Where&)where {
  (void)call;
  spring(Trap::labels_missing, where);
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   sourceGradients:(MPSImageBatch*)sourceGradients
                      sourceImages:(MPSImageBatch*)sourceImages
                            labels:(MPSImageBatch*)labels
                           weights:(MPSImageBatch*)weights
                      sourceStates:(MPSStateBatch*)sourceStates
              destinationGradients:(MPSImageBatch*)destinationGradients {
  REQUIRE(labels != nil, labels_missing, HERE);
  check_geometry(*body_, HERE);
  LossFunction f = body_->as<LossParams>().function;
  KernelBody kernel = *body_;
  Call call{commandBuffer,
            {sourceGradients, sourceImages, labels},
            destinationGradients,
            sourceStates,
            nil,
            true};
  if (weights != nil) call.sources.push_back(weights);
  kernel.sources.resize(call.sources.size());
  for (MPSState* state in sourceStates) {
    const StateBody& body = body_of(state, HERE);
    REQUIRE(
        body.snapshot && [body.snapshot->kernel_class isSubclassOfClass:[MPSNNForwardLoss class]],
        state_foreign_kernel, HERE);
    const LossFunction& forward = body.snapshot->kernel.as<LossParams>().function;
    f.weight = forward.weight;
    f.smoothing = forward.smoothing;
    f.epsilon = forward.epsilon;
    f.delta = forward.delta;
  }
  const Plan plan = plan_encode(
      kernel, call, [](const std::vector<long>& consumed) { return consumed[1]; }, HERE);
  const ImageBody& gradient = body_of([sourceGradients objectAtIndex:0], HERE);
  const ImageBody& source = body_of([sourceImages objectAtIndex:0], HERE);
  for (size_t index = 2; index < call.sources.size(); ++index) {
    const ImageBody& other = body_of([call.sources[index] objectAtIndex:0], HERE);
    REQUIRE(other.shape.width == source.shape.width && other.shape.height == source.shape.height &&
                plan.consumed[index] == plan.consumed[1],
            labels_size, HERE);
  }
  const bool full = f.reduction == MPSCNNReductionTypeNone;
  REQUIRE(full ? gradient.shape.width == source.shape.width &&
                     gradient.shape.height == source.shape.height &&
                     plan.consumed[0] == plan.consumed[1]
               : gradient.shape.width == 1 && gradient.shape.height == 1 && plan.consumed[0] == 1,
          loss_image_size, HERE, "incoming gradient %lu x %lu",
          static_cast<unsigned long>(gradient.shape.width),
          static_cast<unsigned long>(gradient.shape.height));
  Command command;
  for (const Job& job : plan.jobs) {
    for (const View& view : job.sources) command.reads.push_back(view.storage);
    command.writes.push_back(job.destination.storage);
  }
  command.run = [plan, f, kernel, full, by_label = body_->as<LossParams>().label_gradients] {
    const bool weighted = kernel.sources.size() == 4;
    const auto source_at = static_cast<long>(kernel.sources[1].channel_offset);
    std::vector<Tensor> derivatives, weight_tensors;
    std::vector<Reduced> reduced;
    Reduced all;
    for (const Job& job : plan.jobs) {
      const Tensor y = load(job.sources[1], source_at, plan.consumed[1]);
      const Tensor t = load(job.sources[2], 0, plan.consumed[2]);
      if (weighted) weight_tensors.push_back(load(job.sources[3], 0, plan.consumed[3]));
      Tensor loss(y.h, y.w, y.c), d(y.h, y.w, y.c);
      f.evaluate(y, t, &loss, by_label ? nullptr : &d, by_label ? &d : nullptr);
      Reduced one;
      const Tensor* w = weighted ? &weight_tensors.back() : nullptr;
      add_to(one, f, loss, w);
      add_to(all, f, loss, w);
      reduced.push_back(one);
      derivatives.push_back(std::move(d));
    }
    for (size_t n = 0; n < plan.jobs.size(); ++n) {
      const bool shared = f.across_batch && !full;
      const Tensor g = load(plan.jobs[shared ? 0 : n].sources[0],
                            static_cast<long>(kernel.sources[0].channel_offset), plan.consumed[0]);
      const double divisor = (shared ? all : reduced[n]).divisor(f.reduction);
      const float factor = divisor == 0 ? 0.0F : static_cast<float>(1 / divisor);
      Tensor out = derivatives[n];
      const Tensor* w = weighted ? &weight_tensors[n] : nullptr;
      for (long y = 0; y < out.h; ++y) {
        for (long x = 0; x < out.w; ++x) {
          for (long k = 0; k < out.c; ++k) {
            out.at(y, x, k) *=
                (full ? g.at(y, x, k) : g.at(0, 0, 0)) * factor * f.weight_at(w, y, x, k);
          }
        }
      }
      store(plan.jobs[n].destination, {0, 0, 0, out.w, out.h, 1},
            static_cast<long>(kernel.destination_channel_offset), out);
    }
  };
  record(commandBuffer, HERE, std::move(command));
  consume(call, HERE);
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceGradients:(MPSImageBatch*)sourceGradients
                                sourceImages:(MPSImageBatch*)sourceImages
                                      labels:(MPSImageBatch*)labels
                                     weights:(MPSImageBatch*)weights
                                sourceStates:(MPSStateBatch*)sourceStates {
  check_encodable(commandBuffer, HERE);
  REQUIRE(sourceImages != nil && sourceGradients != nil, nil_argument, HERE);
  REQUIRE([sourceImages count] > 0, batch_empty, HERE);
  const ImageBody& source = body_of([sourceImages objectAtIndex:0], HERE);
  MPSImageDescriptor* descriptor = [MPSImageDescriptor
      imageDescriptorWithChannelFormat:source.shape.format
                                 width:source.shape.width
                                height:source.shape.height
                       featureChannels:source.shape.channels + body_->destination_channel_offset];
  NSArray* results = allocate_images(self, commandBuffer, descriptor, [sourceImages count], HERE);
  [self encodeBatchToCommandBuffer:commandBuffer
                   sourceGradients:sourceGradients
                      sourceImages:sourceImages
                            labels:labels
                           weights:weights
                      sourceStates:sourceStates
              destinationGradients:results];
  return results;
}
@end

@implementation MPSNNInitialGradient
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  return [super initWithDevice:device];
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [](const std::vector<Tensor>&, Tensor& out, size_t) {
    std::fill(out.data.begin(), out.data.end(), 1.0F);
  };
}
@end
