// Optimizers: one element rule each, over vectors, matrices and the states of kernels.
#include <cmath>

#include "array.hpp"
#include "convolution.hpp"
#include "normalization.hpp"

using namespace emulated_metal;

namespace {

struct OptimizerParams : ParamsOf<OptimizerParams> {
  float rate = 0.001F, rescale = 1, clip_max = 0, clip_min = 0, scale = 0;
  bool clips = false;
  MPSNNRegularizationType type = MPSNNRegularizationTypeNone;
  float momentum = 0, epsilon = 1e-8F;
  bool nesterov = false;
  double decay = 0.9, beta1 = 0.9, beta2 = 0.999;
  NSUInteger time_step = 0;
  void fields(Fields& f) override {
    f("rate", rate);
    f("rescale", rescale);
    f("clip_max", clip_max);
    f("clip_min", clip_min);
    f("scale", scale);
    f("clips", clips);
    f("type", type);
    f("momentum", momentum);
    f("epsilon", epsilon);
    f("nesterov", nesterov);
    f("decay", decay);
    f("beta1", beta1);
    f("beta2", beta2);
    f("time_step", time_step);
  }
};

// A view of floats with strides; what a rule is applied to.
struct Elements {
  StoragePtr storage;
  NSUInteger count = 1, rows = 1, columns = 0, row_bytes = 0, array_bytes = 0, offset = 0;
  float& at(NSUInteger u, NSUInteger r, NSUInteger c) const {
    return *reinterpret_cast<float*>(storage->gpu.data() + offset + u * array_bytes +
                                     r * row_bytes + c * sizeof(float));
  }
  NSUInteger end() const {
    return offset + (count - 1) * array_bytes + (rows - 1) * row_bytes + columns * sizeof(float);
  }
  bool overlaps(const Elements& other) const {
    if (storage != other.storage || offset >= other.end() || other.offset >= end()) return false;
    // Columns of one matrix, or vectors of one sequence: equal strides keep them apart.
    const auto apart = [&](NSUInteger stride, NSUInteger size, NSUInteger other_size) {
      const NSUInteger shift = (other.offset % stride + stride - offset % stride) % stride;
      return shift >= size && shift + other_size <= stride;
    };
    const auto row = [](const Elements& e) { return e.columns * sizeof(float); };
    const auto array = [&](const Elements& e) { return (e.rows - 1) * e.row_bytes + row(e); };
    const bool rows_apart = count == 1 && other.count == 1 && row_bytes == other.row_bytes &&
                            apart(row_bytes, row(*this), row(other));
    const bool arrays_apart =
        array_bytes == other.array_bytes && apart(array_bytes, array(*this), array(other));
    return !rows_apart && !arrays_apart;
  }
};

Elements elements_of(id array, const Where& where) {
  const ArrayBody* body = array_of(array, where);
  REQUIRE(body != nullptr, nil_argument, where, "vector or matrix");
  REQUIRE(body->type == MPSDataTypeFloat32, optimizer_data_type, where, "0x%x",
          static_cast<unsigned>(body->type));
  return {storage_of(body->buffer.get(), where),
          body->count,
          body->rows,
          body->columns,
          body->row_bytes,
          body->array_bytes,
          body->offset};
}

Elements elements_of(id<MTLBuffer> buffer, NSUInteger offset, NSUInteger count,
                     const Where& where) {
  REQUIRE(buffer != nil, optimizer_lengths, where, "a buffer is missing");
  const StoragePtr storage = storage_of(buffer, where);
  REQUIRE(offset + count * sizeof(float) <= storage->gpu.size(), optimizer_lengths, where,
          "%lu values in %lu bytes", static_cast<unsigned long>(count),
          static_cast<unsigned long>(storage->gpu.size()));
  return {storage, 1, 1, count, count * sizeof(float), count * sizeof(float), offset};
}

// New value of one element; `history` points to its momentum and the like, or to nothing.
using Rule = std::function<float(float gradient, float value, float* const* history)>;

float preprocessed(const OptimizerParams& p, float gradient, float value) {
  if (p.clips) gradient = std::fmin(std::fmax(gradient, p.clip_min), p.clip_max);
  gradient *= p.rescale;
  if (p.type == MPSNNRegularizationTypeL1) gradient += p.scale;
  if (p.type == MPSNNRegularizationTypeL2) gradient += p.scale * value;
  return gradient;
}

void record_update(id<MTLCommandBuffer> command_buffer, const Elements& gradient,
                   const Elements& values, const std::vector<Elements>& history,
                   const Elements& result, const Rule& rule, const Where& where) {
  const auto same = [&](const Elements& other) {
    return other.count == gradient.count && other.rows == gradient.rows &&
           other.columns == gradient.columns;
  };
  REQUIRE(same(values) && same(result), optimizer_lengths, where, "%lu, %lu and %lu columns",
          static_cast<unsigned long>(gradient.columns), static_cast<unsigned long>(values.columns),
          static_cast<unsigned long>(result.columns));
  for (size_t i = 0; i < history.size(); ++i) {
    REQUIRE(same(history[i]), optimizer_lengths, where, "history of %lu columns, expected %lu",
            static_cast<unsigned long>(history[i].columns),
            static_cast<unsigned long>(gradient.columns));
    bool shared =
        history[i].overlaps(gradient) || history[i].overlaps(values) || history[i].overlaps(result);
    for (size_t j = 0; j < i; ++j) shared = shared || history[i].overlaps(history[j]);
    REQUIRE(!shared, optimizer_aliasing, where);
  }
  Command command;
  command.reads = {gradient.storage, values.storage};
  command.writes = {result.storage};
  for (const Elements& h : history) command.writes.push_back(h.storage);
  command.run = [gradient, values, history, result, rule] {
    std::vector<float*> pointers(history.size() + 1, nullptr);
    for (NSUInteger u = 0; u < gradient.count; ++u) {
      for (NSUInteger r = 0; r < gradient.rows; ++r) {
        for (NSUInteger c = 0; c < gradient.columns; ++c) {
          for (size_t h = 0; h < history.size(); ++h) pointers[h] = &history[h].at(u, r, c);
          result.at(u, r, c) = rule(gradient.at(u, r, c), values.at(u, r, c), pointers.data());
        }
      }
    }
  };
  record(command_buffer, where, std::move(command));
}

}  // namespace

