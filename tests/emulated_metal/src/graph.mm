// MPSNNGraph: finds what is needed for the results, makes kernels of it and encodes them in order.
//
// Where the documentation leaves freedom, this is unkind: inputs and exported images are listed
// from back to front, further results before exported images, results that are not needed are not
// there even if they are exported, and an MPSCommandBuffer is committed after every node (option
// graph_pieces).
#include <algorithm>
#include <set>

#include "graph.hpp"

using namespace emulated_metal;

@implementation EmulatedNodeAllocator
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)encodeWithCoder:(NSCoder*)coder {
  (void)coder;
}
- (instancetype)initWithCoder:(NSCoder*)coder {
  (void)coder;
  return [super init];
}
- (MPSImageDescriptor*)emulatedDescriptor:(MPSImageDescriptor*)descriptor {
  MPSImageDescriptor* copy = [[descriptor copy] autorelease];
  [copy setChannelFormat:format_];
  return copy;
}
- (MPSImage*)imageForCommandBuffer:(id<MTLCommandBuffer>)buffer
                   imageDescriptor:(MPSImageDescriptor*)descriptor
                            kernel:(MPSKernel*)kernel {
  return [target_ imageForCommandBuffer:buffer
                        imageDescriptor:[self emulatedDescriptor:descriptor]
                                 kernel:kernel];
}
- (MPSImageBatch*)imageBatchForCommandBuffer:(id<MTLCommandBuffer>)buffer
                             imageDescriptor:(MPSImageDescriptor*)descriptor
                                      kernel:(MPSKernel*)kernel
                                       count:(NSUInteger)count {
  MPSImageDescriptor* own = [self emulatedDescriptor:descriptor];
  if ([target_ respondsToSelector:@selector(imageBatchForCommandBuffer:
                                                       imageDescriptor:kernel:count:)]) {
    return [target_ imageBatchForCommandBuffer:buffer
                               imageDescriptor:own
                                        kernel:kernel
                                         count:count];
  }
  NSMutableArray* images = [NSMutableArray array];
  for (NSUInteger i = 0; i < count; ++i) {
    MPSImage* image = [target_ imageForCommandBuffer:buffer imageDescriptor:own kernel:kernel];
    REQUIRE(image != nil, allocator_result, HERE);
    [images addObject:image];
  }
  return images;
}
@end

// ---------------------------------------------------------------- compilation

namespace emulated_metal {

struct GraphBody {
  std::shared_ptr<Program> program = std::make_shared<Program>();
  MPSImageFeatureChannelFormat format = MPSImageFeatureChannelFormatFloat16;
  bool temporary_states = false;
  Strong<id<MPSImageAllocator>> allocator = [MPSImage defaultAllocator];
};

namespace {

using FilterPtr = std::shared_ptr<FilterBody>;

struct Compiler {
  explicit Compiler(Program& target) : program(target) {}

  Program& program;
  std::vector<ImageRef> results;
  std::vector<bool> needed;

  std::vector<FilterPtr> order;  // producers before readers
  std::set<const FilterBody*> visited, live;
  std::map<const ImageFacts*, size_t> image_places;
  std::map<const StateFacts*, size_t> state_places;
  std::map<const FilterBody*, size_t> unit_places;
  std::map<const StateFacts*, bool> consumed;

  void visit(const FilterPtr& filter) {
    if (!filter || !visited.insert(filter.get()).second) return;
    for (const ImageRef& image : filter->images) visit(image.producer);
    for (const StateRef& state : filter->states) visit(state.producer);
    order.push_back(filter);
  }

  static bool trains(const FilterBody& filter) {
    return filter.gradient && filter.family->update() != Update::none &&
           filter.style != MPSNNTrainingStyleUpdateDeviceNone;
  }
  static bool writes_labels(const FilterBody& filter) {
    return std::any_of(filter.states.begin(), filter.states.end(),
                       [](const StateRef& state) { return !state.producer; });
  }
  bool is_needed(const std::shared_ptr<ImageFacts>& image) const {
    for (size_t i = 0; i < results.size(); ++i) {
      if (needed[i] && results[i].facts == image) return true;
    }
    return false;
  }

  bool is_unneeded(const std::shared_ptr<ImageFacts>& image) const {
    for (size_t i = 0; i < results.size(); ++i) {
      if (!needed[i] && results[i].facts == image) return true;
    }
    return false;
  }
  bool leaves(const std::shared_ptr<ImageFacts>& image) const {
    return image->exported && !is_unneeded(image);
  }

