// Image, state and filter nodes, and the factories of gradient nodes.
#include <set>

#include "graph.hpp"

using namespace emulated_metal;

namespace emulated_metal {

ImageRef ref_of(MPSNNImageNode* image, const Where& where) {
  REQUIRE(image != nil, nil_argument, where, "an image node");
  REQUIRE([image isKindOfClass:[MPSNNImageNode class]], foreign_object, where, "not an image node");
  return *image->ref_;
}

std::vector<size_t> Family::slots(const FilterBody& forward) const {
  (void)forward;
  return {0};
}

std::vector<ImageRef> Family::gradient_images(const std::shared_ptr<FilterBody>& forward,
                                              size_t slot) const {
  return {forward->images[slot]};
}

std::vector<MPSKernel*> Family::kernels(const FilterBody& filter, id<MTLDevice> device) const {
  return {filter.gradient ? backward(device, filter.slot) : forward(device)};
}

void keep(NSArray<MPSImage*>* images, NSUInteger count) {
  std::set<MPSImage*> distinct;
  for (MPSImage* image in images) {
    if (![image emulatedBody]->temporary || !distinct.insert(image).second) continue;
    [static_cast<MPSTemporaryImage*>(image) setReadCount:count];
  }
}

void keep(NSArray<MPSState*>* states, NSUInteger count) {
  std::set<MPSState*> distinct;
  for (MPSState* state in states) {
    if ([state isTemporary] && distinct.insert(state).second) [state setReadCount:count];
  }
}

NSArray<MPSImage*>* results_for(MPSCNNKernel* kernel, Step& step) {
  const Where where { kernel, @selector(destinationImageDescriptorForSourceImages:sourceStates:) };
  MPSImageDescriptor* descriptor =
      [kernel destinationImageDescriptorForSourceImages:@[ [step.images[0] objectAtIndex:0] ]
                                           sourceStates:nil];
  step.result = allocate_images(kernel, step.buffer, descriptor, [step.images[0] count], where);
  return step.result;
}

void make_states(MPSCNNKernel* kernel, Step& step) {
  step.state = step.temporary_state
                   ? [kernel temporaryResultStateBatchForCommandBuffer:step.buffer
                                                           sourceImage:step.images[0]
                                                          sourceStates:nil
                                                      destinationImage:step.result]
                   : [kernel resultStateBatchForSourceImage:step.images[0]
                                               sourceStates:nil
                                           destinationImage:step.result];
}

void Family::encode_forward(Step& step) const {
  auto* kernel = step.kernel<MPSCNNKernel>();
  results_for(kernel, step);
  prepare(kernel, [step.images[0] objectAtIndex:0], [step.result objectAtIndex:0]);
  if (!step.writes_state) {
    [kernel encodeBatchToCommandBuffer:step.buffer
                          sourceImages:step.images[0]
                     destinationImages:step.result];
    return;
  }
  make_states(kernel, step);
  [kernel encodeBatchToCommandBuffer:step.buffer
                        sourceImages:step.images[0]
                   destinationStates:step.state
                   destinationImages:step.result];
  keep(step.state, step.state_reads);
}

void Family::encode_gradient(Step& step) const {
  step.result = [step.kernel<MPSCNNGradientKernel>() encodeBatchToCommandBuffer:step.buffer
                                                                sourceGradients:step.images[0]
                                                                   sourceImages:step.images[1]
                                                                 gradientStates:step.states[0]];
}

}  // namespace emulated_metal

// ---------------------------------------------------------------- images and states

#define FACT(type, getter, setter, member) \
  -(type)getter {                          \
    return ref_->facts->member;            \
  }                                        \
  -(void)setter : (type)value {            \
    ref_->facts->member = value;           \
  }
#define HANDLE                              \
  -(id<MPSHandle>)handle {                  \
    return ref_->facts->handle.get();       \
  }                                         \
  -(void)setHandle : (id<MPSHandle>)value { \
    ref_->facts->handle = value;            \
  }                                         \
  -(void)dealloc {                          \
    delete ref_;                            \
    [super dealloc];                        \
  }

@interface MPSNNImageNode (Emulated)
- (instancetype)emulatedInitWithImage:(const ImageRef&)ref;
@end

@implementation MPSNNImageNode
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)emulatedInitWithImage:(const ImageRef&)ref {
  self = [super init];
  ref_ = new ImageRef(ref);
  return self;
}
- (instancetype)initWithHandle:(NSObject<MPSHandle>*)handle {
  self = [self emulatedInitWithImage:{std::make_shared<ImageFacts>(), nullptr}];
  ref_->facts->handle = handle;
  return self;
}
HANDLE
FACT(MPSImageFeatureChannelFormat, format, setFormat, format)
FACT(BOOL, exportFromGraph, setExportFromGraph, exported)
FACT(BOOL, synchronizeResource, setSynchronizeResource, synchronized)
FACT(BOOL, stopGradient, setStopGradient, stops_gradient)
- (id<MPSImageAllocator>)imageAllocator {
  return ref_->facts->allocator.get();
}
- (void)setImageAllocator:(id<MPSImageAllocator>)allocator {
  REQUIRE(allocator != nil, nil_argument, HERE, "imageAllocator");
  ref_->facts->allocator = allocator;
}
@end

@implementation MPSNNStateNode
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)emulatedInitWithState:(const StateRef&)ref {
  self = [super init];
  ref_ = new StateRef(ref);
  return self;
}
HANDLE
FACT(BOOL, exportFromGraph, setExportFromGraph, exported)
FACT(BOOL, synchronizeResource, setSynchronizeResource, synchronized)
@end