@implementation MPSNNOptimizerDescriptor
- (instancetype)init {
  self = [super init];
  rate_ = 0.001F;
  rescale_ = 1;
  return self;
}
- (instancetype)initWithLearningRate:(float)learningRate
                     gradientRescale:(float)gradientRescale
                  regularizationType:(MPSNNRegularizationType)regularizationType
                 regularizationScale:(float)regularizationScale {
  return [self initWithLearningRate:learningRate
                    gradientRescale:gradientRescale
              applyGradientClipping:NO
                    gradientClipMax:0
                    gradientClipMin:0
                 regularizationType:regularizationType
                regularizationScale:regularizationScale];
}
- (instancetype)initWithLearningRate:(float)learningRate
                     gradientRescale:(float)gradientRescale
               applyGradientClipping:(BOOL)applyGradientClipping
                     gradientClipMax:(float)gradientClipMax
                     gradientClipMin:(float)gradientClipMin
                  regularizationType:(MPSNNRegularizationType)regularizationType
                 regularizationScale:(float)regularizationScale {
  self = [super init];
  rate_ = learningRate;
  rescale_ = gradientRescale;
  clips_ = applyGradientClipping;
  clip_max_ = gradientClipMax;
  clip_min_ = gradientClipMin;
  type_ = regularizationType;
  scale_ = regularizationScale;
  return self;
}
+ (instancetype)optimizerDescriptorWithLearningRate:(float)learningRate
                                    gradientRescale:(float)gradientRescale
                                 regularizationType:(MPSNNRegularizationType)regularizationType
                                regularizationScale:(float)regularizationScale {
  return [[[self alloc] initWithLearningRate:learningRate
                             gradientRescale:gradientRescale
                          regularizationType:regularizationType
                         regularizationScale:regularizationScale] autorelease];
}
+ (instancetype)optimizerDescriptorWithLearningRate:(float)learningRate
                                    gradientRescale:(float)gradientRescale
                              applyGradientClipping:(BOOL)applyGradientClipping
                                    gradientClipMax:(float)gradientClipMax
                                    gradientClipMin:(float)gradientClipMin
                                 regularizationType:(MPSNNRegularizationType)regularizationType
                                regularizationScale:(float)regularizationScale {
  return [[[self alloc] initWithLearningRate:learningRate
                             gradientRescale:gradientRescale
                       applyGradientClipping:applyGradientClipping
                             gradientClipMax:gradientClipMax
                             gradientClipMin:gradientClipMin
                          regularizationType:regularizationType
                         regularizationScale:regularizationScale] autorelease];
}
#define FIELD(type, getter, setter, member) \
  -(type)getter {                           \
    return member;                          \
  }                                         \
  -(void)setter : (type)value {             \
    member = value;                         \
  }