  // Everything before a filter that has an effect of its own.
  void prune() {
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      const FilterBody& filter = **it;
      if (is_needed(filter.result) || leaves(filter.result) ||
          (filter.state && filter.state->exported) || trains(filter) || writes_labels(filter)) {
        live.insert(&filter);
      }
      if (live.count(&filter) == 0) continue;
      for (const ImageRef& image : filter.images) live.insert(image.producer.get());
      for (const StateRef& state : filter.states) {
        live.insert(state.producer.get());
        consumed[state.facts.get()] = true;
      }
    }
  }

  size_t place(const std::shared_ptr<ImageFacts>& facts) {
    const auto [found, fresh] = image_places.emplace(facts.get(), program.images.size());
    if (fresh) program.images.push_back({*facts, facts->format});
    return found->second;
  }
  size_t place(const std::shared_ptr<StateFacts>& facts) {
    const auto [found, fresh] = state_places.emplace(facts.get(), program.states.size());
    if (fresh) program.states.push_back({*facts});
    return found->second;
  }

  // Inputs and exports in the order of discovery.
  void discover(const FilterPtr& filter, std::set<const void*>& met) {
    if (!filter || !met.insert(filter.get()).second) return;
    const bool included = live.count(filter.get()) != 0;
    const auto once = [&](const void* object) { return included && met.insert(object).second; };
    if (leaves(filter->result) && once(filter->result.get())) {
      program.exported_images.push_back(place(filter->result));
    }
    if (filter->state && filter->state->exported && once(filter->state.get())) {
      program.exported_states.push_back(place(filter->state));
    }
    for (const ImageRef& image : filter->images) {
      if (image.producer) {
        discover(image.producer, met);
      } else if (once(image.facts.get())) {
        program.image_inputs.push_back(place(image.facts));
      }
    }
    for (const StateRef& state : filter->states) {
      if (state.producer) {
        discover(state.producer, met);
      } else if (once(state.facts.get())) {
        program.state_inputs.push_back(place(state.facts));
      }
    }
  }

  bool add(const FilterPtr& filter, id<MTLDevice> device) {
    Unit unit;
    unit.filter = std::make_shared<FilterBody>(*filter);
    unit.filter->family = filter->family->clone();
    for (MPSKernel* kernel : filter->family->kernels(*filter, device)) {
      if (kernel == nil) return false;
      unit.kernels.push_back(kernel);
    }
    for (const ImageRef& image : filter->images) unit.images.push_back(place(image.facts));
    for (const StateRef& state : filter->states) unit.states.push_back(place(state.facts));
    unit.result = place(filter->result);
    if (program.images[unit.result].format == MPSImageFeatureChannelFormatNone) {
      program.images[unit.result].format = program.images[unit.images[0]].format;
    }
    unit.writes_state =
        filter->state && (consumed.count(filter->state.get()) != 0 || filter->state->exported ||
                          filter->family->always_writes_state());
    if (unit.writes_state) unit.state = place(filter->state);
    if (filter->forward) unit.forward = unit_places.at(filter->forward.get());
    unit.allocator = adopt([[EmulatedNodeAllocator alloc] init]);
    auto* first = static_cast<MPSCNNKernel*>(unit.kernels[0].get());
    [first setDestinationImageAllocator:unit.allocator.get()];
    [first setPadding:filter->padding.get()];
    if (filter->label) [first setLabel:filter->label.get()];
    unit_places[filter.get()] = program.units.size();
    program.units.push_back(std::move(unit));
    return true;
  }