@implementation MPSNNGradientStateNode
@end
@implementation MPSCNNConvolutionGradientStateNode
@end
@implementation MPSCNNConvolutionTransposeGradientStateNode
@end
@implementation MPSNNBinaryGradientStateNode
@end
@implementation MPSNNMultiaryGradientStateNode
@end
@implementation MPSNNArithmeticGradientStateNode
@end
@implementation MPSNNLabelsNode
@end

// ---------------------------------------------------------------- filters

@implementation MPSNNFilterNode
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)emulatedInitWithFilter:(std::shared_ptr<FilterBody>)body {
  self = [super init];
  node_ = new FilterNode;
  node_->body = body;
  body->name = [NSStringFromClass([self class]) UTF8String];
  node_->image = adopt([[MPSNNImageNode alloc] emulatedInitWithImage:{body->result, body}]);
  const Class state_node = body->gradient ? Nil : body->family->state_node();
  if (state_node != Nil) {
    body->state = std::make_shared<StateFacts>();
    node_->state = adopt(static_cast<MPSNNStateNode*>(
        [[state_node alloc] emulatedInitWithState:{body->state, body}]));
  }
  return self;
}
- (instancetype)emulatedInitWithFamily:(std::shared_ptr<Family>)family
                               sources:(NSArray<MPSNNImageNode*>*)sources
                                 where:(const Where&)where {
  REQUIRE(sources != nil, nil_argument, where, "source image nodes");
  auto body = std::make_shared<FilterBody>();
  body->family = family;
  body->padding = family->padding();
  for (MPSNNImageNode* source in sources) body->images.push_back(ref_of(source, where));
  return [self emulatedInitWithFilter:body];
}
- (void)emulatedAddLabels {
  const StateRef ref{std::make_shared<StateFacts>(), nullptr};
  node_->body->states.push_back(ref);
  node_->labels =
      adopt(static_cast<MPSNNLabelsNode*>([[MPSNNLabelsNode alloc] emulatedInitWithState:ref]));
}
- (void)dealloc {
  delete node_;
  [super dealloc];
}
- (MPSNNImageNode*)resultImage {
  return node_->image.get();
}
- (MPSNNStateNode*)resultState {
  return node_->state.get();
}
- (NSArray<MPSNNStateNode*>*)resultStates {
  return single(node_->state.get());
}
- (id<MPSNNPadding>)paddingPolicy {
  return node_->body->padding.get();
}
- (void)setPaddingPolicy:(id<MPSNNPadding>)policy {
  REQUIRE(policy != nil, nil_argument, HERE, "paddingPolicy");
  node_->body->padding = policy;
}
- (NSString*)label {
  return node_->body->label.get();
}
- (void)setLabel:(NSString*)label {
  node_->body->label = adopt<NSString*>([label copy]);
}

// ---- gradients: all of them, made anew at every call

- (NSArray*)emulatedGradientsOf:(NSArray<MPSNNImageNode*>*)gradients where:(const Where&)where {
  REQUIRE(gradients != nil, nil_argument, where, "gradient images");
  const std::shared_ptr<FilterBody>& forward = node_->body;
  const Class node = forward->gradient ? Nil : forward->family->gradient_node();
  REQUIRE(node != Nil, node_gradient_missing, where);
  REQUIRE([gradients count] == 1, node_gradient_sources, where, "%lu images",
          static_cast<unsigned long>([gradients count]));
  const ImageRef incoming = ref_of([gradients objectAtIndex:0], where);
  NSMutableArray* nodes = [NSMutableArray array];
  for (const size_t slot : forward->family->slots(*forward)) {
    auto body = std::make_shared<FilterBody>();
    body->family = forward->family->clone();
    body->gradient = true;
    body->slot = slot;
    body->forward = forward;
    body->style = forward->style;
    body->images = {incoming};
    for (ImageRef& image : body->family->gradient_images(forward, slot)) {
      body->images.push_back(std::move(image));
    }
    if (forward->state) body->states = {{forward->state, forward}};
    body->padding = body->family->padding();
    const id<MPSNNPadding> policy = forward->padding.get();
    if ([policy respondsToSelector:@selector(inverse)]) {
      const id<MPSNNPadding> inverse = [policy inverse];
      if (inverse != nil) body->padding = inverse;
    }
    [nodes addObject:[[[node alloc] emulatedInitWithFilter:body] autorelease]];
  }
  return nodes;
}
- (MPSNNGradientFilterNode*)emulatedGradientOf:(NSArray<MPSNNImageNode*>*)gradients
                                         where:(const Where&)where {
  REQUIRE(node_->body->gradient || node_->body->family->has_singular(), node_gradient_several,
          where);
  return [[self emulatedGradientsOf:gradients where:where] objectAtIndex:0];
}
- (MPSNNGradientFilterNode*)gradientFilterWithSource:(MPSNNImageNode*)gradientImage {
  return [self emulatedGradientOf:single(gradientImage) where:HERE];
}
- (MPSNNGradientFilterNode*)gradientFilterWithSources:(NSArray<MPSNNImageNode*>*)gradientImages {
  return [self emulatedGradientOf:gradientImages where:HERE];
}
- (NSArray<MPSNNGradientFilterNode*>*)gradientFiltersWithSources:
    (NSArray<MPSNNImageNode*>*)gradientImages {
  return [self emulatedGradientsOf:gradientImages where:HERE];
}
- (NSArray<MPSNNGradientFilterNode*>*)gradientFiltersWithSource:(MPSNNImageNode*)gradientImage {
  return [self emulatedGradientsOf:single(gradientImage) where:HERE];
}
@end

@implementation MPSNNGradientFilterNode
@end
