// Rules of the states that carry arrays into normalization kernels.
#include "core/normalization_states.hpp"

#include <cstring>

#include "base/errors.hpp"
#include "core/kernel.hpp"

namespace mpsgrad {
namespace {

constexpr Index kFloat = sizeof(float);

ResourceList two_arrays(const char* who, Index channels) {
  require(channels >= 1 && channels <= 4 * kMaximumImageSlices, who,
          ": number_of_feature_channels must be between 1 and ", 4 * kMaximumImageSlices, ", got ",
          channels);
  ResourceList list;
  list.append_buffer(channels * kFloat);
  list.append_buffer(channels * kFloat);
  return list;
}

const std::shared_ptr<Device>& device_of(const char* who, const char* name,
                                         const std::shared_ptr<Buffer>& buffer) {
  require<TypeError>(buffer != nullptr, who, ": ", name, " must not be None");
  return buffer->device();
}

}  // namespace

NormalizationPairState::NormalizationPairState(const char* who, const char* first_name,
                                               const char* second_name,
                                               std::shared_ptr<Buffer> first,
                                               std::shared_ptr<Buffer> second)
    : State(device_of(who, first_name, first), ResourceList{}),
      channels_(static_cast<Index>(first->size()) / kFloat) {
  require(device_of(who, second_name, second) == device(), who, ": ", second_name,
          " is on another device than ", first_name);
  require(first->size() == second->size(), who, ": ", first_name, " and ", second_name,
          " must have equal lengths, got ", first->size() / sizeof(float), " and ",
          second->size() / sizeof(float));
  require(channels_ >= 1, who, ": ", first_name, " must not be empty");
  add_resource(std::move(first));
  add_resource(std::move(second));
}

NormalizationPairState::NormalizationPairState(const char* who,
                                               const std::shared_ptr<CommandBuffer>& command_buffer,
                                               Index channels)
    : State(command_buffer, two_arrays(who, channels)), channels_(channels) {}

void NormalizationPairState::require_channels(const char* who, Index channels) const {
  require(channels_ >= channels, who, ": the ", class_name(), " holds ", channels_,
          " values an array, but the kernel has ", channels, " channels");
}

std::shared_ptr<Buffer> NormalizationPair::with(const std::vector<float>& values) const {
  auto buffer = device_->make_buffer(values.size() * sizeof(float));
  std::memcpy(buffer->for_writing(), values.data(), values.size() * sizeof(float));
  return buffer;
}

std::shared_ptr<Buffer> NormalizationPair::filled(float value) const {
  return with(std::vector<float>(static_cast<std::size_t>(channels_), value));
}

void NormalizationPair::set(const Values& first, const Values& second) {
  auto new_first = first ? with(*first) : nullptr;
  second_ = second ? with(*second) : nullptr;
  first_ = std::move(new_first);
}

void NormalizationPair::check_reload(const KernelBase& kernel, const CommandBuffer& command_buffer,
                                     const std::shared_ptr<NormalizationPairState>& state) const {
  const char* who = kernel.class_name();
  command_buffer.require_encodable_on(device_, who);
  require<TypeError>(state != nullptr, who, ": state must not be None");
  state->require_usable(who, command_buffer);
  state->require_channels(who, channels_);
}

void NormalizationPair::encode_copies(CommandBuffer& command_buffer, NormalizationPairState& state,
                                      const std::shared_ptr<Buffer>& first,
                                      const std::shared_ptr<Buffer>& second) {
  const auto copy = [&](const std::shared_ptr<Buffer>& from, const std::shared_ptr<Buffer>& to) {
    device_->copy_buffer(command_buffer, from, to, static_cast<std::size_t>(channels_ * kFloat));
    from->note_use(command_buffer.work(), false);
    to->note_use(command_buffer.work(), true);
  };
  copy(state.first(), first);
  copy(state.second(), second);
  first_ = first;
  second_ = second;
  command_buffer.note_encoded();
  state.spend_read();
}

}  // namespace mpsgrad