  bool compile(id<MTLDevice> device) {
    for (const ImageRef& result : results) visit(result.producer);
    prune();
    std::set<const void*> met;
    for (const ImageRef& result : results) discover(result.producer, met);
    for (auto* list : {&program.image_inputs, &program.state_inputs, &program.exported_images,
                       &program.exported_states}) {
      std::reverse(list->begin(), list->end());
    }
    for (const FilterPtr& filter : order) {
      if (live.count(filter.get()) != 0 && !add(filter, device)) return false;
    }
    std::set<size_t> read;
    for (const Unit& unit : program.units) read.insert(unit.images.begin(), unit.images.end());
    for (Unit& unit : program.units) {
      const std::vector<size_t>& exported = program.exported_images;
      unit.data_wanted = read.count(unit.result) != 0 ||
                         std::find(exported.begin(), exported.end(), unit.result) != exported.end();
    }
    program.result_needed = needed[0];
    for (size_t i = 0; i < results.size(); ++i) {
      const size_t at = place(results[i].facts);
      if (i == 0) program.result = at;
      if (!needed[i]) continue;
      program.units[unit_places.at(results[i].producer.get())].data_wanted = true;
      const std::vector<size_t>& exported = program.exported_images;
      if (i > 0 && std::find(exported.begin(), exported.end(), at) == exported.end()) {
        program.extra_results.push_back(at);
      }
    }
    return true;
  }
};

NSArray* handles_of(const std::vector<UnitImage>& all, const std::vector<size_t>& places) {
  NSMutableArray* handles = [NSMutableArray array];
  for (const size_t place : places) {
    const id handle = all[place].facts.handle.get();
    [handles addObject:handle == nil ? static_cast<id>([NSNull null]) : handle];
  }
  return handles;
}
NSArray* handles_of(const std::vector<UnitState>& all, const std::vector<size_t>& places) {
  NSMutableArray* handles = [NSMutableArray array];
  for (const size_t place : places) {
    const id handle = all[place].facts.handle.get();
    [handles addObject:handle == nil ? static_cast<id>([NSNull null]) : handle];
  }
  return [handles count] == 0 ? nil : handles;
}

std::vector<size_t> intermediates(const Program& program) {
  std::vector<size_t> all = program.extra_results;
  all.insert(all.end(), program.exported_images.begin(), program.exported_images.end());
  return all;
}

}  // namespace

std::vector<NSUInteger> Program::image_reads() const {
  std::vector<NSUInteger> reads(images.size(), 0);
  const bool shared_once = option("shared_source_reads") == 1;
  for (const Unit& unit : units) {
    std::set<size_t> met;
    for (const size_t place : unit.images) {
      if (shared_once && !met.insert(place).second) continue;
      reads[place] += unit.filter->family->reads_of_image(unit.filter->gradient, unit.writes_state);
    }
  }
  return reads;
}

std::vector<NSUInteger> Program::state_reads() const {
  std::vector<NSUInteger> reads(states.size(), 0);
  for (const Unit& unit : units) {
    for (const size_t place : unit.states) {
      reads[place] += unit.filter->family->reads_of_state(unit.filter->gradient);
      reads[place] += update_count(unit, MPSNNTrainingStyleUpdateDeviceGPU);
    }
  }
  return reads;
}

// ---------------------------------------------------------------- encodes

namespace {

struct Encode {
  GraphBody& graph;
  id<MTLCommandBuffer> buffer;
  std::vector<NSArray<MPSImage*>*> images;
  std::vector<NSArray<MPSState*>*> states;
  std::vector<NSUInteger> image_reads, state_reads;
  std::vector<std::function<void()>> updates;

  Program& program() const { return *graph.program; }

  void check_sources(NSArray<MPSImageBatch*>* source_images, NSArray<MPSStateBatch*>* source_states,
                     const Where& where) {
    const Program& p = program();
    const auto number = [](NSUInteger value) { return static_cast<unsigned long>(value); };
    REQUIRE([source_images count] == p.image_inputs.size(), graph_source_images, where,
            "%lu, expected %lu", number([source_images count]), number(p.image_inputs.size()));
    REQUIRE([source_states count] == p.state_inputs.size(), graph_source_states, where,
            "%lu, expected %lu", number([source_states count]), number(p.state_inputs.size()));
    NSUInteger length = 0;
    const auto check_length = [&](NSArray* batch) {
      REQUIRE([batch isKindOfClass:[NSArray class]], foreign_object, where, "not a batch");
      REQUIRE([batch count] > 0, batch_empty, where);
      if (length == 0) length = [batch count];
      REQUIRE([batch count] == length, graph_batch_length, where, "%lu and %lu", number(length),
              number([batch count]));
    };
    std::map<MPSImage*, NSUInteger> reads;
    for (size_t i = 0; i < p.image_inputs.size(); ++i) {
      NSArray<MPSImage*>* batch = [source_images objectAtIndex:i];
      check_length(batch);
      images[p.image_inputs[i]] = batch;
      for (MPSImage* image in batch) {
        (void)body_of(image, where);
        reads[image] += image_reads[p.image_inputs[i]];
      }
    }
    for (const auto& [image, count] : reads) {
      const ImageBody& body = body_of(image, where);
      REQUIRE(!body.temporary || body.read_count >= count, graph_read_count, where,
              "%lu, needed %lu", number(body.read_count), number(count));
    }
    for (size_t i = 0; i < p.state_inputs.size(); ++i) {
      NSArray<MPSState*>* batch = [source_states objectAtIndex:i];
      check_length(batch);
      states[p.state_inputs[i]] = batch;
      for (MPSState* state in batch) {
        (void)body_of(state, where);
        REQUIRE([state isKindOfClass:[MPSCNNLossLabels class]], graph_state_class, where, "a %s",
                [NSStringFromClass([state class]) UTF8String]);
      }
    }
  }