FIELD(float, learningRate, setLearningRate, rate_)
FIELD(float, gradientRescale, setGradientRescale, rescale_)
FIELD(BOOL, applyGradientClipping, setApplyGradientClipping, clips_)
FIELD(float, gradientClipMax, setGradientClipMax, clip_max_)
FIELD(float, gradientClipMin, setGradientClipMin, clip_min_)
FIELD(float, regularizationScale, setRegularizationScale, scale_)
FIELD(MPSNNRegularizationType, regularizationType, setRegularizationType, type_)
@end

@implementation MPSNNOptimizer
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<OptimizerParams>();
}
- (OptimizerParams&)settings {
  return body_->as<OptimizerParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)emulatedInitWithDevice:(id<MTLDevice>)device
                            descriptor:(MPSNNOptimizerDescriptor*)descriptor
                                 where:(const Where&)where {
  REQUIRE(descriptor != nil, nil_argument, where, "optimizerDescriptor");
  self = [super initWithDevice:device];
  auto p = std::make_shared<OptimizerParams>();
  p->rate = descriptor->rate_;
  p->rescale = descriptor->rescale_;
  p->clips = descriptor->clips_;
  p->clip_max = descriptor->clip_max_;
  p->clip_min = descriptor->clip_min_;
  p->type = descriptor->type_;
  p->scale = descriptor->scale_;
  REQUIRE(p->type <= MPSNNRegularizationTypeL2, optimizer_settings, where, "regularization type");
  REQUIRE(!p->clips || p->clip_min <= p->clip_max, optimizer_settings, where, "clip bounds");
  body_->params = p;
  return self;
}
#define READ(type, getter, member)              \
  -(type)getter {                               \
    return body_->as<OptimizerParams>().member; \
  }
READ(float, learningRate, rate)
READ(float, gradientRescale, rescale)
READ(BOOL, applyGradientClipping, clips)
READ(float, gradientClipMax, clip_max)
READ(float, gradientClipMin, clip_min)
READ(float, regularizationScale, scale)
READ(MPSNNRegularizationType, regularizationType, type)
- (void)setApplyGradientClipping:(BOOL)clips {
  body_->as<OptimizerParams>().clips = clips;
}
- (void)setLearningRate:(float)newLearningRate {
  body_->as<OptimizerParams>().rate = newLearningRate;
}

// ---- what subclasses define

- (Rule)ruleWithHistory:(size_t)count {
  (void)count;
  spring(Trap::abstract_kernel, HERE);
}
- (bool)needsHistory {
  return true;
}
- (void)willEncode {
}

// ---- shared by all encodes

