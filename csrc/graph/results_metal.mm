// Images and states of ours around those that Apple's graph returns.
#include "graph/results_metal.hpp"

#include <algorithm>
#include <utility>

namespace mpsgrad::graph_metal {
namespace {

using metal::MetalCommandBuffer;
using metal::MetalImageStorage;
using metal::Retained;
using metal::StateAdopter;
using metal::StateAdoption;

constexpr int kNone = GraphStep::kNone;

constexpr StateAdopter (*kAdopters[])(const State&) = {
    metal::arithmetic_state_adopter,          metal::batch_normalization_state_adopter,
    metal::convolution_state_adopter,         metal::dropout_state_adopter,
    metal::group_normalization_state_adopter, metal::loss_state_adopter,
};

// States that know no more than a forward pass.
StateAdopter plain_state_adopter(const State& like) {
  const auto& ours = dynamic_cast<const GradientState&>(like);
  return [snapshot = ours.snapshot()](MPSState* made,
                                      StateAdoption& adoption) -> std::shared_ptr<State> {
    auto result = std::make_shared<GradientState>(adoption.device, adoption.owner(), snapshot);
    result->payload = adoption.payload(made);
    return result;
  };
}

class Results {
 public:
  Results(const std::shared_ptr<Device>& device, const GraphDescription& description,
          const CompiledGraph& compiled)
      : device_(device), description_(description), compiled_(compiled) {}

  GraphMade adopt(Encode& encode, const Returned& returned) const {
    // Returns how many there are of both. A failure before this one may be the cause, and counts.
    const auto listed_of = [&](NSArray* batches, const std::vector<int>& listed, const char* what) {
      encode.fail(thrown_by([&] {
        require<DeviceError>(batches.count == listed.size(), kGraph, ": MPSNNGraph returned ",
                             batches.count, " batches of ", what, ", but lists ", listed.size());
      }));
      return std::min<NSUInteger>(batches.count, listed.size());
    };
    const NSUInteger image_count =
        listed_of(returned.intermediates, compiled_.intermediate_order, "images");
    const NSUInteger state_count =
        listed_of(returned.states, compiled_.state_result_order, "states");
    GraphMade made;
    const auto take = [&](int slot, MPSImageBatch* images) {
      if (!made.images.contains(slot)) {
        made.images[slot] = adopt_images(encode, slot, images);
      }
    };
    if (description_.result != kNone) {
      require<DeviceError>(returned.result != nil, kGraph, ": the device returned no result");
      take(description_.result, returned.result);
    }
    for (NSUInteger i = 0; i < image_count; ++i) {
      const int slot = compiled_.intermediate_order[i];
      if (slot != kNone) {
        take(slot, [returned.intermediates objectAtIndex:i]);
      }
    }
    for (NSUInteger i = 0; i < state_count; ++i) {
      const int slot = compiled_.state_result_order[i];
      made.states[slot] = adopt_states(encode, slot, [returned.states objectAtIndex:i]);
    }
    // Made by allocators of ours for images that stay inside: they have been read for the last
    // time.
    for (const auto& [image, ours] : encode.given) {
      if (ReadCount* count = ours->read_count()) {
        as<MetalImageStorage>(ours->storage()).note_ended(ours->index());
        count->set(0);
        ours->after_count_change();
      }
    }
    return made;
  }

 private:
  std::shared_ptr<ImageBatch> adopt_images(Encode& encode, int slot, MPSImageBatch* images) const {
    ImageBatch::Images ours;
    for (MPSImage* image in images) {
      const auto given = encode.given.find(image);
      if (given == encode.given.end()) {
        break;
      }
      if ([image isKindOfClass:[MPSTemporaryImage class]]) {
        static_cast<MPSTemporaryImage*>(image).readCount = metal::kManyReads;
      }
      as<MetalImageStorage>(given->second->storage())
          .note_written_by_kernel(given->second->index());
      ours.push_back(given->second);
    }
    if (ours.size() != images.count) {
      ours = wrap(encode.call, slot, images);
    } else {
      for (MPSImage* image in images) {
        encode.given.erase(image);
      }
    }
    note_uses(*encode.call.command_buffer, ours, true);
    return std::make_shared<ImageBatch>(std::move(ours));
  }

  ImageBatch::Images wrap(const GraphCall& call, int slot, MPSImageBatch* images) const {
    MPSImage* first = [images objectAtIndex:0];
    ImageDescriptor descriptor = call.descriptors.at(at(slot)).value_or(ImageDescriptor());
    const auto size = [](NSUInteger value) { return static_cast<Index>(value); };
    require<DeviceError>(
        size(first.width) == descriptor.width && size(first.height) == descriptor.height &&
            size(first.featureChannels) == descriptor.feature_channels,
        kGraph, ": the device made ", description_.images[at(slot)].name, " ", first.width, "x",
        first.height, "x", first.featureChannels, ", expected ", descriptor);
    descriptor.channel_format = static_cast<ChannelFormat>(first.featureChannelFormat);
    const bool temporary = [first isKindOfClass:[MPSTemporaryImage class]];
    MetalImageStorage::Options options;
    if (temporary) {
      for (MPSImage* image in images) {
        static_cast<MPSTemporaryImage*>(image).readCount = metal::kManyReads;
      }
      options.temporaries = as<MetalCommandBuffer>(*call.command_buffer).temporaries();
    }
    const auto count = static_cast<Index>(images.count);
    const auto storage = std::make_shared<MetalImageStorage>(
        std::static_pointer_cast<metal::MetalDeviceBase>(device_), descriptor, count,
        Retained<NSArray<MPSImage*>*>::share(images), std::move(options));
    ImageBatch::Images ours;
    for (Index i = 0; i < count; ++i) {
      storage->note_written_by_kernel(i);
      if (temporary) {
        ours.push_back(
            std::make_shared<TemporaryImage>(device_, descriptor, storage, i, call.command_buffer));
      } else {
        ours.push_back(std::make_shared<Image>(device_, descriptor, storage, i));
      }
    }
    return ours;
  }

  StateBatch adopt_states(Encode& encode, int slot, MPSStateBatch* states) const {
    StateAdoption adoption;
    adoption.device = device_;
    adoption.command_buffer = encode.call.command_buffer;
    adoption.images = encode.images;
    const StateAdopter& adopter = encode.learned.adopters.at(at(slot));
    StateBatch batch;
    MPSState* previous = nil;
    for (MPSState* state in states) {
      adoption.temporary = state.isTemporary;
      batch.push_back(state == previous ? batch.back() : adopter(state, adoption));
      previous = state;
    }
    for (const auto& buffer : adoption.buffers) {
      buffer->note_use(encode.call.command_buffer->work(), true);
    }
    return batch;
  }

  const std::shared_ptr<Device>& device_;
  const GraphDescription& description_;
  const CompiledGraph& compiled_;
};

}  // namespace

StateAdopter adopter_of(const State& like) {
  for (const auto& make : kAdopters) {
    if (StateAdopter adopter = make(like)) {
      return adopter;
    }
  }
  return plain_state_adopter(like);
}

GraphMade adopt(const std::shared_ptr<Device>& device, const GraphDescription& description,
                const CompiledGraph& compiled, Encode& encode, const Returned& returned) {
  return Results(device, description, compiled).adopt(encode, returned);
}

void discard(const GraphMade& made) {
  for (const auto& [slot, images] : made.images) {
    images->discard();
  }
  for (const auto& [slot, states] : made.states) {
    for (const auto& state : states) {
      state->discard();
    }
  }
}

}  // namespace mpsgrad::graph_metal
