// Graphs: what is checked of their inputs, and the encode of their steps.
#include "graph/graph.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/errors.hpp"
#include "base/taken.hpp"
#include "graph/description.hpp"
#include "kernels/loss/loss.hpp"

namespace mpsgrad {
namespace {

constexpr const char* kGraph = "Graph";

// What a step reads, for messages.
std::string read_by(const GraphStep& step, const std::vector<GraphImage>& images) {
  std::string names;
  std::set<int> distinct;
  for (const int image : step.image_reads()) {
    if (image != GraphStep::kNone && distinct.insert(image).second) {
      names += text(names.empty() ? "; it reads " : " and ",
                    images[static_cast<std::size_t>(image)].name);
    }
  }
  return names;
}

template <class Error>
[[noreturn]] void rethrow_with(const std::string& node, const Error& error) {
  throw Error(text(kGraph, ": ", node, ": ", error.what()));
}

// Errors of a step keep their class and name the node; a ValueError, those before it too.
template <class Encode>
void naming(const GraphStep& step, const std::vector<GraphImage>& images, const Encode& encode) {
  const std::string& node = step.node();
  try {
    encode();
  } catch (const CommandBufferError& error) {
    throw CommandBufferError(text(kGraph, ": ", node, ": ", error.what()), error.code);
  } catch (const ReadCountError& error) {
    rethrow_with(node, error);
  } catch (const StateError& error) {
    rethrow_with(node, error);
  } catch (const DeviceError& error) {
    rethrow_with(node, error);
  } catch (const GraphError& error) {
    rethrow_with(node, error);
  } catch (const UnsupportedError& error) {
    rethrow_with(node, error);
  } catch (const TypeError& error) {
    rethrow_with(node, error);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(
        text(kGraph, ": ", node, ": ", error.what(), read_by(step, images)));
  }
}

void describe(std::vector<Index>& kind, const ImageDescriptor& image) {
  kind.insert(kind.end(), {image.width, image.height, image.feature_channels,
                           static_cast<Index>(image.channel_format)});
}

std::vector<Index> kind_of(const LossLabels& labels) {
  std::vector<Index> kind{labels.weights() ? 1 : 0};
  describe(kind, labels.labels()->descriptor());
  describe(kind, labels.loss()->descriptor());
  return kind;
}

// What decides whether inputs fit, in numbers.
std::vector<Index> kind_of(ChannelFormat format,
                           const std::vector<ImageBatch::Images>& source_images,
                           const std::vector<StateBatch>& source_states) {
  std::vector<Index> kind{static_cast<Index>(format)};
  for (const auto& images : source_images) {
    describe(kind, images.front()->descriptor());
  }
  for (const auto& states : source_states) {
    const std::vector<Index> own = kind_of(static_cast<const LossLabels&>(*states.front()));
    kind.insert(kind.end(), own.begin(), own.end());
  }
  return kind;
}

std::shared_ptr<State> stand_in_for(const LossLabels& labels,
                                    const std::shared_ptr<Device>& device) {
  const auto image = [&](const std::shared_ptr<Image>& like) {
    return ImageBatch({Image::make(device, like->descriptor())});
  };
  const ImageBatch targets = image(labels.labels());
  const ImageDescriptor& loss = labels.loss()->descriptor();
  const Size size{loss.width, loss.height, loss.feature_channels};
  if (!labels.weights()) {
    return LossLabels::make(device, targets, nullptr, size).front();
  }
  const ImageBatch weights = image(labels.weights());
  return LossLabels::make(device, targets, &weights, size).front();
}

void require_slot(int slot, std::size_t count, const char* what) {
  require<std::out_of_range>(slot >= 0 && static_cast<std::size_t>(slot) < count, kGraph, ": ",
                             what, " ", slot, " does not exist");
}

}  // namespace

Graph::Graph(std::shared_ptr<Device> device)
    : KernelBase(std::move(device), kGraph), allocator_(ordinary_image_allocator()) {}

Graph::~Graph() = default;

int Graph::add_image(GraphImage image) {
  images_.push_back(std::move(image));
  return static_cast<int>(images_.size()) - 1;
}

int Graph::add_state(GraphState state) {
  states_.push_back(std::move(state));
  return static_cast<int>(states_.size()) - 1;
}

void Graph::add_step(std::unique_ptr<GraphStep> step) {
  for (const int slot : step->image_reads()) {
    require_slot(slot, images_.size(), "image");
    ++images_[static_cast<std::size_t>(slot)].reads;
  }
  for (const int slot : step->state_reads()) {
    if (slot != GraphStep::kNone) {
      require_slot(slot, states_.size(), "state");
      ++states_[static_cast<std::size_t>(slot)].reads;
    }
  }
  steps_.push_back(std::move(step));
}

void Graph::set_inputs(std::vector<int> images, std::vector<int> states) {
  source_images_ = std::move(images);
  source_states_ = std::move(states);
}

void Graph::set_results(int result, std::vector<int> intermediates, std::vector<int> states) {
  result_ = result;
  intermediates_ = std::move(intermediates);
  result_states_ = std::move(states);
  for (const int slot : intermediates_) {
    ++images_.at(static_cast<std::size_t>(slot)).returned;
  }
  if (result_ != GraphStep::kNone) {
    ++images_.at(static_cast<std::size_t>(result_)).returned;
  }
  for (const int slot : result_states_) {
    ++states_.at(static_cast<std::size_t>(slot)).returned;
  }
}

bool Graph::wants_description() const { return has_graphs(*device()); }

void Graph::add_node(GraphNode node) {
  if (!description_) {
    description_ = std::make_unique<GraphDescription>();
  }
  description_->nodes.push_back(std::move(node));
}

int Graph::add_data_source(GraphDataSource source) {
  if (!description_) {
    description_ = std::make_unique<GraphDescription>();
  }
  description_->data_sources.push_back(std::move(source));
  return static_cast<int>(description_->data_sources.size()) - 1;
}

void Graph::make_runner() {
  const std::unique_ptr<GraphDescription> description = std::move(description_);
  if (!description) {
    return;
  }
  description->images = images_;
  description->states = states_;
  description->source_images = source_images_;
  description->source_states = source_states_;
  description->result = result_;
  description->intermediates = intermediates_;
  description->result_states = result_states_;
  runner_ = make_graph_runner(device(), std::move(*description), why_no_runner_);
}

void Graph::reload_runner() { runner_->reload_from_data_sources(); }

void Graph::set_format(ChannelFormat format) {
  require(format == ChannelFormat::Float16 || format == ChannelFormat::Float32 ||
              format == ChannelFormat::Unorm8 || format == ChannelFormat::Unorm16,
          kGraph, ": format must be a format of images, got NONE");
  format_ = format;
}

void Graph::set_allocator(std::shared_ptr<ImageAllocator> allocator) {
  require<TypeError>(allocator != nullptr, kGraph,
                     ": destination_image_allocator must not be None");
  allocator_ = std::move(allocator);
}

Index Graph::read_count_for_source_image(Index index) const {
  require<std::out_of_range>(index >= 0 && index < source_image_count(), kGraph, ": there are ",
                             source_image_count(), " source images, no number ", index);
  return images_[static_cast<std::size_t>(source_images_[static_cast<std::size_t>(index)])].reads;
}

Index Graph::read_count_for_source_state(Index index) const {
  require<std::out_of_range>(index >= 0 && index < source_state_count(), kGraph, ": there are ",
                             source_state_count(), " source states, no number ", index);
  return states_[static_cast<std::size_t>(source_states_[static_cast<std::size_t>(index)])].reads;
}

std::optional<ImageDescriptor> Graph::last_descriptor(int image) const {
  require_slot(image, images_.size(), "image");
  const auto place = static_cast<std::size_t>(image);
  return place < last_descriptors_.size() ? last_descriptors_[place] : std::nullopt;
}

bool Graph::begin_turn(std::chrono::milliseconds limit) {
  require<GraphError>(turn_of_.load() != std::this_thread::get_id(), kGraph,
                      ": a callback of a graph cannot encode the same graph");
  std::unique_lock lock(turn_mutex_);
  const auto is_free = [this] { return turn_of_.load() == std::thread::id(); };
  if (!turn_ended_.wait_for(lock, limit, is_free)) {
    return false;
  }
  turn_of_ = std::this_thread::get_id();
  return true;
}

void Graph::end_turn() {
  {
    const std::lock_guard lock(turn_mutex_);
    turn_of_ = std::thread::id();
  }
  turn_ended_.notify_one();
}

void Graph::check_inputs(const CommandBuffer& command_buffer,
                         const std::vector<ImageBatch::Images>& source_images,
                         const std::vector<StateBatch>& source_states) const {
  command_buffer.require_encodable_on(device(), kGraph);
  require(source_images.size() == source_images_.size(), kGraph, ": there are ",
          source_images_.size(), " source images, but ", source_images.size(), " batches came");
  require(source_states.size() == source_states_.size(), kGraph, ": there are ",
          source_states_.size(), " source states, but ", source_states.size(), " batches came");
  std::size_t length = 0;
  const auto check_length = [&](const std::string& name, std::size_t count) {
    require(count > 0, kGraph, ": ", name, " is an empty batch");
    length = length == 0 ? count : length;
    require(count == length, kGraph, ": ", name, " has ", count,
            " elements, but the first input has ", length);
  };
  std::map<const ReadCount*, LostReads> wanted;  // an image may be several inputs
  for (std::size_t i = 0; i < source_images.size(); ++i) {
    const GraphImage& slot = images_[static_cast<std::size_t>(source_images_[i])];
    const ImageBatch::Images& images = source_images[i];
    check_length(slot.name, images.size());
    check_operand(*this, command_buffer, {slot.name.c_str(), &images, true});
    require(images.front()->descriptor().number_of_images == 1, kGraph, ": ", slot.name,
            " must be images that hold one image, got ",
            images.front()->descriptor().number_of_images);
    std::set<const Image*> distinct;  // one in a batch twice is read once
    for (const auto& image : images) {
      const ReadCount* count = image->read_count();
      if (count != nullptr && distinct.insert(image.get()).second) {
        LostReads& lost = wanted.try_emplace(count, LostReads{count, image.get(), 0}).first->second;
        const Index reads = lost.reads += slot.reads;
        require<ReadCountError>(count->value() >= reads, kGraph, ": ", slot.name, " is read ",
                                reads, " times by one encode, but its read count is ",
                                count->value());
      }
    }
  }
  std::vector<LostReads> lost;
  for (const auto& [count, reads] : wanted) {
    lost.push_back(reads);
  }
  check_lost_reads(lost);
  for (std::size_t i = 0; i < source_states.size(); ++i) {
    const GraphState& slot = states_[static_cast<std::size_t>(source_states_[i])];
    check_length(slot.name, source_states[i].size());
    const LossLabels* first = nullptr;
    std::set<const State*> distinct;
    for (const auto& state : source_states[i]) {
      const auto* labels = dynamic_cast<const LossLabels*>(state.get());
      require<TypeError>(labels != nullptr, kGraph, ": ", slot.name, " must be LossLabels, got a ",
                         state->class_name());
      require(state->device() == device(), kGraph, ": ", slot.name, " is on another device");
      require(distinct.insert(labels).second, kGraph, ": ", slot.name,
              " holds one object twice; every image needs labels of its own");
      first = first == nullptr ? labels : first;
      require(kind_of(*labels) == kind_of(*first), kGraph, ": ", slot.name, " mixes labels of ",
              first->labels()->descriptor(), " and ", labels->labels()->descriptor(),
              ", or loss images or weights that differ");
    }
  }
}

Graph::Rehearsal Graph::rehearse(const Settings& settings,
                                 const std::vector<ImageBatch::Images>& source_images,
                                 const std::vector<StateBatch>& source_states) {
  GraphRun run(*this, settings, device()->make_queue()->try_make_command_buffer(), true);
  for (std::size_t i = 0; i < source_images.size(); ++i) {
    run.set_input(source_images_[i], ImageBatch::Images{Image::make(
                                         device(), source_images[i].front()->descriptor())});
  }
  for (std::size_t i = 0; i < source_states.size(); ++i) {
    const auto& labels = static_cast<const LossLabels&>(*source_states[i].front());
    run.set_input(source_states_[i], StateBatch{stand_in_for(labels, device())});
  }
  run_steps(run);
  return {run.descriptors(), runner_ ? runner_->learn(run.first_states()) : nullptr};
}

const Graph::Rehearsal& Graph::rehearsal(const Settings& settings,
                                         const std::vector<ImageBatch::Images>& source_images,
                                         const std::vector<StateBatch>& source_states) {
  // Images of ever new sizes must not fill the memory.
  constexpr std::size_t kMostKinds = 256;
  std::vector<Index> kind = kind_of(settings.format, source_images, source_states);
  if (const auto known = rehearsed_.find(kind); known != rehearsed_.end()) {
    return known->second;
  }
  Rehearsal made = rehearse(settings, source_images, source_states);
  if (rehearsed_.size() >= kMostKinds) {
    rehearsed_.clear();
  }
  return rehearsed_.insert_or_assign(std::move(kind), std::move(made)).first->second;
}

void Graph::run_steps(GraphRun& run) {
  for (const auto& step : steps_) {
    naming(*step, images_, [&] { step->encode(run); });
    if (!run.is_rehearsal()) {
      note_part(*run.command_buffer());
    }
  }
}

GraphResult Graph::encode(const std::shared_ptr<CommandBuffer>& command_buffer,
                          const std::vector<ImageBatch::Images>& source_images,
                          const std::vector<StateBatch>& source_states) {
  check_inputs(*command_buffer, source_images, source_states);
  pending_updates(command_buffer.get());
  const Settings settings{format_, allocator_, output_state_is_temporary};
  const Rehearsal& rehearsed = rehearsal(settings, source_images, source_states);
  if (runner_) {
    return encode_by_runner(settings, command_buffer, source_images, source_states, rehearsed);
  }
  GraphRun run(*this, settings, command_buffer, false);
  for (std::size_t i = 0; i < source_images.size(); ++i) {
    run.set_input(source_images_[i], source_images[i]);
  }
  for (std::size_t i = 0; i < source_states.size(); ++i) {
    run.set_input(source_states_[i], source_states[i]);
  }
  note_part(*command_buffer);
  try {
    run_steps(run);
  } catch (...) {  // some of it is encoded
    note_part(*command_buffer);
    throw;
  }
  const std::shared_ptr<Work> work = command_buffer->work();
  const auto done = std::make_shared<std::atomic<bool>>(false);
  if (!run.completions().empty()) {
    command_buffer->add_completed_handler([work, done, completions = run.completions()] {
      if (work->error_code() == 0) {
        for (const GraphCompletion& completion : completions) {
          completion(*work);
        }
      }
      *done = true;
    });
  }
  note_outstanding(work, !run.completions().empty(), done);
  synchronize_sources(*command_buffer, source_states);
  return run.take_result();
}

void Graph::synchronize_sources(CommandBuffer& command_buffer,
                                const std::vector<StateBatch>& source_states) const {
  for (std::size_t i = 0; i < source_states.size(); ++i) {
    if (states_[static_cast<std::size_t>(source_states_[i])].synchronize) {
      synchronize(source_states[i], command_buffer);
    }
  }
}

void Graph::note_part(const CommandBuffer& command_buffer) {
  note_outstanding(command_buffer.work(), false, nullptr);
}

void Graph::note_outstanding(const std::shared_ptr<Work>& work, bool updates,
                             std::shared_ptr<std::atomic<bool>> done) {
  std::vector<std::shared_ptr<Work>> over;
  std::shared_ptr<Work> updating = work;
  const std::lock_guard lock(work_mutex_);
  over = take_out(outstanding_,
                  [](const auto& other) { return other->finished() || other->abandoned(); });
  if (outstanding_.empty() || outstanding_.back() != work) {
    outstanding_.push_back(work);
  }
  if (updates) {
    pending_updates_.swap(updating);
    updates_done_ = std::move(done);
  }
}

namespace {

// One read for each step that would have read it, once for an image that is there several times.
void spend_reads(const ImageBatch::Images& images, Index reads) {
  std::vector<const Image*> seen;
  for (const auto& image : images) {
    ReadCount* count = image->read_count();
    if (count && std::find(seen.begin(), seen.end(), image.get()) == seen.end()) {
      seen.push_back(image.get());
      count->add(-reads);
      image->after_count_change();
    }
  }
}

}  // namespace

std::exception_ptr thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

GraphResult Graph::encode_by_runner(const Settings& settings,
                                    const std::shared_ptr<CommandBuffer>& command_buffer,
                                    const std::vector<ImageBatch::Images>& source_images,
                                    const std::vector<StateBatch>& source_states,
                                    const Rehearsal& rehearsal) {
  require<UnsupportedError>(command_buffer->predicate == nullptr, kGraph,
                            ": the device cannot make a whole graph depend on a predicate; encode "
                            "it while none is set");
  const auto in_turn = [&](const std::function<void()>& call) {
    const std::thread::id owner = turn_of_.exchange(std::this_thread::get_id());
    std::exception_ptr thrown = thrown_by([&] {
      const CommandBuffer::Sole user(*command_buffer);
      call();
    });
    turn_of_ = owner;
    note_part(*command_buffer);
    return thrown;
  };
  // Padding policies of the rehearsal have let others run.
  command_buffer->require_encodable_on(device(), kGraph);
  GraphMade made;
  const std::shared_ptr<Work> begun = command_buffer->work();  // which the updates belong to
  try {
    const CommandBuffer::Sole user(*command_buffer);
    made = runner_->encode({*this, command_buffer, source_images, source_states, settings.format,
                            settings.allocator, settings.output_state_is_temporary,
                            rehearsal.descriptors, rehearsal.learned, outside, in_turn});
  } catch (...) {  // some of it is encoded
    note_outstanding(begun, runner_->updates_on_completion(), nullptr);
    note_part(*command_buffer);
    throw;
  }
  note_outstanding(begun, runner_->updates_on_completion(), nullptr);
  note_part(*command_buffer);
  last_descriptors_ = rehearsal.descriptors;
  for (std::size_t i = 0; i < source_images.size(); ++i) {
    spend_reads(source_images[i], images_[static_cast<std::size_t>(source_images_[i])].reads);
  }
  for (auto& [slot, batch] : made.images) {
    const GraphImage& image = images_[static_cast<std::size_t>(slot)];
    increment_read_count(batch->images(), image.returned - 1);
    if (image.synchronize) {
      synchronize(batch->images(), *command_buffer);
    }
  }
  for (auto& [slot, states] : made.states) {
    const GraphState& state = states_[static_cast<std::size_t>(slot)];
    increment_read_count(states, state.returned - 1);
    if (state.synchronize) {
      synchronize(states, *command_buffer);
    }
  }
  synchronize_sources(*command_buffer, source_states);
  GraphResult result;
  if (result_ != GraphStep::kNone) {
    result.result = made.images.at(result_);
  }
  for (const int slot : intermediates_) {
    result.intermediates.push_back(made.images.at(slot));
  }
  for (const int slot : result_states_) {
    result.states.push_back(made.states.at(slot));
  }
  return result;
}

std::shared_ptr<Work> Graph::pending_updates(const CommandBuffer* next) {
  std::shared_ptr<Work> work;
  bool finished = false, done = false;
  {
    const std::lock_guard lock(work_mutex_);
    work = pending_updates_;
    // A handler of this work finds it finished, whether its turn is before the updates or after.
    finished = work && work->finished();
    done = finished && (!updates_done_ || *updates_done_);
    if (work && (work->abandoned() || done)) {
      pending_updates_.reset();
    }
  }
  if (!work || work->abandoned()) {
    return nullptr;
  }
  if (done) {
    work->rethrow_handler_failure();
    return nullptr;
  }
  require<GraphError>(!finished, kGraph,
                      ": weights are updated by the CPU after this handler of the previous "
                      "encode's command buffer, which was added before the encode");
  require<GraphError>(
      !work->is_open(), kGraph,
      ": weights are updated by the CPU when the command buffer of the previous "
      "encode has completed, but ",
      next && next->work() == work ? "this encode is on the same one" : "that one is not committed",
      "; commit it and use a new command buffer, or update with "
      "TrainingStyle.GPU");
  return work;
}

std::shared_ptr<Work> Graph::outstanding_work() const {
  const std::lock_guard lock(work_mutex_);
  std::shared_ptr<Work> first;
  for (const auto& work : outstanding_) {
    if (work->finished() || work->abandoned()) {
      continue;
    }
    require<GraphError>(!work->is_open(), kGraph,
                        ": a command buffer that this graph was encoded on is not committed");
    first = first ? first : work;
  }
  return first;
}

// ---- runs

// Gives a node's result its format; an image that nobody reads need not hold anything.
class GraphRun::ResultAllocator final : public ImageAllocator {
 public:
  std::shared_ptr<ImageAllocator> inner;
  ChannelFormat format = ChannelFormat::None;
  bool wanted = true;