  // An earlier encode may have to change the weights first.
  void wait_for_updates(const Where& where) {
    Program& p = program();
    std::unique_lock lock(p.mutex);
    std::erase_if(p.tickets, [](const std::weak_ptr<Ticket>& ticket) { return ticket.expired(); });
    for (const std::weak_ptr<Ticket>& weak : p.tickets) {
      {
        const std::shared_ptr<Ticket> ticket = weak.lock();
        if (!ticket || !ticket->updates || ticket->done) continue;
        REQUIRE([ticket->root status] >= MTLCommandBufferStatusCommitted, graph_deadlock, where);
      }
      p.changed.wait(lock, [&] {
        const std::shared_ptr<Ticket> ticket = weak.lock();
        return !ticket || ticket->done;
      });
    }
  }

  // Images that leave the graph and stay readable once for each way out.
  NSUInteger ways_out(size_t place, bool wants_intermediates) const {
    const Program& p = program();
    const auto among = [&](const std::vector<size_t>& list) {
      return std::find(list.begin(), list.end(), place) != list.end() ? 1U : 0U;
    };
    NSUInteger count = place == p.result && p.result_needed ? 1 : 0;
    if (wants_intermediates) count += among(p.exported_images) + among(p.extra_results);
    return count;
  }

  bool state_is_temporary(const Unit& unit) const {
    if (program().states[unit.state].facts.exported && !graph.temporary_states) return false;
    for (const Unit& reader : program().units) {
      const bool reads =
          std::find(reader.states.begin(), reader.states.end(), unit.state) != reader.states.end();
      if (reads && update_count(reader, MPSNNTrainingStyleUpdateDeviceCPU) > 0) return false;
    }
    return true;
  }

  void run(Unit& unit, bool wants_intermediates, bool wants_states) {
    const Program& p = program();
    const UnitImage& target = p.images[unit.result];
    const Family& family = *unit.filter->family;
    unit.allocator.get()->format_ =
        target.format == MPSImageFeatureChannelFormatNone ? graph.format : target.format;
    unit.allocator.get()->target_ = unit.result == p.result && p.result_needed
                                        ? graph.allocator.get()
                                        : target.facts.allocator.get();
    Step step{buffer, unit.kernels, {}, {}};
    for (const size_t place : unit.images) step.images.push_back(images[place]);
    for (const size_t place : unit.states) step.states.push_back(states[place]);
    step.writes_state = unit.writes_state;
    if (unit.writes_state) {
      step.temporary_state = state_is_temporary(unit);
      step.state_reads =
          state_reads[unit.state] + (wants_states && p.states[unit.state].facts.exported ? 1 : 0);
    }
    if (unit.filter->gradient) {
      family.set_data_gradient(unit.kernels[0].get(), unit.data_wanted);
      family.encode_gradient(step);
    } else {
      family.encode_forward(step);
    }
    images[unit.result] = step.result;
    if (target.facts.handle) {
      for (MPSImage* image in step.result) [image setLabel:[target.facts.handle.get() label]];
    }
    keep(step.result, image_reads[unit.result] + ways_out(unit.result, wants_intermediates));
    if (unit.writes_state) states[unit.state] = step.state;
    if (update_count(unit, MPSNNTrainingStyleUpdateDeviceGPU) > 0) {
      update_on_gpu(p, unit, buffer, states[unit.states[0]]);
    } else if (update_count(unit, MPSNNTrainingStyleUpdateDeviceCPU) > 0) {
      updates.push_back(update_on_cpu(graph.program, unit, buffer, states[unit.states[0]]));
    }
  }

