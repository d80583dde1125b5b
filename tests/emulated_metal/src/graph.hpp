// What stands behind nodes: a graph of C++ bodies; the Objective-C nodes are shells around them.
//
// An image or state holds its producer, a filter its sources, so the last node keeps everything
// before it alive. A filter knows its result by its facts alone: there is no cycle.
#pragma once
#include <atomic>
#include <condition_variable>

#include "internal.hpp"

namespace emulated_metal {

struct FilterBody;

struct ImageFacts {
  Strong<id<MPSHandle>> handle;
  MPSImageFeatureChannelFormat format = MPSImageFeatureChannelFormatNone;
  Strong<id<MPSImageAllocator>> allocator = [MPSTemporaryImage defaultAllocator];
  bool exported = false, synchronized = false, stops_gradient = false;
};
struct StateFacts {
  Strong<id<MPSHandle>> handle;
  bool exported = false, synchronized = false;
};

// Without producer: an input of the graph.
struct ImageRef {
  std::shared_ptr<ImageFacts> facts;
  std::shared_ptr<FilterBody> producer;
};
struct StateRef {
  std::shared_ptr<StateFacts> facts;
  std::shared_ptr<FilterBody> producer;
};

// One node inside one encode.
struct Step {
  id<MTLCommandBuffer> buffer;
  std::vector<Strong<MPSKernel*>>& kernels;  // the first produces the result
  std::vector<NSArray<MPSImage*>*> images;
  std::vector<NSArray<MPSState*>*> states;
  bool writes_state = false, temporary_state = true;
  NSUInteger state_reads = 0;  // of the written state, after this node
  NSArray<MPSImage*>* result = nil;
  NSArray<MPSState*>* state = nil;

  template <class Kernel>
  Kernel* kernel(size_t index = 0) const {
    return static_cast<Kernel*>(kernels[index].get());
  }
};

// Which of the update callbacks a data source may have.
enum class Update { none, convolution, batch, instance, group };

// What a kind of node knows: settings, kernels and how they are encoded. Forward and gradient nodes
// of a kind hold one each, the gradient node's as it was when the node was made.
struct Family {
  virtual ~Family() = default;
  virtual std::shared_ptr<Family> clone() const = 0;

  // ---- nodes
  virtual Class state_node() const { return [MPSNNGradientStateNode class]; }  // Nil: none
  virtual Class gradient_node() const { return Nil; }                          // Nil: none
  virtual id<MPSNNPadding> padding() const {
    return [MPSNNDefaultPadding paddingWithMethod:MPSNNPaddingMethodSizeSame];
  }
  // The gradient nodes, in the order in which the plural factory returns them, by source.
  virtual std::vector<size_t> slots(const FilterBody& forward) const;
  virtual bool has_singular() const { return true; }
  // The images that a gradient node reads after the incoming gradient.
  virtual std::vector<ImageRef> gradient_images(const std::shared_ptr<FilterBody>& forward,
                                                size_t slot) const;

  // ---- kernels, autoreleased; nil when a data source does not load
  virtual MPSKernel* forward(id<MTLDevice> device) const = 0;
  virtual MPSKernel* backward(id<MTLDevice> device, size_t slot) const {
    (void)device, (void)slot;
    return nil;
  }
  virtual std::vector<MPSKernel*> kernels(const FilterBody& filter, id<MTLDevice> device) const;
  virtual void encode_forward(Step& step) const;
  virtual void encode_gradient(Step& step) const;
  // A value that a callback changes for this batch.
  virtual void prepare(MPSKernel* kernel, MPSImage* source, MPSImage* destination) const {
    (void)kernel, (void)source, (void)destination;
  }
  virtual NSUInteger reads_of_image(bool gradient, bool writes_state) const {
    (void)gradient, (void)writes_state;
    return 1;
  }
  virtual NSUInteger reads_of_state(bool gradient) const {
    (void)gradient;
    return 1;
  }
  virtual bool always_writes_state() const { return false; }
  virtual bool never_reads_data() const { return false; }

