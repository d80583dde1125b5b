// Losses: descriptors, labels, and the combined kernel, whose result is the gradient.
#include "loss.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "loss_kernels.hpp"

using namespace emulated_metal;

namespace emulated_metal {

void LossFunction::fields(Fields& f) {
  f("loss.type", type);
  f("loss.reduction", reduction);
  f("loss.across_batch", across_batch);
  f("loss.weight", weight);
  f("loss.smoothing", smoothing);
  f("loss.epsilon", epsilon);
  f("loss.delta", delta);
  f("loss.classes", classes);
}

void LossFunction::evaluate(const Tensor& y, const Tensor& labels, Tensor* loss,
                            Tensor* by_prediction, Tensor* by_label) const {
  const bool soft_max = type == MPSCNNLossTypeSoftMaxCrossEntropy;
  const bool sigmoid = type == MPSCNNLossTypeSigmoidCrossEntropy;
  const double keep = soft_max || sigmoid ? 1.0 - static_cast<double>(smoothing) : 1.0;
  const double floor = soft_max  ? static_cast<double>(smoothing) / static_cast<double>(classes)
                       : sigmoid ? static_cast<double>(smoothing) / 2
                                 : 0.0;
  const auto eps = static_cast<double>(epsilon), limit = static_cast<double>(delta);
  const auto product = [](double t, double other) { return t == 0 ? 0.0 : t * other; };
  for (long row = 0; row < y.h; ++row) {
    for (long column = 0; column < y.w; ++column) {
      double top = -INFINITY, total = 0;
      for (long k = 0; k < y.c; ++k) top = std::max(top, static_cast<double>(y.at(row, column, k)));
      for (long k = 0; k < y.c; ++k) {
        total += std::exp(static_cast<double>(y.at(row, column, k)) - top);
      }
      for (long k = 0; k < y.c; ++k) {
        const auto p = static_cast<double>(y.at(row, column, k));
        const double t = static_cast<double>(labels.at(row, column, k)) * keep + floor;
        double value = 0, d = 0, dt = 0;
        switch (type) {
          case MPSCNNLossTypeMeanAbsoluteError:
            value = std::fabs(p - t);
            d = p > t ? 1 : p < t ? -1 : 0;
            dt = -d;
            break;
          case MPSCNNLossTypeMeanSquaredError:
            value = (p - t) * (p - t);
            d = 2 * (p - t);
            dt = -d;
            break;
          case MPSCNNLossTypeSoftMaxCrossEntropy: {
            const double logarithm = p - top - std::log(total);
            value = -product(t, logarithm);
            d = std::exp(logarithm) - t;
            dt = -keep * logarithm;
            break;
          }
          case MPSCNNLossTypeSigmoidCrossEntropy:
            value = std::max(p, 0.0) - p * t + std::log1p(std::exp(-std::fabs(p)));
            d = 1 / (1 + std::exp(-p)) - t;
            dt = -keep * p;
            break;
          case MPSCNNLossTypeCategoricalCrossEntropy:
            value = -product(t, std::log(p));
            d = -product(t, 1 / p);
            dt = -std::log(p);
            break;
          case MPSCNNLossTypeHinge:
            value = std::max(1 - (2 * t - 1) * p, 0.0);
            d = 1 + (1 - 2 * t) * p > 0 ? 1 - 2 * t : 0;
            dt = 1 - (2 * t - 1) * p > 0 ? -2 * p : 0;
            break;
          case MPSCNNLossTypeHuber: {
            const double e = std::fabs(p - t);
            value = e <= limit ? e * e / 2 : limit * limit / 2 + limit * (e - limit);
            d = std::clamp(p - t, -limit, limit);
            dt = -d;
            break;
          }
          case MPSCNNLossTypeCosineDistance:
            value = -p * t;  // the 1 is added once for each image
            d = -t;
            dt = -p;
            break;
          case MPSCNNLossTypeLog:
            value = -product(t, std::log(p + eps)) - product(1 - t, std::log(1 - p + eps));
            d = (p - t + eps - 2 * eps * t) / (p * (1 - p) + eps * (eps + 1));
            dt = std::log((1 - p + eps) / (p + eps));
            break;
          case MPSCNNLossTypeKullbackLeiblerDivergence:
            value = product(t, std::log(t) - p);
            d = -t;
            dt = std::log(t) - p + 1;
            break;
          default:
            break;
        }
        if (loss != nullptr) loss->at(row, column, k) = static_cast<float>(value);
        if (by_prediction != nullptr) by_prediction->at(row, column, k) = static_cast<float>(d);
        if (by_label != nullptr) by_label->at(row, column, k) = static_cast<float>(dt);
      }
    }
  }
}

LossFunction loss_function(MPSCNNLossDescriptor* descriptor, const Where& where) {
  REQUIRE(descriptor != nil, nil_argument, where, "lossDescriptor");
  LossFunction f;
  f.type = [descriptor lossType];
  f.reduction = [descriptor reductionType];
  f.across_batch = [descriptor reduceAcrossBatch];
  f.weight = [descriptor weight];
  f.smoothing = [descriptor labelSmoothing];
  f.epsilon = [descriptor epsilon];
  f.delta = [descriptor delta];
  f.classes = [descriptor numberOfClasses];
  REQUIRE(f.type < MPSCNNLossTypeCount && f.reduction >= MPSCNNReductionTypeNone &&
              f.reduction < MPSCNNReductionTypeCount,
          loss_descriptor, where, "type %d, reduction %d", static_cast<int>(f.type),
          static_cast<int>(f.reduction));
  REQUIRE(f.classes >= 1 && f.smoothing >= 0 && f.smoothing <= 1, loss_descriptor, where,
          "label smoothing");
  REQUIRE(f.type != MPSCNNLossTypeCosineDistance || f.reduction == MPSCNNReductionTypeSum,
          loss_descriptor, where, "a cosine distance can only be summed");
  return f;
}

void add_to(Reduced& total, const LossFunction& f, const Tensor& loss, const Tensor* weights) {
  for (long y = 0; y < loss.h; ++y) {
    for (long x = 0; x < loss.w; ++x) {
      for (long k = 0; k < loss.c; ++k) {
        const float w = f.weight_at(weights, y, x, k);
        total.sum += static_cast<double>(w * loss.at(y, x, k));
        total.non_zero += w != 0 ? 1 : 0;
      }
    }
  }
  if (f.type == MPSCNNLossTypeCosineDistance) total.sum += static_cast<double>(f.weight);
  const bool pixels = f.type == MPSCNNLossTypeSoftMaxCrossEntropy;
  total.elements += static_cast<double>(loss.h * loss.w * (pixels ? 1 : loss.c));
}

void store_losses(const LossFunction& f, const std::vector<Tensor>& losses,
                  const std::vector<const Tensor*>& weights, const std::vector<View>& results) {
  const size_t count = losses.size();
  if (f.reduction == MPSCNNReductionTypeNone) {
    for (size_t n = 0; n < count; ++n) {
      Tensor weighted = losses[n];
      for (long y = 0; y < weighted.h; ++y) {
        for (long x = 0; x < weighted.w; ++x) {
          for (long k = 0; k < weighted.c; ++k) {
            weighted.at(y, x, k) *= f.weight_at(weights[n], y, x, k);
          }
        }
      }
      store(results[n], {0, 0, 0, weighted.w, weighted.h, 1}, 0, weighted);
    }
    return;
  }
  Reduced all;
  for (size_t n = 0; n < count; ++n) {
    Reduced one;
    add_to(one, f, losses[n], weights[n]);
    add_to(all, f, losses[n], weights[n]);
    Tensor value(1, 1, 1);
    value.at(0, 0, 0) = f.across_batch ? 0.0F : one.value(f.reduction);
    store(results[n], {0, 0, 0, 1, 1, 1}, 0, value);
  }
  if (!f.across_batch) return;
  Tensor value(1, 1, 1);
  value.at(0, 0, 0) = all.value(f.reduction);
  store(results[0], {0, 0, 0, 1, 1, 1}, 0, value);
}

void check_geometry(const KernelBody& kernel, const Where& where) {
  for (const Operand& operand : kernel.sources) {
    REQUIRE(operand.offset.x == 0 && operand.offset.y == 0 && operand.offset.z == 0, loss_geometry,
            where, "offset");
  }
  const MTLRegion& clip = kernel.clip;
  REQUIRE(clip.origin.x == 0 && clip.origin.y == 0 && clip.origin.z == 0 &&
              clip.size.width == NSUIntegerMax && clip.size.height == NSUIntegerMax &&
              clip.size.depth == NSUIntegerMax,
          loss_geometry, where, "clip rectangle");
}

}  // namespace emulated_metal