  void synchronize_results() {
    const Program& p = program();
    for (size_t place = 0; place < p.images.size(); ++place) {
      if (!p.images[place].facts.synchronized) continue;
      for (MPSImage* image in images[place]) {
        if (![image emulatedBody]->temporary) [image synchronizeOnCommandBuffer:buffer];
      }
    }
    for (size_t place = 0; place < p.states.size(); ++place) {
      if (p.states[place].facts.synchronized && states[place] != nil) {
        MPSStateBatchSynchronize(states[place], buffer);
      }
    }
  }

  // Tells the graph when the command buffer completes; updates on the CPU come first.
  void register_completion(const Where& where) {
    const id<MTLCommandBuffer> root = root_of(buffer, where);
    const auto ticket = std::make_shared<Ticket>();
    ticket->root = root;
    ticket->updates = !updates.empty();
    const std::shared_ptr<Program> shared = graph.program;
    const auto jobs = std::make_shared<std::vector<std::function<void()>>>(std::move(updates));
    {
      std::lock_guard lock(shared->mutex);
      shared->tickets.push_back(ticket);
    }
    [root addCompletedHandler:^(id<MTLCommandBuffer> completed) {
      if ([completed status] == MTLCommandBufferStatusCompleted) {
        for (const std::function<void()>& job : *jobs) job();
      }
      std::lock_guard lock(shared->mutex);
      ticket->done = true;
      shared->changed.notify_all();
    }];
  }

  NSArray<MPSImage*>* encode(NSArray<MPSImageBatch*>* source_images,
                             NSArray<MPSStateBatch*>* source_states,
                             NSMutableArray* intermediate_images,
                             NSMutableArray* destination_states, const Where& where) {
    Program& p = program();
    check_encodable(buffer, where);
    images.resize(p.images.size());
    states.resize(p.states.size());
    image_reads = p.image_reads();
    state_reads = p.state_reads();
    check_sources(source_images, source_states, where);
    wait_for_updates(where);
    for (size_t i = 0; i < p.units.size(); ++i) {
      if (i > 0 && [buffer isKindOfClass:[MPSCommandBuffer class]]) {
        auto* wrapper = static_cast<MPSCommandBuffer*>(buffer);
        if (option("graph_pieces") == 2) {
          [wrapper emulatedContinue];
        } else {
          [wrapper commitAndContinue];
        }
      }
      run(p.units[i], intermediate_images != nil, destination_states != nil);
    }
    synchronize_results();
    register_completion(where);
    for (const size_t place : intermediates(p)) [intermediate_images addObject:images[place]];
    for (const size_t place : p.exported_states) [destination_states addObject:states[place]];
    return p.result_needed ? images[p.result] : nil;
  }
};

}  // namespace
}  // namespace emulated_metal