  // ---- training
  virtual Update update() const { return Update::none; }
  virtual id data_source() const { return nil; }
  virtual void set_data_gradient(MPSKernel* kernel, bool wanted) const {
    (void)kernel, (void)wanted;
  }
};
template <class Derived>
struct FamilyOf : Family {
  std::shared_ptr<Family> clone() const override {
    return std::make_shared<Derived>(static_cast<const Derived&>(*this));
  }
};

struct FilterBody {
  std::string name;  // class of the node
  std::shared_ptr<Family> family;
  bool gradient = false;
  size_t slot = 0;                      // of a gradient node: the source it differentiates by
  std::shared_ptr<FilterBody> forward;  // of a gradient node
  std::vector<ImageRef> images;
  std::vector<StateRef> states;  // read
  std::shared_ptr<ImageFacts> result = std::make_shared<ImageFacts>();
  std::shared_ptr<StateFacts> state;  // written
  Strong<id<MPSNNPadding>> padding;
  Strong<NSString*> label;
  MPSNNTrainingStyle style = MPSNNTrainingStyleUpdateDeviceGPU;
};

// Contents of a filter node.
struct FilterNode {
  std::shared_ptr<FilterBody> body;
  Strong<MPSNNImageNode*> image;
  Strong<MPSNNStateNode*> state;
  Strong<MPSNNLabelsNode*> labels;
  template <class T>
  T& as() const {
    return static_cast<T&>(*body->family);
  }
};

ImageRef ref_of(MPSNNImageNode* image, const Where& where);
// Sets the read count of the temporary ones among them, each once; 0 lets go of them.
void keep(NSArray<MPSImage*>* images, NSUInteger count);
void keep(NSArray<MPSState*>* states, NSUInteger count);
NSArray<MPSImage*>* results_for(MPSCNNKernel* kernel, Step& step);
void make_states(MPSCNNKernel* kernel, Step& step);

// ---------------------------------------------------------------- compiled graphs

constexpr size_t kNone = static_cast<size_t>(-1);

}  // namespace emulated_metal

// Gives an image the format of its node before it asks the node's allocator.
@interface EmulatedNodeAllocator : EmulatedObject <MPSImageAllocator> {
 @public
  id<MPSImageAllocator> target_;  // not retained: valid during one encode
  MPSImageFeatureChannelFormat format_;
}
@end

namespace emulated_metal {

// A node of a compiled graph. Numbers are places in the program's lists.
struct Unit {
  std::shared_ptr<FilterBody> filter;  // as it was when the graph was compiled
  std::vector<Strong<MPSKernel*>> kernels;
  std::vector<size_t> images, states;  // read
  size_t result = kNone, state = kNone;
  size_t forward = kNone;  // of a gradient node
  bool writes_state = false;
  bool data_wanted = true;  // someone needs the result
  Strong<EmulatedNodeAllocator*> allocator;
};
struct UnitImage {
  ImageFacts facts;
  MPSImageFeatureChannelFormat format = MPSImageFeatureChannelFormatNone;  // None: the graph's
};
struct UnitState {
  StateFacts facts;
};

// An encode whose command buffer has not completed. It lives as long as the buffer's handler.
struct Ticket {
  id<MTLCommandBuffer> root = nil;  // owns the handler
  bool updates = false;             // on completion
  std::atomic<bool> done = false;
};

struct Program {
  std::vector<Unit> units;  // in the order of the encode
  std::vector<UnitImage> images;
  std::vector<UnitState> states;
  std::vector<size_t> image_inputs, state_inputs, exported_images, extra_results, exported_states;
  size_t result = kNone;
  bool result_needed = true;

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::weak_ptr<Ticket>> tickets;

  std::vector<NSUInteger> image_reads() const;
  std::vector<NSUInteger> state_reads() const;  // callbacks included
};

// Update callbacks that the data source of a trained gradient node implements for its style.
size_t update_count(const Unit& unit, MPSNNTrainingStyle style);
void update_on_gpu(const Program& program, const Unit& unit, id<MTLCommandBuffer> buffer,
                   NSArray<MPSState*>* states);
// Prepares what the CPU will read and returns what to do on completion.
std::function<void()> update_on_cpu(const std::shared_ptr<Program>& program, const Unit& unit,
                                    id<MTLCommandBuffer> buffer, NSArray<MPSState*>* states);
void reload(const Program& program);

}  // namespace emulated_metal

@interface MPSNNFilterNode (Emulated)
- (instancetype)emulatedInitWithFamily:(std::shared_ptr<emulated_metal::Family>)family
                               sources:(NSArray<MPSNNImageNode*>*)sources
                                 where:(const emulated_metal::Where&)where;
- (instancetype)emulatedInitWithFilter:(std::shared_ptr<emulated_metal::FilterBody>)body;
- (void)emulatedAddLabels;
@end

@interface MPSNNStateNode (Emulated)
- (instancetype)emulatedInitWithState:(const emulated_metal::StateRef&)ref;
@end

// Accessors of a node for a member of its family.
#define NODE_READ(family, type, getter, member) \
  -(type)getter {                               \
    return node_->as<family>().member;          \
  }
#define NODE_VALUE(family, type, getter, setter, member) \
  NODE_READ(family, type, getter, member)                \
  -(void)setter : (type)value {                          \
    node_->as<family>().member = value;                  \
  }
#define NODE_STYLE                                                                   \
  -(MPSNNTrainingStyle)trainingStyle {                                               \
    return node_->body->style;                                                       \
  }                                                                                  \
  -(void)setTrainingStyle : (MPSNNTrainingStyle)style {                              \
    REQUIRE(style <= MPSNNTrainingStyleUpdateDeviceGPU, training_style, HERE, "%lu", \
            static_cast<unsigned long>(style));                                      \
    node_->body->style = style;                                                      \
  }