// ---------------------------------------------------------------- descriptors

@implementation MPSCNNLossDataDescriptor
+ (MPSCNNLossDataDescriptor*)cnnLossDataDescriptorWithData:(NSData*)data
                                                    layout:(MPSDataLayout)layout
                                                      size:(MTLSize)size {
  REQUIRE(data != nil, nil_argument, HERE, "data");
  const NSUInteger bytes = size.width * size.height * size.depth * sizeof(float);
  if (bytes == 0 || [data length] < bytes) return nil;
  MPSCNNLossDataDescriptor* descriptor =
      [[[MPSCNNLossDataDescriptor alloc] emulatedInit] autorelease];
  descriptor->data_ = [data retain];
  descriptor->layout_ = layout;
  descriptor->size_ = size;
  const bool chunky = layout == MPSDataLayoutHeightxWidthxFeatureChannels;
  descriptor->bytes_per_row_ = size.width * sizeof(float) * (chunky ? size.depth : 1);
  descriptor->bytes_per_image_ = descriptor->bytes_per_row_ * size.height;
  return descriptor;
}
- (instancetype)emulatedInit {
  return [super init];
}
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (void)dealloc {
  [data_ release];
  [super dealloc];
}
- (id)copyWithZone:(NSZone*)zone {
  MPSCNNLossDataDescriptor* copy = [[[self class] allocWithZone:zone] emulatedInit];
  copy->data_ = [data_ retain];
  copy->layout_ = layout_;
  copy->size_ = size_;
  copy->bytes_per_row_ = bytes_per_row_;
  copy->bytes_per_image_ = bytes_per_image_;
  return copy;
}
- (MPSDataLayout)layout {
  return layout_;
}
- (MTLSize)size {
  return size_;
}
- (NSUInteger)bytesPerRow {
  return bytes_per_row_;
}
- (void)setBytesPerRow:(NSUInteger)bytes {
  bytes_per_row_ = bytes;
}
- (NSUInteger)bytesPerImage {
  return bytes_per_image_;
}
- (void)setBytesPerImage:(NSUInteger)bytes {
  bytes_per_image_ = bytes;
}
@end