@implementation MPSNNGraph
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)copyWithZone:(NSZone*)zone device:(id<MTLDevice>)device {
  (void)zone, (void)device;
  spring(Trap::init_unavailable, HERE, "copies of graphs are not emulated");
}
- (void)encodeWithCoder:(NSCoder*)coder {
  (void)coder;
  spring(Trap::init_unavailable, HERE, "archives of graphs are not emulated");
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   resultImage:(MPSNNImageNode*)resultImage
           resultImageIsNeeded:(BOOL)resultIsNeeded {
  REQUIRE(resultImage != nil, nil_argument, HERE, "resultImage");
  return [self initWithDevice:device
                 resultImages:@[ resultImage ]
             resultsAreNeeded:&resultIsNeeded];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                  resultImages:(NSArray<MPSNNImageNode*>*)resultImages
              resultsAreNeeded:(BOOL*)areResultsNeeded {
  REQUIRE(resultImages != nil, nil_argument, HERE, "resultImages");
  REQUIRE([resultImages count] > 0, graph_results, HERE, "none");
  self = [super initWithDevice:device];
  graph_ = new GraphBody;
  Compiler compiler(*graph_->program);
  std::set<const ImageFacts*> distinct;
  for (MPSNNImageNode* node in resultImages) {
    const ImageRef result = ref_of(node, HERE);
    REQUIRE(result.producer != nullptr, graph_results, HERE, "an input");
    REQUIRE(distinct.insert(result.facts.get()).second, graph_results, HERE, "twice the same");
    compiler.needed.push_back(areResultsNeeded == nullptr ||
                              areResultsNeeded[compiler.results.size()]);
    compiler.results.push_back(result);
  }
  if (!compiler.compile(device)) {
    [self release];
    return nil;
  }
  return self;
}
- (void)dealloc {
  delete graph_;
  [super dealloc];
}

- (NSArray<id<MPSHandle>>*)sourceImageHandles {
  return handles_of(graph_->program->images, graph_->program->image_inputs);
}
- (NSArray<id<MPSHandle>>*)sourceStateHandles {
  return handles_of(graph_->program->states, graph_->program->state_inputs);
}
- (NSArray<id<MPSHandle>>*)intermediateImageHandles {
  const std::vector<size_t> all = intermediates(*graph_->program);
  return all.empty() ? nil : handles_of(graph_->program->images, all);
}
- (NSArray<id<MPSHandle>>*)resultStateHandles {
  return handles_of(graph_->program->states, graph_->program->exported_states);
}
- (id<MPSHandle>)resultHandle {
  return graph_->program->images[graph_->program->result].facts.handle.get();
}
- (BOOL)resultImageIsNeeded {
  return graph_->program->result_needed;
}
- (BOOL)outputStateIsTemporary {
  return graph_->temporary_states;
}
- (void)setOutputStateIsTemporary:(BOOL)temporary {
  graph_->temporary_states = temporary;
}
- (MPSImageFeatureChannelFormat)format {
  return graph_->format;
}
- (void)setFormat:(MPSImageFeatureChannelFormat)format {
  graph_->format = format;
}
- (id<MPSImageAllocator>)destinationImageAllocator {
  return graph_->allocator.get();
}
- (void)setDestinationImageAllocator:(id<MPSImageAllocator>)allocator {
  REQUIRE(allocator != nil, nil_argument, HERE, "destinationImageAllocator");
  graph_->allocator = allocator;
}

- (void)reloadFromDataSources {
  {
    std::lock_guard lock(graph_->program->mutex);
    for (const std::weak_ptr<Ticket>& weak : graph_->program->tickets) {
      const std::shared_ptr<Ticket> ticket = weak.lock();
      REQUIRE(!ticket || ticket->done || [ticket->root status] >= MTLCommandBufferStatusCompleted,
              graph_reload, HERE);
    }
  }
  reload(*graph_->program);
}
- (NSUInteger)readCountForSourceImageAtIndex:(NSUInteger)index {
  const Program& p = *graph_->program;
  REQUIRE(index < p.image_inputs.size(), graph_source_index, HERE, "image %lu of %lu",
          static_cast<unsigned long>(index), static_cast<unsigned long>(p.image_inputs.size()));
  return p.image_reads()[p.image_inputs[index]];
}
- (NSUInteger)readCountForSourceStateAtIndex:(NSUInteger)index {
  const Program& p = *graph_->program;
  REQUIRE(index < p.state_inputs.size(), graph_source_index, HERE, "state %lu of %lu",
          static_cast<unsigned long>(index), static_cast<unsigned long>(p.state_inputs.size()));
  return p.state_reads()[p.state_inputs[index]];
}

- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(NSArray<MPSImageBatch*>*)sourceImages
                                sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                          intermediateImages:(NSMutableArray<MPSImageBatch*>*)intermediateImages
                           destinationStates:(NSMutableArray<MPSStateBatch*>*)destinationStates {
  REQUIRE(sourceImages != nil, nil_argument, HERE, "sourceImages");
  Encode encode{*graph_, commandBuffer, {}, {}, {}, {}, {}};
  return encode.encode(sourceImages, sourceStates, intermediateImages, destinationStates, HERE);
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(NSArray<MPSImage*>*)sourceImages
                      sourceStates:(NSArray<MPSState*>*)sourceStates
                intermediateImages:(NSMutableArray<MPSImage*>*)intermediateImages
                 destinationStates:(NSMutableArray<MPSState*>*)destinationStates {
  const auto batches = [](NSArray* objects) {
    NSMutableArray* all = objects == nil ? nil : [NSMutableArray array];
    for (const id object in objects) [all addObject:@[ object ]];
    return all;
  };
  NSMutableArray* images = intermediateImages == nil ? nil : [NSMutableArray array];
  NSMutableArray* states = destinationStates == nil ? nil : [NSMutableArray array];
  NSArray* result = [self encodeBatchToCommandBuffer:commandBuffer
                                        sourceImages:batches(sourceImages)
                                        sourceStates:batches(sourceStates)
                                  intermediateImages:images
                                   destinationStates:states];
  for (NSArray* batch in images) [intermediateImages addObject:[batch objectAtIndex:0]];
  for (NSArray* batch in states) [destinationStates addObject:[batch objectAtIndex:0]];
  return [result lastObject];
}
@end