- (int)check:(id<MTLCommandBuffer>)commandBuffer where:(const Where&)where {
  check_encodable(commandBuffer, where);
  const int device = device_of(commandBuffer, where);
  REQUIRE(index_of(body_->device.get(), where) == device, different_devices, where);
  return device;
}
// Vectors or matrices. `history` may hold NSNull for what was nil.
- (void)update:(id<MTLCommandBuffer>)commandBuffer
      gradient:(id)gradient
        values:(id)values
       history:(std::vector<id>)history
        result:(id)result
         where:(const Where&)where {
  [self check:commandBuffer where:where];
  while (!history.empty() && history.back() == nil) history.pop_back();
  REQUIRE(![self needsHistory] || !history.empty(), optimizer_history, where);
  std::vector<Elements> past;
  for (const id h : history) {
    past.push_back(elements_of(h, where));
    check_array(h, commandBuffer, where);
  }
  for (const id array : {gradient, values, result}) {
    REQUIRE(array != nil, nil_argument, where, "vector or matrix");
    check_array(array, commandBuffer, where);
  }
  [self willEncode];
  record_update(commandBuffer, elements_of(gradient, where), elements_of(values, where), past,
                elements_of(result, where), [self ruleWithHistory:past.size()], where);
  decrement_array(gradient, where);
  if (values != gradient) decrement_array(values, where);
}
// One or two parameters of a state: history vectors are lists by parameter.
- (void)update:(id<MTLCommandBuffer>)commandBuffer
     gradients:(const std::vector<Elements>&)gradients
        values:(const std::vector<Elements>&)values
       history:(const std::vector<NSArray<MPSVector*>*>&)given
       results:(const std::vector<Elements>&)results
         where:(const Where&)where {
  std::vector<NSArray<MPSVector*>*> history = given;
  while (!history.empty() && history.back() == nil) history.pop_back();
  REQUIRE(![self needsHistory] || !history.empty(), optimizer_history, where);
  size_t parameters = gradients.size();
  if (!history.empty()) {
    parameters = [history[0] count];
    REQUIRE(parameters == 1 || parameters == 2, optimizer_history, where, "%lu vectors",
            static_cast<unsigned long>(parameters));
    REQUIRE(parameters <= gradients.size(), optimizer_history, where,
            "two vectors, but only one parameter");
    for (NSArray<MPSVector*>* list : history) {
      REQUIRE(list != nil && [list count] == parameters, optimizer_history, where,
              "lists of different length");
    }
  }
  const bool by_parameter = option("state_encode_steps") == 2;
  for (size_t i = 0; i < (by_parameter ? parameters : 1); ++i) [self willEncode];
  const Rule rule = [self ruleWithHistory:history.size()];
  for (size_t i = 0; i < parameters; ++i) {
    std::vector<Elements> past;
    for (NSArray<MPSVector*>* list : history) {
      MPSVector* vector = [list objectAtIndex:i];
      past.push_back(elements_of(vector, where));
      check_array(vector, commandBuffer, where);
    }
    record_update(commandBuffer, gradients[i], values[i], past, results[i], rule, where);
  }
}
- (void)updateConvolution:(id<MTLCommandBuffer>)commandBuffer
                 gradient:(MPSCNNConvolutionGradientState*)gradient
                   source:(MPSCNNConvolutionWeightsAndBiasesState*)source
                  history:(const std::vector<NSArray<MPSVector*>*>&)history
                   result:(MPSCNNConvolutionWeightsAndBiasesState*)result
                    where:(const Where&)where {
  [self check:commandBuffer where:where];
  REQUIRE(gradient != nil && source != nil && result != nil, nil_argument, where, "state");
  REQUIRE([gradient isKindOfClass:[MPSCNNConvolutionGradientState class]], state_wrong_class,
          where);
  for (MPSCNNConvolutionWeightsAndBiasesState* state : {source, result}) {
    REQUIRE([state isKindOfClass:[MPSCNNConvolutionWeightsAndBiasesState class]], state_wrong_class,
            where);
  }
  for (MPSState* state : {static_cast<MPSState*>(gradient), static_cast<MPSState*>(source),
                          static_cast<MPSState*>(result)}) {
    check_state(state, commandBuffer, true, where);
  }
  REQUIRE(std::static_pointer_cast<ConvolutionPayload>(body_of(gradient, where).payload)->started,
          state_not_encoded, where, "no gradient was accumulated");
  const WeightsPayload& from = [source emulatedWeights];
  const WeightsPayload& to = [result emulatedWeights];
  const NSUInteger count = [[gradient gradientForWeights] length] / sizeof(float);
  const NSUInteger outputs = [[gradient gradientForBiases] length] / sizeof(float);
  REQUIRE(from.weights_count == count && to.weights_count == count, optimizer_lengths, where,
          "%lu and %lu weights, expected %lu", static_cast<unsigned long>(from.weights_count),
          static_cast<unsigned long>(to.weights_count), static_cast<unsigned long>(count));
  std::vector<Elements> gradients{elements_of([gradient gradientForWeights], 0, count, where)};
  std::vector<Elements> values{elements_of(from.weights.get(), from.weights_offset, count, where)};
  std::vector<Elements> results{elements_of(to.weights.get(), to.weights_offset, count, where)};
  if (from.biases && to.biases) {
    REQUIRE(from.biases_count == outputs && to.biases_count == outputs, optimizer_lengths, where,
            "biases");
    gradients.push_back(elements_of([gradient gradientForBiases], 0, outputs, where));
    values.push_back(elements_of(from.biases.get(), from.biases_offset, outputs, where));
    results.push_back(elements_of(to.biases.get(), to.biases_offset, outputs, where));
  }
  [self update:commandBuffer
      gradients:gradients
         values:values
        history:history
        results:results
          where:where];
  decrement_read_count(gradient, where);
  decrement_read_count(source, where);
}
- (void)updateNormalization:(id<MTLCommandBuffer>)commandBuffer
                   gradient:(MPSCNNBatchNormalizationState*)gradient
                     source:(MPSCNNBatchNormalizationState*)source
                    history:(const std::vector<NSArray<MPSVector*>*>&)history
                     result:(MPSCNNNormalizationGammaAndBetaState*)result
                      where:(const Where&)where {
  [self check:commandBuffer where:where];
  REQUIRE(gradient != nil && source != nil && result != nil, nil_argument, where, "state");
  for (MPSState* state : {static_cast<MPSState*>(gradient), static_cast<MPSState*>(source)}) {
    REQUIRE([state isKindOfClass:[MPSCNNBatchNormalizationState class]], state_wrong_class, where);
    check_state(state, commandBuffer, true, where);
  }
  REQUIRE([result isKindOfClass:[MPSCNNNormalizationGammaAndBetaState class]], state_wrong_class,
          where);
  check_state(result, commandBuffer, false, where);
  REQUIRE([gradient gradientForGamma] != nil && [gradient gradientForBeta] != nil,
          state_not_encoded, where, "there are no gradients yet");
  REQUIRE([source gamma] != nil, optimizer_lengths, where, "the kernel has no gamma");
  const NSUInteger channels = [[gradient gradientForGamma] length] / sizeof(float);
  const PairPayload& to = pair_of(result, where);
  std::vector<Elements> gradients{elements_of([gradient gradientForGamma], 0, channels, where)};
  std::vector<Elements> values{elements_of([source gamma], 0, channels, where)};
  std::vector<Elements> results{elements_of(to.first.get(), 0, channels, where)};
  if ([source beta] != nil) {
    gradients.push_back(elements_of([gradient gradientForBeta], 0, channels, where));
    values.push_back(elements_of([source beta], 0, channels, where));
    results.push_back(elements_of(to.second.get(), 0, channels, where));
  }
  [self update:commandBuffer
      gradients:gradients
         values:values
        history:history
        results:results
          where:where];
  decrement_read_count(gradient, where);
  if (source != gradient) decrement_read_count(source, where);
}
@end