@implementation MPSCNNLossDescriptor
+ (MPSCNNLossDescriptor*)cnnLossDescriptorWithType:(MPSCNNLossType)lossType
                                     reductionType:(MPSCNNReductionType)reductionType {
  MPSCNNLossDescriptor* descriptor = [[[MPSCNNLossDescriptor alloc] emulatedInit] autorelease];
  descriptor->type_ = lossType;
  descriptor->reduction_ = reductionType;
  return descriptor;
}
- (instancetype)emulatedInit {
  self = [super init];
  weight_ = delta_ = 1;
  epsilon_ = 1e-7F;
  classes_ = 1;
  return self;
}
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (id)copyWithZone:(NSZone*)zone {
  MPSCNNLossDescriptor* copy = [[[self class] allocWithZone:zone] emulatedInit];
  copy->type_ = type_;
  copy->reduction_ = reduction_;
  copy->across_batch_ = across_batch_;
  copy->weight_ = weight_;
  copy->smoothing_ = smoothing_;
  copy->epsilon_ = epsilon_;
  copy->delta_ = delta_;
  copy->classes_ = classes_;
  return copy;
}
#define FIELD(type, getter, setter, member) \
  -(type)getter {                           \
    return member;                          \
  }                                         \
  -(void)setter : (type)value {             \
    member = value;                         \
  }
