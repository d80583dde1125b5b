// The object detection loss.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "loss_kernels.hpp"

using namespace emulated_metal;

@implementation MPSCNNYOLOLossDescriptor
+ (MPSCNNYOLOLossDescriptor*)cnnLossDescriptorWithXYLossType:(MPSCNNLossType)XYLossType
                                                  WHLossType:(MPSCNNLossType)WHLossType
                                          confidenceLossType:(MPSCNNLossType)confidenceLossType
                                             classesLossType:(MPSCNNLossType)classesLossType
                                               reductionType:(MPSCNNReductionType)reductionType
                                                 anchorBoxes:(NSData*)anchorBoxes
                                         numberOfAnchorBoxes:(NSUInteger)numberOfAnchorBoxes {
  REQUIRE(anchorBoxes != nil, nil_argument, HERE, "anchorBoxes");
  MPSCNNYOLOLossDescriptor* d = [[[MPSCNNYOLOLossDescriptor alloc] emulatedInit] autorelease];
  const auto part = [&](MPSCNNLossType type) {
    return [[MPSCNNLossDescriptor cnnLossDescriptorWithType:type
                                              reductionType:reductionType] retain];
  };
  d->xy_ = part(XYLossType);
  d->wh_ = part(WHLossType);
  d->confidence_ = part(confidenceLossType);
  d->classes_ = part(classesLossType);
  d->reduction_ = reductionType;
  d->anchors_ = [anchorBoxes retain];
  d->anchor_count_ = numberOfAnchorBoxes;
  return d;
}
- (instancetype)emulatedInit {
  self = [super init];
  rescore_ = YES;
  scale_xy_ = scale_wh_ = 10;
  scale_no_object_ = 5;
  scale_object_ = 100;
  scale_class_ = 2;
  minimum_ = 0.7F;
  maximum_ = 0.3F;
  return self;
}
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (void)dealloc {
  [xy_ release];
  [wh_ release];
  [confidence_ release];
  [classes_ release];
  [anchors_ release];
  [super dealloc];
}
- (id)copyWithZone:(NSZone*)zone {
  MPSCNNYOLOLossDescriptor* copy = [[[self class] allocWithZone:zone] emulatedInit];
  copy->xy_ = [xy_ copy];
  copy->wh_ = [wh_ copy];
  copy->confidence_ = [confidence_ copy];
  copy->classes_ = [classes_ copy];
  copy->reduction_ = reduction_;
  copy->across_batch_ = across_batch_;
  copy->rescore_ = rescore_;
  copy->scale_xy_ = scale_xy_;
  copy->scale_wh_ = scale_wh_;
  copy->scale_no_object_ = scale_no_object_;
  copy->scale_object_ = scale_object_;
  copy->scale_class_ = scale_class_;
  copy->minimum_ = minimum_;
  copy->maximum_ = maximum_;
  copy->anchor_count_ = anchor_count_;
  copy->anchors_ = [anchors_ retain];
  return copy;
}
#define OBJECT(type, getter, setter, member)            \
  -(type)getter {                                       \
    return member;                                      \
  }                                                     \
  -(void)setter : (type)value {                         \
    REQUIRE(value != nil, nil_argument, HERE, #getter); \
    type old = member;                                  \
    member = [value retain];                            \
    [old release];                                      \
  }
#define FIELD(type, getter, setter, member) \
  -(type)getter {                           \
    return member;                          \
  }                                         \
  -(void)setter : (type)value {             \
    member = value;                         \
  }
OBJECT(MPSCNNLossDescriptor*, XYLossDescriptor, setXYLossDescriptor, xy_)
OBJECT(MPSCNNLossDescriptor*, WHLossDescriptor, setWHLossDescriptor, wh_)
OBJECT(MPSCNNLossDescriptor*, confidenceLossDescriptor, setConfidenceLossDescriptor, confidence_)
OBJECT(MPSCNNLossDescriptor*, classesLossDescriptor, setClassesLossDescriptor, classes_)
OBJECT(NSData*, anchorBoxes, setAnchorBoxes, anchors_)
FIELD(MPSCNNReductionType, reductionType, setReductionType, reduction_)
FIELD(BOOL, reduceAcrossBatch, setReduceAcrossBatch, across_batch_)
FIELD(BOOL, rescore, setRescore, rescore_)
FIELD(float, scaleXY, setScaleXY, scale_xy_)
FIELD(float, scaleWH, setScaleWH, scale_wh_)
FIELD(float, scaleNoObject, setScaleNoObject, scale_no_object_)
FIELD(float, scaleObject, setScaleObject, scale_object_)
FIELD(float, scaleClass, setScaleClass, scale_class_)
FIELD(float, minIOUForObjectPresence, setMinIOUForObjectPresence, minimum_)
FIELD(float, maxIOUForObjectAbsence, setMaxIOUForObjectAbsence, maximum_)
FIELD(NSUInteger, numberOfAnchorBoxes, setNumberOfAnchorBoxes, anchor_count_)
@end

namespace {

struct YOLOParams : ParamsOf<YOLOParams> {
  LossFunction total;  // reduction of all parts together
  LossFunction xy, wh, confidence, classes;
  bool rescore = true;
  float scale_xy = 0, scale_wh = 0, scale_no_object = 0, scale_object = 0, scale_class = 0;
  float minimum = 0, maximum = 0;
  std::vector<float> anchors;
  Strong<MPSCNNLoss*> kernels[4];
  void fields(Fields& f) override {
    for (LossFunction* part : {&total, &xy, &wh, &confidence, &classes}) part->fields(f);
    f("rescore", rescore);
    f("scale_xy", scale_xy);
    f("scale_wh", scale_wh);
    f("scale_no_object", scale_no_object);
    f("scale_object", scale_object);
    f("scale_class", scale_class);
    f("minimum", minimum);
    f("maximum", maximum);
    f.floats("anchors", anchors);
  }
};

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

float overlap(float x0, float y0, float w0, float h0, float x1, float y1, float w1, float h1) {
  const float w = std::min(x0 + w0 / 2, x1 + w1 / 2) - std::max(x0 - w0 / 2, x1 - w1 / 2);
  const float h = std::min(y0 + h0 / 2, y1 + h1 / 2) - std::max(y0 - h0 / 2, y1 - h1 / 2);
  if (w <= 0 || h <= 0) return 0;
  return w * h / (w0 * h0 + w1 * h1 - w * h);
}

// Losses and slopes of one part's channels, with the part's own weight.
struct Part {
  std::vector<float> losses, slopes;
};
Part part_of(const LossFunction& f, const std::vector<float>& y, const std::vector<float>& t) {
  const auto count = static_cast<long>(y.size());
  Tensor p(1, 1, count), q(1, 1, count), loss(1, 1, count), d(1, 1, count);
  for (long k = 0; k < count; ++k) {
    p.at(0, 0, k) = y[static_cast<size_t>(k)];
    q.at(0, 0, k) = t[static_cast<size_t>(k)];
  }
  f.evaluate(p, q, &loss, &d, nullptr);
  Part result;
  for (long k = 0; k < count; ++k) {
    result.losses.push_back(f.weight * loss.at(0, 0, k));
    result.slopes.push_back(f.weight * d.at(0, 0, k));
  }
  return result;
}

// One grid cell.
void cell(const YOLOParams& p, const Tensor& y, const Tensor& t, long row, long column,
          Tensor& loss, Tensor& gradient) {
  const auto anchors = static_cast<long>(p.anchors.size() / 2);
  const long stride = y.c / anchors;
  const auto label = [&](long a, long k) { return t.at(row, column, a * stride + k); };
  const auto predicted = [&](long a, long k) { return y.at(row, column, a * stride + k); };
  const auto set = [&](long a, long k, float value, float slope) {
    loss.at(row, column, a * stride + k) = value;
    gradient.at(row, column, a * stride + k) = slope;
  };
  long best = 0;
  float best_overlap = -1;
  for (long a = 0; a < anchors; ++a) {
    const float aw = p.anchors[static_cast<size_t>(2 * a)];
    const float ah = p.anchors[static_cast<size_t>(2 * a + 1)];
    const float shared = overlap(0, 0, aw, ah, 0, 0, label(a, 2), label(a, 3));
    if (shared > best_overlap) {
      best_overlap = shared;
      best = a;
    }
  }
  for (long a = 0; a < anchors; ++a) {
    const float aw = p.anchors[static_cast<size_t>(2 * a)];
    const float ah = p.anchors[static_cast<size_t>(2 * a + 1)];
    const bool object = label(a, 4) > 0;
    const float iou = object
                          ? overlap(sigmoid(predicted(a, 0)), sigmoid(predicted(a, 1)),
                                    aw * std::exp(predicted(a, 2)), ah * std::exp(predicted(a, 3)),
                                    label(a, 0), label(a, 1), label(a, 2), label(a, 3))
                          : 0;
    const bool present = object && (a == best || iou > p.minimum);
    const bool absent = !present && iou < p.maximum;
    const auto set_part = [&](long first, float scale, const Part& part,
                              const std::vector<float>& inner) {
      for (size_t k = 0; k < part.losses.size(); ++k) {
        // What does not count is 0, whatever it is.
        set(a, first + static_cast<long>(k), scale == 0 ? 0 : scale * part.losses[k],
            scale == 0 ? 0 : scale * part.slopes[k] * inner[k]);
      }
    };
    const float sx = sigmoid(predicted(a, 0)), sy = sigmoid(predicted(a, 1));
    set_part(0, present ? p.scale_xy : 0, part_of(p.xy, {sx, sy}, {label(a, 0), label(a, 1)}),
             {sx * (1 - sx), sy * (1 - sy)});
    const std::vector<float> sizes = {std::log(label(a, 2) / aw + 1e-5F),
                                      std::log(label(a, 3) / ah + 1e-5F)};
    set_part(2, present ? p.scale_wh : 0, part_of(p.wh, {predicted(a, 2), predicted(a, 3)}, sizes),
             {1, 1});
    const float target = present ? label(a, 4) * (p.rescore ? iou : 1) : 0;
    set_part(4,
             present  ? p.scale_object
             : absent ? p.scale_no_object
                      : 0,
             part_of(p.confidence, {predicted(a, 4)}, {target}), {1});
    std::vector<float> scores, kinds;
    for (long k = 5; k < stride; ++k) {
      scores.push_back(predicted(a, k));
      kinds.push_back(label(a, k));
    }
    set_part(5, present ? p.scale_class : 0, part_of(p.classes, scores, kinds),
             std::vector<float>(scores.size(), 1));
  }
}

}  // namespace

@implementation MPSCNNYOLOLoss
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<YOLOParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                lossDescriptor:(MPSCNNYOLOLossDescriptor*)lossDescriptor {
  self = [super initWithDevice:device];
  REQUIRE(lossDescriptor != nil, nil_argument, HERE, "lossDescriptor");
  MPSCNNYOLOLossDescriptor* d = lossDescriptor;
  auto params = std::make_shared<YOLOParams>();
  params->xy = loss_function(d->xy_, HERE);
  params->wh = loss_function(d->wh_, HERE);
  params->confidence = loss_function(d->confidence_, HERE);
  params->classes = loss_function(d->classes_, HERE);
  params->total.type = MPSCNNLossTypeMeanSquaredError;  // any type whose mean counts all elements
  params->total.reduction = d->reduction_;
  params->total.across_batch = d->across_batch_;
  params->rescore = d->rescore_;
  params->scale_xy = d->scale_xy_;
  params->scale_wh = d->scale_wh_;
  params->scale_no_object = d->scale_no_object_;
  params->scale_object = d->scale_object_;
  params->scale_class = d->scale_class_;
  params->minimum = d->minimum_;
  params->maximum = d->maximum_;
  REQUIRE(d->anchor_count_ > 0 && [d->anchors_ length] == d->anchor_count_ * 2 * sizeof(float),
          loss_descriptor, HERE, "anchor boxes");
  params->anchors.resize(d->anchor_count_ * 2);
  std::memcpy(params->anchors.data(), [d->anchors_ bytes], [d->anchors_ length]);
  MPSCNNLossDescriptor* parts[] = {d->xy_, d->wh_, d->confidence_, d->classes_};
  for (size_t i = 0; i < 4; ++i) {
    params->kernels[i] = adopt([[MPSCNNLoss alloc] initWithDevice:device lossDescriptor:parts[i]]);
  }
  body_->params = params;
  return self;
}
#define READ(type, getter, member)         \
  -(type)getter {                          \
    return body_->as<YOLOParams>().member; \
  }
READ(MPSCNNLoss*, lossXY, kernels[0].get())
READ(MPSCNNLoss*, lossWH, kernels[1].get())
READ(MPSCNNLoss*, lossConfidence, kernels[2].get())
READ(MPSCNNLoss*, lossClasses, kernels[3].get())
READ(float, scaleXY, scale_xy)
READ(float, scaleWH, scale_wh)
READ(float, scaleNoObject, scale_no_object)
READ(float, scaleObject, scale_object)
READ(float, scaleClass, scale_class)
READ(float, minIOUForObjectPresence, minimum)
READ(float, maxIOUForObjectAbsence, maximum)
READ(MPSCNNReductionType, reductionType, total.reduction)
READ(BOOL, reduceAcrossBatch, total.across_batch)
READ(NSUInteger, numberOfAnchorBoxes, anchors.size() / 2)
- (NSData*)anchorBoxes {
  const std::vector<float>& anchors = body_->as<YOLOParams>().anchors;
  return [NSData dataWithBytes:anchors.data() length:anchors.size() * sizeof(float)];
}
- (void)emulatedEncode:(const Call&)call where:(const Where&)where {
  (void)call;
  spring(Trap::labels_missing, where);
}
- (Elements)elements {
  return [p = body_->as<YOLOParams>()](const Tensor& y, const Tensor& t, Tensor& loss,
                                       Tensor& gradient) {
    for (long j = 0; j < y.h; ++j) {
      for (long i = 0; i < y.w; ++i) cell(p, y, t, j, i, loss, gradient);
    }
  };
}
// The function of the shared encodes, after the channels were checked.
- (const LossFunction&)total:(NSArray<MPSImage*>*)sources where:(const Where&)where {
  const auto& p = body_->as<YOLOParams>();
  const Operand& read = body_->sources[0];
  for (MPSImage* source in sources) {
    const NSUInteger anchors = p.anchors.size() / 2;
    const NSUInteger channels =
        std::min(read.channel_max, [source featureChannels] - read.channel_offset);
    REQUIRE(channels % anchors == 0 && channels / anchors > 5, source_channels, where,
            "%lu channels for %lu anchors", static_cast<unsigned long>(channels),
            static_cast<unsigned long>(anchors));
  }
  return p.total;
}
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
                       labels:(MPSCNNLossLabels*)labels
             destinationImage:(MPSImage*)destinationImage {
  encode_with_labels(
      *body_, [self total : single(sourceImage) where : HERE],
      { commandBuffer, {single(sourceImage)}, single(destinationImage) }, single(labels),
      [self elements], HERE);
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
                            labels:(MPSCNNLossLabels*)labels {
  NSArray* gradients = create_gradients(self, commandBuffer, single(sourceImage), HERE);
  encode_with_labels(
      *body_, [self total : single(sourceImage) where : HERE],
      { commandBuffer, {single(sourceImage)}, gradients }, single(labels), [self elements], HERE);
  return [gradients objectAtIndex:0];
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImage
                            labels:(MPSCNNLossLabelsBatch*)labels
                 destinationImages:(MPSImageBatch*)destinationImage {
  encode_with_labels(
      *body_, [self total : sourceImage where : HERE],
      { commandBuffer, {sourceImage}, destinationImage, nil, nil, true }, labels, [self elements],
      HERE);
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImage
                                      labels:(MPSCNNLossLabelsBatch*)labels {
  NSArray* gradients = create_gradients(self, commandBuffer, sourceImage, HERE);
  encode_with_labels(
      *body_, [self total : sourceImage where : HERE],
      { commandBuffer, {sourceImage}, gradients, nil, nil, true }, labels, [self elements], HERE);
  return gradients;
}
@end