// The five kinds of encode, with the words and arguments of the optimizer's history.
#define ENCODES(vector_words, vector_list, matrix_words, matrix_list, list_words, list_list)   \
  -(void)encodeToCommandBuffer : (id<MTLCommandBuffer>)commandBuffer inputGradientVector       \
      : (MPSVector*)inputGradientVector inputValuesVector                                      \
      : (MPSVector*)inputValuesVector vector_words resultValuesVector                          \
      : (MPSVector*)resultValuesVector {                                                       \
    [self update:commandBuffer                                                                 \
        gradient:inputGradientVector                                                           \
          values:inputValuesVector                                                             \
         history:vector_list                                                                   \
          result:resultValuesVector                                                            \
           where:HERE];                                                                        \
  }                                                                                            \
  -(void)encodeToCommandBuffer : (id<MTLCommandBuffer>)commandBuffer inputGradientMatrix       \
      : (MPSMatrix*)inputGradientMatrix inputValuesMatrix                                      \
      : (MPSMatrix*)inputValuesMatrix matrix_words resultValuesMatrix                          \
      : (MPSMatrix*)resultValuesMatrix {                                                       \
    [self update:commandBuffer                                                                 \
        gradient:inputGradientMatrix                                                           \
          values:inputValuesMatrix                                                             \
         history:matrix_list                                                                   \
          result:resultValuesMatrix                                                            \
           where:HERE];                                                                        \
  }                                                                                            \
  -(void)encodeToCommandBuffer : (id<MTLCommandBuffer>)commandBuffer convolutionGradientState  \
      : (MPSCNNConvolutionGradientState*)convolutionGradientState convolutionSourceState       \
      : (MPSCNNConvolutionWeightsAndBiasesState*)convolutionSourceState list_words resultState \
      : (MPSCNNConvolutionWeightsAndBiasesState*)resultState {                                 \
    [self updateConvolution:commandBuffer                                                      \
                   gradient:convolutionGradientState                                           \
                     source:convolutionSourceState                                             \
                    history:list_list                                                          \
                     result:resultState                                                        \
                      where:HERE];                                                             \
  }                                                                                            \
  -(void)encodeToCommandBuffer : (id<MTLCommandBuffer>)commandBuffer batchNormalizationState   \
      : (MPSCNNBatchNormalizationState*)batchNormalizationState list_words resultState         \
      : (MPSCNNNormalizationGammaAndBetaState*)resultState {                                   \
    [self updateNormalization:commandBuffer                                                    \
                     gradient:batchNormalizationState                                          \
                       source:batchNormalizationState                                          \
                      history:list_list                                                        \
                       result:resultState                                                      \
                        where:HERE];                                                           \
  }                                                                                            \
  -(void)encodeToCommandBuffer                                                                 \
      : (id<MTLCommandBuffer>)commandBuffer batchNormalizationGradientState                    \
      : (MPSCNNBatchNormalizationState*)                                                       \
            batchNormalizationGradientState batchNormalizationSourceState                      \
      : (MPSCNNBatchNormalizationState*)batchNormalizationSourceState list_words resultState   \
      : (MPSCNNNormalizationGammaAndBetaState*)resultState {                                   \
    [self updateNormalization:commandBuffer                                                    \
                     gradient:batchNormalizationGradientState                                  \
                       source:batchNormalizationSourceState                                    \
                      history:list_list                                                        \
                       result:resultState                                                      \
                        where:HERE];                                                           \
  }