FIELD(MPSCNNLossType, lossType, setLossType, type_)
FIELD(MPSCNNReductionType, reductionType, setReductionType, reduction_)
FIELD(BOOL, reduceAcrossBatch, setReduceAcrossBatch, across_batch_)
FIELD(float, weight, setWeight, weight_)
FIELD(float, labelSmoothing, setLabelSmoothing, smoothing_)
FIELD(NSUInteger, numberOfClasses, setNumberOfClasses, classes_)
FIELD(float, epsilon, setEpsilon, epsilon_)
FIELD(float, delta, setDelta, delta_)
@end

// ---------------------------------------------------------------- labels

namespace {

struct LabelsPayload {
  Strong<MPSImage*> labels, weights, loss;
};

MPSImage* image_from(MPSCNNLossDataDescriptor* descriptor, id<MTLDevice> device) {
  const MTLSize size = descriptor->size_;
  MPSImage* image = [[[MPSImage alloc]
       initWithDevice:device
      imageDescriptor:[MPSImageDescriptor
                          imageDescriptorWithChannelFormat:MPSImageFeatureChannelFormatFloat32
                                                     width:size.width
                                                    height:size.height
                                           featureChannels:size.depth]] autorelease];
  // Into a dense copy first: strides of channel planes are the descriptor's own.
  std::vector<float> dense(size.width * size.height * size.depth);
  const auto* bytes = static_cast<const uint8_t*>([descriptor->data_ bytes]);
  const bool chunky = descriptor->layout_ == MPSDataLayoutHeightxWidthxFeatureChannels;
  for (NSUInteger y = 0; y < size.height; ++y) {
    for (NSUInteger x = 0; x < size.width; ++x) {
      for (NSUInteger k = 0; k < size.depth; ++k) {
        const NSUInteger at =
            chunky ? y * descriptor->bytes_per_row_ + (x * size.depth + k) * sizeof(float)
                   : k * descriptor->bytes_per_image_ + y * descriptor->bytes_per_row_ +
                         x * sizeof(float);
        std::memcpy(&dense[(y * size.width + x) * size.depth + k], bytes + at, sizeof(float));
      }
    }
  }
  [image writeBytes:dense.data() dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels imageIndex:0];
  return image;
}

}  // namespace

