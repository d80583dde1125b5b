// States: lazy resources, read counts, array functions.
#include "device/state.hpp"

#include <unordered_set>

#include "base/memory_limits.hpp"
#include "base/warnings.hpp"

namespace mpsgrad {

Index TextureInfo::bytes() const {
  return width * height * depth * array_length * bytes_of_pixel_format(pixel_format);
}

void ResourceList::append_buffer(Index size) {
  require(size > 0, "ResourceList: buffer size must be positive, got ", size);
  require(size <= kMostBytes, "ResourceList: buffer size must be at most ", kMostBytes, ", got ",
          size);
  buffers_.push_back(size);
}

State::State(std::shared_ptr<Device> device, const ResourceList& resources)
    : device_(std::move(device)) {
  for (const TextureInfo& texture : resources.textures()) {
    const auto sane = [](Index extent, Index most) { return extent >= 1 && extent <= most; };
    require(sane(texture.width, kMaximumImageSide) && sane(texture.height, kMaximumImageSide) &&
                sane(texture.depth, kMaximumImageSlices) &&
                sane(texture.array_length, kMaximumImageSlices),
            "State: a texture must have sides of 1 to ", kMaximumImageSide,
            " and a depth and array length of 1 to ", kMaximumImageSlices);
    require(texture.bytes() > 0, "State: a texture needs a known pixel format, got ",
            texture.pixel_format);
    require(texture.bytes() <= kMostBytes, "State: a texture of ", texture.bytes(), " bytes: these",
            kBeyondMemory);
    resources_.push_back({texture, nullptr});
  }
  for (const Index size : resources.buffers()) {
    resources_.push_back({size, nullptr});
  }
}

State::State(std::shared_ptr<Device> device, const std::shared_ptr<CommandBuffer>& temporary,
             const ResourceList& resources)
    : State(std::move(device), resources) {
  if (temporary) {
    temporary->require_encodable("State");
    count_.emplace(temporary, "temporary State");
  }
}

State::State(const std::shared_ptr<CommandBuffer>& command_buffer, const ResourceList& resources)
    : State(command_buffer->device(), command_buffer, resources) {}

State::State(std::shared_ptr<Device> device, std::shared_ptr<Buffer> buffer)
    : device_(std::move(device)) {
  require(buffer->device() == device_, class_name(), ": the buffer is on another device");
  resources_.push_back({static_cast<Index>(buffer->size()), std::move(buffer)});
}

State::~State() {
  if (State::is_temporary() && count_->value() > 0 && !discarded_) {
    warn(WarningKind::Resource,
         text("temporary State was dropped with read count ", count_->value(),
              "; every read must happen, or set read_count to 0"));
  }
}

void State::add_resource(std::shared_ptr<Buffer> buffer) {
  const auto size = static_cast<Index>(buffer->size());
  resources_.push_back({size, std::move(buffer)});
}

void State::set_read_count(Index value) {
  require<std::runtime_error>(count_.has_value(), class_name(),
                              ": only temporary states have a read count to set");
  count_->set(value);
  if (value == 0) {
    release_contents();
  }
}

void State::add_read_count(Index amount) {
  count_->add(amount);
  if (count_->value() == 0) {
    release_contents();
  }
}

void State::require_usable(const char* who, const CommandBuffer& command_buffer) const {
  require(command_buffer.device() == device_, who, ": this ", class_name(),
          " is on another device");
  if (count_) {
    count_->require_usable(who, command_buffer);
  }
}

void State::spend_read() {
  if (count_) {
    add_read_count(-1);
  }
}

const State::Resource& State::at(Index index) const {
  require<std::out_of_range>(index >= 0 && index < resource_count(), class_name(), ": resource ",
                             index, " is outside a state with ", resource_count());
  return resources_[static_cast<std::size_t>(index)];
}

StateResourceType State::resource_type_at(Index index) const {
  return std::holds_alternative<Index>(at(index).what) ? StateResourceType::Buffer
                                                       : StateResourceType::Texture;
}

Index State::buffer_size_at(Index index) const {
  const auto* size = std::get_if<Index>(&at(index).what);
  return size ? *size : 0;
}

TextureInfo State::texture_info_at(Index index) const {
  const auto* info = std::get_if<TextureInfo>(&at(index).what);
  return info ? *info : TextureInfo{};
}

Index State::bytes_of(const Resource& resource) const {
  const auto* size = std::get_if<Index>(&resource.what);
  return size ? *size : std::get<TextureInfo>(resource.what).bytes();
}

std::shared_ptr<Buffer> State::resource_at(Index index, bool allocate) {
  at(index);
  Resource& resource = resources_[static_cast<std::size_t>(index)];
  if (!resource.storage && allocate) {
    const auto bytes = static_cast<std::size_t>(bytes_of(resource));
    if (count_) {
      const auto owner = count_->owner();
      require<ReadCountError>(owner && count_->value() > 0, class_name(),
                              ": read count is 0, its contents are gone");
      owner->require_encodable(class_name());
      resource.storage = device_->make_temporary_buffer(*owner, bytes);
    } else {
      resource.storage = device_->make_buffer(bytes);
    }
  }
  return resource.storage;
}

Index State::resource_size() const {
  Index total = 0;
  for (const Resource& resource : resources_) {
    total = add_sizes(total, bytes_of(resource));
  }
  return total;
}

void State::synchronize(CommandBuffer& command_buffer) {
  require(command_buffer.device() == device_, class_name(),
          ": synchronize() on a command buffer of another device");
  command_buffer.require_encodable("synchronize()");
  for (const Resource& resource : resources_) {
    if (resource.storage) {
      resource.storage->synchronize(command_buffer);
      command_buffer.note_encoded();
    }
  }
}

void State::release_contents() {
  for (Resource& resource : resources_) {
    resource.storage.reset();
  }
}

namespace {

template <class Act>
Index each_distinct(const StateBatch& states, const Act& act) {
  std::unordered_set<const State*> seen;
  const State* previous = nullptr;
  for (const auto& state : states) {  // often one and the same
    if (state.get() != previous && seen.insert(state.get()).second) {
      act(*state);
    }
    previous = state.get();
  }
  return static_cast<Index>(seen.size());
}

}  // namespace

Index increment_read_count(const StateBatch& states, Index amount) {
  const auto live = [](State& state) { return state.count() && state.count()->value() > 0; };
  each_distinct(states, [&](State& state) {
    if (live(state)) {
      state.count()->require_addable(amount);
    }
  });
  return each_distinct(states, [&](State& state) {
    if (live(state)) {
      state.add_read_count(amount);
    }
  });
}

Index resource_size(const StateBatch& states) {
  Index total = 0;
  each_distinct(states, [&](State& state) { total = add_sizes(total, state.resource_size()); });
  return total;
}

void synchronize(const StateBatch& states, CommandBuffer& command_buffer) {
  each_distinct(states, [&](State& state) { state.synchronize(command_buffer); });
}

}  // namespace mpsgrad