#define LIST(...) {__VA_ARGS__}

@implementation MPSNNOptimizerStochasticGradientDescent
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device learningRate:(float)learningRate {
  MPSNNOptimizerDescriptor* descriptor = [[[MPSNNOptimizerDescriptor alloc] init] autorelease];
  [descriptor setLearningRate:learningRate];
  return [self initWithDevice:device
                momentumScale:0
          useNesterovMomentum:NO
          optimizerDescriptor:descriptor];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                 momentumScale:(float)momentumScale
           useNesterovMomentum:(BOOL)useNesterovMomentum
           optimizerDescriptor:(MPSNNOptimizerDescriptor*)optimizerDescriptor {
  self = [self emulatedInitWithDevice:device descriptor:optimizerDescriptor where:HERE];
  [self settings].momentum = momentumScale;
  [self settings].nesterov = useNesterovMomentum;
  return self;
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                 momentumScale:(float)momentumScale
            useNestrovMomentum:(BOOL)useNestrovMomentum
           optimizerDescriptor:(MPSNNOptimizerDescriptor*)optimizerDescriptor {
  return [self initWithDevice:device
                momentumScale:momentumScale
          useNesterovMomentum:useNestrovMomentum
          optimizerDescriptor:optimizerDescriptor];
}
READ(float, momentumScale, momentum)
READ(BOOL, useNesterovMomentum, nesterov)
READ(BOOL, useNestrovMomentum, nesterov)
- (bool)needsHistory {
  return false;
}
- (Rule)ruleWithHistory:(size_t)count {
  return [p = [self settings], count](float raw, float w, float* const* history) {
    const float g = preprocessed(p, raw, w);
    if (count == 0) return w - p.rate * g;
    float& m = *history[0];
    if (p.nesterov) {
      m = p.momentum * m + g;
      return w - p.rate * (g + p.momentum * m);
    }
    m = p.momentum * m + p.rate * g;
    return w - m;
  };
}
#define SGD_VECTOR     \
  inputMomentumVector: \
  (MPSVector*)inputMomentumVector
#define SGD_MATRIX     \
  inputMomentumMatrix: \
  (MPSMatrix*)inputMomentumMatrix
#define SGD_VECTORS     \
  inputMomentumVectors: \
  (NSArray<MPSVector*>*)inputMomentumVectors
ENCODES(SGD_VECTOR, LIST(inputMomentumVector), SGD_MATRIX, LIST(inputMomentumMatrix), SGD_VECTORS,
        LIST(inputMomentumVectors))
@end

@implementation MPSNNOptimizerRMSProp
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device learningRate:(float)learningRate {
  MPSNNOptimizerDescriptor* descriptor = [[[MPSNNOptimizerDescriptor alloc] init] autorelease];
  [descriptor setLearningRate:learningRate];
  return [self initWithDevice:device decay:0.9 epsilon:1e-8F optimizerDescriptor:descriptor];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                         decay:(double)decay
                       epsilon:(float)epsilon
           optimizerDescriptor:(MPSNNOptimizerDescriptor*)optimizerDescriptor {
  self = [self emulatedInitWithDevice:device descriptor:optimizerDescriptor where:HERE];
  REQUIRE(decay >= 0 && decay <= 1 && epsilon >= 0, optimizer_settings, HERE,
          "decay %g, epsilon %g", decay, static_cast<double>(epsilon));
  [self settings].decay = decay;
  [self settings].epsilon = epsilon;
  return self;
}
READ(double, decay, decay)
READ(float, epsilon, epsilon)
- (Rule)ruleWithHistory:(size_t)count {
  (void)count;
  return [p = [self settings], keep = static_cast<float>([self settings].decay),
          fresh = static_cast<float>(1 - [self settings].decay)](float raw, float w,
                                                                 float* const* history) {
    const float g = preprocessed(p, raw, w);
    float& s = *history[0];
    s = keep * s + fresh * g * g;
    return w - p.rate * g / (std::sqrt(s) + p.epsilon);
  };
}
#define RMS_VECTOR         \
  inputSumOfSquaresVector: \
  (MPSVector*)inputSumOfSquaresVector
#define RMS_MATRIX         \
  inputSumOfSquaresMatrix: \
  (MPSMatrix*)inputSumOfSquaresMatrix
#define RMS_VECTORS         \
  inputSumOfSquaresVectors: \
  (NSArray<MPSVector*>*)inputSumOfSquaresVectors
ENCODES(RMS_VECTOR, LIST(inputSumOfSquaresVector), RMS_MATRIX, LIST(inputSumOfSquaresMatrix),
        RMS_VECTORS, LIST(inputSumOfSquaresVectors))
@end

@implementation MPSNNOptimizerAdam
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device learningRate:(float)learningRate {
  MPSNNOptimizerDescriptor* descriptor = [[[MPSNNOptimizerDescriptor alloc] init] autorelease];
  [descriptor setLearningRate:learningRate];
  return [self initWithDevice:device
                        beta1:0.9
                        beta2:0.999
                      epsilon:1e-8F
                     timeStep:0
          optimizerDescriptor:descriptor];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                         beta1:(double)beta1
                         beta2:(double)beta2
                       epsilon:(float)epsilon
                      timeStep:(NSUInteger)timeStep
           optimizerDescriptor:(MPSNNOptimizerDescriptor*)optimizerDescriptor {
  self = [self emulatedInitWithDevice:device descriptor:optimizerDescriptor where:HERE];
  REQUIRE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1 && epsilon >= 0, optimizer_settings,
          HERE, "beta1 %g, beta2 %g, epsilon %g", beta1, beta2, static_cast<double>(epsilon));
  [self settings].beta1 = beta1;
  [self settings].beta2 = beta2;
  [self settings].epsilon = epsilon;
  [self settings].time_step = timeStep;
  return self;
}
READ(double, beta1, beta1)
READ(double, beta2, beta2)
READ(float, epsilon, epsilon)
READ(NSUInteger, timeStep, time_step)
- (void)setTimeStep:(NSUInteger)step {
  [self settings].time_step = step;
}
- (void)willEncode {
  ++[self settings].time_step;
}
- (Rule)ruleWithHistory:(size_t)count {
  const OptimizerParams& settings = [self settings];
  const auto t = static_cast<double>(settings.time_step);
  const double corrected = static_cast<double>(settings.rate) *
                           std::sqrt(1 - std::pow(settings.beta2, t)) /
                           (1 - std::pow(settings.beta1, t));
  return [p = settings, count, rate = static_cast<float>(corrected),
          b1 = static_cast<float>(settings.beta1), f1 = static_cast<float>(1 - settings.beta1),
          b2 = static_cast<float>(settings.beta2),
          f2 = static_cast<float>(1 - settings.beta2)](float raw, float w, float* const* history) {
    const float g = preprocessed(p, raw, w);
    float& m = *history[0];
    float& v = *history[1];
    m = b1 * m + f1 * g;
    v = b2 * v + f2 * g * g;
    float largest = v;
    if (count == 3) {
      *history[2] = std::fmax(*history[2], v);
      largest = *history[2];
    }
    return w - rate * m / (std::sqrt(largest) + p.epsilon);
  };
}
- (void)update:(id<MTLCommandBuffer>)commandBuffer
      gradient:(id)gradient
        values:(id)values
       history:(std::vector<id>)history
        result:(id)result
         where:(const Where&)where {
  REQUIRE(history[0] != nil && history[1] != nil, optimizer_history, where);
  [super update:commandBuffer
       gradient:gradient
         values:values
        history:history
         result:result
          where:where];
}
- (void)update:(id<MTLCommandBuffer>)commandBuffer
     gradients:(const std::vector<Elements>&)gradients
        values:(const std::vector<Elements>&)values
       history:(const std::vector<NSArray<MPSVector*>*>&)given
       results:(const std::vector<Elements>&)results
         where:(const Where&)where {
  REQUIRE(given[0] != nil && given[1] != nil, optimizer_history, where);
  [super update:commandBuffer
      gradients:gradients
         values:values
        history:given
        results:results
          where:where];
}
#define ADAM_VECTOR    \
  inputMomentumVector: \
  (MPSVector*)inputMomentumVector inputVelocityVector : (MPSVector*)inputVelocityVector
#define ADAM_MATRIX    \
  inputMomentumMatrix: \
  (MPSMatrix*)inputMomentumMatrix inputVelocityMatrix : (MPSMatrix*)inputVelocityMatrix
#define ADAM_VECTORS                                              \
  inputMomentumVectors:                                           \
  (NSArray<MPSVector*>*)inputMomentumVectors inputVelocityVectors \
      : (NSArray<MPSVector*>*)inputVelocityVectors
ENCODES(ADAM_VECTOR, LIST(inputMomentumVector, inputVelocityVector), ADAM_MATRIX,
        LIST(inputMomentumMatrix, inputVelocityMatrix), ADAM_VECTORS,
        LIST(inputMomentumVectors, inputVelocityVectors))
#define MAXIMUM_VECTOR ADAM_VECTOR maximumVelocityVector : (MPSVector*)maximumVelocityVector
#define MAXIMUM_MATRIX ADAM_MATRIX maximumVelocityMatrix : (MPSMatrix*)maximumVelocityMatrix
#define MAXIMUM_VECTORS \
  ADAM_VECTORS maximumVelocityVectors : (NSArray<MPSVector*>*)maximumVelocityVectors
ENCODES(MAXIMUM_VECTOR, LIST(inputMomentumVector, inputVelocityVector, maximumVelocityVector),
        MAXIMUM_MATRIX, LIST(inputMomentumMatrix, inputVelocityMatrix, maximumVelocityMatrix),
        MAXIMUM_VECTORS, LIST(inputMomentumVectors, inputVelocityVectors, maximumVelocityVectors))
@end