  std::shared_ptr<ImageBatch> allocate(const std::shared_ptr<CommandBuffer>& command_buffer,
                                       const ImageDescriptor& descriptor, KernelBase& kernel,
                                       Index count, bool zeroed) override {
    ImageDescriptor own = descriptor;
    own.channel_format = format;
    return inner->allocate(command_buffer, own, kernel, count, zeroed && wanted);
  }
};

GraphRun::GraphRun(Graph& graph, Graph::Settings settings,
                   std::shared_ptr<CommandBuffer> command_buffer, bool rehearsal)
    : graph_(graph),
      settings_(std::move(settings)),
      command_buffer_(std::move(command_buffer)),
      rehearsal_(rehearsal),
      images_(graph.images_.size()),
      made_(graph.images_.size()),
      states_(graph.states_.size()),
      channel_offsets_(graph.states_.size()),
      result_allocator_(std::make_unique<ResultAllocator>()) {}

// What was made and never came to the caller goes without a word.
GraphRun::~GraphRun() {
  if (succeeded_) {
    return;
  }
  for (std::size_t i = 0; i < images_.size(); ++i) {
    if (made_[i]) {
      images_[i]->discard();
    }
  }
  for (const StateBatch& states : states_) {
    for (const auto& state : states) {
      if (state->count()) {
        state->discard();
      }
    }
  }
}

const ImageBatch::Images& GraphRun::images(int slot) const {
  return images_.at(static_cast<std::size_t>(slot))->images();
}

const StateBatch& GraphRun::states(int slot) const {
  static const StateBatch kNoStates;
  return slot == GraphStep::kNone ? kNoStates : states_.at(static_cast<std::size_t>(slot));
}

bool GraphRun::is_wanted(int slot) const {
  const GraphImage& image = graph_.images_[static_cast<std::size_t>(slot)];
  return image.reads > 0 || image.returned > 0;
}

bool GraphRun::is_temporary_state(int slot) const {
  const GraphState& state = graph_.states_[static_cast<std::size_t>(slot)];
  return state.temporary && (state.returned == 0 || settings_.output_state_is_temporary);
}

void GraphRun::set_input(int slot, const ImageBatch::Images& images) {
  images_[static_cast<std::size_t>(slot)] = std::make_shared<ImageBatch>(images);
}

void GraphRun::set_input(int slot, const StateBatch& states) {
  states_[static_cast<std::size_t>(slot)] = states;
}

ImageAllocator& GraphRun::allocator(int slot) {
  const GraphImage& image = graph_.images_[static_cast<std::size_t>(slot)];
  result_allocator_->format = image.format == ChannelFormat::None ? settings_.format : image.format;
  result_allocator_->wanted = is_wanted(slot);
  if (rehearsal_) {
    result_allocator_->inner = temporary_image_allocator();
  } else if (slot == graph_.result_) {
    result_allocator_->inner = settings_.allocator;
  } else {
    result_allocator_->inner = image.allocator ? image.allocator : temporary_image_allocator();
  }
  return *result_allocator_;
}

void GraphRun::begin_result(int slot, std::shared_ptr<ImageBatch> images) {
  const auto place = static_cast<std::size_t>(slot);
  images_[place] = std::move(images);
  made_[place] = true;
}

void GraphRun::set_result(int slot, std::shared_ptr<ImageBatch> images) {
  begin_result(slot, std::move(images));
  const auto place = static_cast<std::size_t>(slot);
  const GraphImage& image = graph_.images_[place];
  increment_read_count(images_[place]->images(), image.reads + image.returned - 1);
}

void GraphRun::set_result(int slot, StateBatch states) {
  if (slot == GraphStep::kNone) {
    return;
  }
  const auto place = static_cast<std::size_t>(slot);
  const GraphState& state = graph_.states_[place];
  states_[place] = std::move(states);
  increment_read_count(states_[place], state.reads + state.returned - 1);
}

std::vector<Index>& GraphRun::channel_offsets(int state_slot) {
  return channel_offsets_.at(static_cast<std::size_t>(state_slot));
}

std::vector<std::optional<ImageDescriptor>> GraphRun::descriptors() const {
  std::vector<std::optional<ImageDescriptor>> result(images_.size());
  for (std::size_t i = 0; i < images_.size(); ++i) {
    if (images_[i]) {
      result[i] = images_[i]->images().front()->descriptor();
    }
  }
  return result;
}

std::vector<std::shared_ptr<State>> GraphRun::first_states() const {
  std::vector<std::shared_ptr<State>> result(states_.size());
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (!states_[i].empty()) {
      result[i] = states_[i].front();
    }
  }
  return result;
}

GraphResult GraphRun::take_result() {
  graph_.last_descriptors_ = descriptors();
  const auto give = [&](int slot) {
    const auto place = static_cast<std::size_t>(slot);
    if (graph_.images_[place].synchronize) {
      synchronize(images_[place]->images(), *command_buffer_);
    }
    return images_[place];
  };
  GraphResult result;
  if (graph_.result_ != GraphStep::kNone) {
    result.result = give(graph_.result_);
  }
  for (const int slot : graph_.intermediates_) {
    result.intermediates.push_back(give(slot));
  }
  for (const int slot : graph_.result_states_) {
    const auto place = static_cast<std::size_t>(slot);
    if (graph_.states_[place].synchronize) {
      synchronize(states_[place], *command_buffer_);
    }
    result.states.push_back(states_[place]);
  }
  succeeded_ = true;
  return result;
}

}  // namespace mpsgrad