@implementation MPSCNNLossLabels
- (LabelsPayload&)payload {
  return *std::static_pointer_cast<LabelsPayload>(body_->payload);
}
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (void)setUp:(MTLSize)size
       labels:(MPSImage*)labels
      weights:(MPSImage*)weights
        where:(const Where&)where {
  const ImageBody& l = body_of(labels, where);
  REQUIRE(l.device.get() == body_->device.get(), different_devices, where, "labels");
  if (weights != nil) {
    const ImageBody& w = body_of(weights, where);
    REQUIRE(w.shape.width == l.shape.width && w.shape.height == l.shape.height &&
                w.shape.channels == l.shape.channels,
            labels_size, where, "labels and weights differ");
  }
  auto payload = std::make_shared<LabelsPayload>();
  payload->labels = labels;
  payload->weights = weights;
  payload->loss = adopt([[MPSImage alloc]
       initWithDevice:body_->device.get()
      imageDescriptor:[MPSImageDescriptor
                          imageDescriptorWithChannelFormat:MPSImageFeatureChannelFormatFloat32
                                                     width:size.width
                                                    height:size.height
                                           featureChannels:size.depth]]);
  body_->payload = payload;
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
              labelsDescriptor:(MPSCNNLossDataDescriptor*)labelsDescriptor {
  return [self initWithDevice:device
                lossImageSize:MTLSizeMake(1, 1, 1)
             labelsDescriptor:labelsDescriptor
            weightsDescriptor:nil];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                 lossImageSize:(MTLSize)lossImageSize
              labelsDescriptor:(MPSCNNLossDataDescriptor*)labelsDescriptor
             weightsDescriptor:(MPSCNNLossDataDescriptor*)weightsDescriptor {
  (void)index_of(device, HERE);
  REQUIRE(labelsDescriptor != nil, nil_argument, HERE, "labelsDescriptor");
  self = [self emulatedInitWithDevice:device];
  [self setUp:lossImageSize
       labels:image_from(labelsDescriptor, device)
      weights:weightsDescriptor == nil ? nil : image_from(weightsDescriptor, device)
        where:HERE];
  return self;
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                 lossImageSize:(MTLSize)lossImageSize
                   labelsImage:(MPSImage*)labelsImage
                  weightsImage:(MPSImage*)weightsImage {
  (void)index_of(device, HERE);
  REQUIRE(labelsImage != nil, nil_argument, HERE, "labelsImage");
  self = [self emulatedInitWithDevice:device];
  [self setUp:lossImageSize labels:labelsImage weights:weightsImage where:HERE];
  return self;
}
- (MPSImage*)lossImage {
  return [self payload].loss.get();
}
- (MPSImage*)labelsImage {
  return [self payload].labels.get();
}
- (MPSImage*)weightsImage {
  return [self payload].weights.get();
}
- (void)synchronizeOnCommandBuffer:(id<MTLCommandBuffer>)commandBuffer {
  [super synchronizeOnCommandBuffer:commandBuffer];
  [[self lossImage] synchronizeOnCommandBuffer:commandBuffer];
}
- (NSUInteger)resourceSize {
  return [[self lossImage] resourceSize] + [[self labelsImage] resourceSize] +
         [[self weightsImage] resourceSize];
}
@end

// ---------------------------------------------------------------- combined kernels

namespace emulated_metal {

// Checks the labels of a batch and records one command that writes gradients and losses.
void encode_with_labels(const KernelBody& kernel, const LossFunction& f, const Call& call,
                        NSArray<MPSCNNLossLabels*>* labels, const Elements& elements,
                        const Where& where) {
  REQUIRE(labels != nil, labels_missing, where);
  check_geometry(kernel, where);
  const Plan plan = plan_encode(
      kernel, call, [](const std::vector<long>& consumed) { return consumed[0]; }, where);
  REQUIRE([labels count] == [call.destinations count], batch_length, where, "%lu labels",
          static_cast<unsigned long>([labels count]));
  const ImageBody& source = body_of([call.sources[0] objectAtIndex:0], where);
  const bool full = f.reduction == MPSCNNReductionTypeNone;
  std::set<MPSState*> distinct;
  Command command;
  std::vector<View> label_views, weight_views, loss_views;
  for (MPSCNNLossLabels* label in labels) {
    REQUIRE([label isKindOfClass:[MPSCNNLossLabels class]], state_wrong_class, where);
    check_state(label, call.command_buffer, true, where);
    REQUIRE(distinct.insert(label).second, labels_repeated, where);
    const ImageBody& l = body_of([label labelsImage], where);
    REQUIRE(l.shape.width == source.shape.width && l.shape.height == source.shape.height &&
                static_cast<long>(l.shape.channels) == plan.consumed[0],
            labels_size, where, "%lu x %lu x %lu", static_cast<unsigned long>(l.shape.width),
            static_cast<unsigned long>(l.shape.height),
            static_cast<unsigned long>(l.shape.channels));
    const ImageBody& loss = body_of([label lossImage], where);
    const ImageDescriptorBody& s = loss.shape;
    REQUIRE(full ? s.width == l.shape.width && s.height == l.shape.height &&
                       s.channels == l.shape.channels
                 : s.width == 1 && s.height == 1 && s.channels == 1,
            loss_image_size, where, "%lu x %lu x %lu", static_cast<unsigned long>(s.width),
            static_cast<unsigned long>(s.height), static_cast<unsigned long>(s.channels));
    REQUIRE([label weightsImage] == nil || f.type != MPSCNNLossTypeCosineDistance, loss_descriptor,
            where, "a cosine distance takes no weights image");
    label_views.push_back(view_of([label labelsImage], 0, where));
    loss_views.push_back(view_of([label lossImage], 0, where));
    command.reads.push_back(label_views.back().storage);
    command.writes.push_back(loss_views.back().storage);
    if ([label weightsImage] != nil) {
      weight_views.push_back(view_of([label weightsImage], 0, where));
      command.reads.push_back(weight_views.back().storage);
    } else {
      weight_views.push_back(View{});
    }
  }
  for (const Job& job : plan.jobs) {
    command.reads.push_back(job.sources[0].storage);
    command.writes.push_back(job.destination.storage);
  }
  const auto from = static_cast<long>(kernel.sources[0].channel_offset);
  const auto to = static_cast<long>(kernel.destination_channel_offset);
  command.run = [plan, f, elements, label_views, weight_views, loss_views, from, to] {
    const long channels = plan.consumed[0];
    const size_t count = plan.jobs.size();
    std::vector<Tensor> losses, weights(count);
    std::vector<const Tensor*> weight_pointers;
    for (size_t n = 0; n < count; ++n) {
      const Tensor y = load(plan.jobs[n].sources[0], from, channels);
      const Tensor t = load(label_views[n], 0, channels);
      if (weight_views[n].storage) weights[n] = load(weight_views[n], 0, channels);
      weight_pointers.push_back(weight_views[n].storage ? &weights[n] : nullptr);
      Tensor loss(y.h, y.w, y.c), gradient(y.h, y.w, y.c);
      elements(y, t, loss, gradient);
      for (long j = 0; j < y.h; ++j) {
        for (long i = 0; i < y.w; ++i) {
          for (long k = 0; k < y.c; ++k) {
            gradient.at(j, i, k) *= f.weight_at(weight_pointers[n], j, i, k);
          }
        }
      }
      store(plan.jobs[n].destination, {0, 0, 0, y.w, y.h, 1}, to, gradient);
      losses.push_back(std::move(loss));
    }
    store_losses(f, losses, weight_pointers, loss_views);
  };
  record(call.command_buffer, where, std::move(command));
  consume(call, where);
}

NSArray<MPSImage*>* create_gradients(MPSCNNKernel* kernel, id<MTLCommandBuffer> command_buffer,
                                     NSArray<MPSImage*>* sources, const Where& where) {
  check_encodable(command_buffer, where);
  REQUIRE(sources != nil, nil_argument, where, "sourceImages");
  REQUIRE([sources count] > 0, batch_empty, where);
  MPSImageDescriptor* descriptor =
      [kernel destinationImageDescriptorForSourceImages:@[ [sources objectAtIndex:0] ]
                                           sourceStates:nil];
  return allocate_images(kernel, command_buffer, descriptor, [sources count], where);
}

}  // namespace emulated_metal

@implementation MPSCNNLoss
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
READ_LOSS(float, weight, weight)
READ_LOSS(float, labelSmoothing, smoothing)
READ_LOSS(float, epsilon, epsilon)
READ_LOSS(float, delta, delta)
// The inherited encodes carry no labels.
- (void)emulatedEncode:(const Call&)call where:(const Where&)where {
  (void)call;
  spring(Trap::labels_missing, where);
}
- (Elements)elements {
  return [f = body_->as<LossParams>().function](const Tensor& y, const Tensor& t, Tensor& loss,
                                                Tensor& gradient) {
    f.evaluate(y, t, &loss, &gradient, nullptr);
  };
}
LABEL_ENCODES(body_->as<LossParams>().function)
@end
