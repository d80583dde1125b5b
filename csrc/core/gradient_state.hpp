// GradientState and BinaryGradientState (MPSNNGradientState, MPSNNBinaryGradientState): a forward
// kernel's configuration, kept for the gradient kernel, plus whatever the device needs to keep
// beside it.
#pragma once

#include <memory>

#include "core/family_settings.hpp"
#include "device/state.hpp"

namespace mpsgrad {

class KernelBase;
class Padding;

// Settable and fixed properties of a unary kernel that decide what an encode computes.
struct UnaryProperties {
  Offset offset;
  Region clip_rect;
  Index destination_channel_offset = 0;
  Index source_channel_offset = 0;
  Index source_channel_maximum = kUnlimited;
  EdgeMode edge_mode = EdgeMode::Zero;
  Window window;
  FamilySettings settings;  // zero padding, ...
  bool operator==(const UnaryProperties&) const = default;
};

struct ForwardSnapshot {
  const char* kernel_class = "";
  UnaryProperties properties;
  Index source_width = 0, source_height = 0, source_channels = 0;
  Index consumed_channels = 0;
  Index produced_channels = 0;
  Region clip;  // effective
  Index destination_width = 0, destination_height = 0, destination_channels = 0;
  bool is_backwards = false;
  std::shared_ptr<const Padding> padding;
};

// What a device keeps inside a gradient state: on Metal, Apple's own state object.
class StatePayload {
 public:
  virtual ~StatePayload() = default;
  // The read count of a temporary state fell to 0: nobody uses it any more.
  virtual void end() {}
};

// A state that a forward encode fills, and the gradient kernel reads.
class ForwardState : public State {
 public:
  // `temporary` is the command buffer of a temporary state, null for an ordinary one.
  ForwardState(std::shared_ptr<Device> device, const std::shared_ptr<CommandBuffer>& temporary)
      : State(std::move(device), temporary, ResourceList{}) {
    count_without_resources();
  }

  std::shared_ptr<StatePayload> payload;

 protected:
  void release_contents() override {
    State::release_contents();
    if (payload) {
      payload->end();
    }
  }
};

class GradientState : public ForwardState {
 public:
  GradientState(std::shared_ptr<Device> device, const std::shared_ptr<CommandBuffer>& temporary,
                ForwardSnapshot snapshot)
      : ForwardState(std::move(device), temporary), snapshot_(std::move(snapshot)) {}

  const char* class_name() const override { return "GradientState"; }
  const ForwardSnapshot& snapshot() const { return snapshot_; }

 protected:
  ForwardSnapshot& own_snapshot() { return snapshot_; }  // for states that outlive one batch

 private:
  ForwardSnapshot snapshot_;
};

// What a binary kernel knows about one of its sources.
struct SourceProperties {
  Offset offset;
  Index channel_offset = 0;
  Index channel_maximum = kUnlimited;
  EdgeMode edge_mode = EdgeMode::Zero;
  Window window;  // strides may be set, the rest is fixed by the subclass
  bool operator==(const SourceProperties&) const = default;
};

struct BinaryProperties {
  SourceProperties primary;
  SourceProperties secondary;
  Region clip_rect;
  Index destination_channel_offset = 0;
  Index kernel_offset_x = 0;  // gradient kernels: in the zero-inserted gradient
  Index kernel_offset_y = 0;
  FamilySettings settings;
  bool operator==(const BinaryProperties&) const = default;
  const SourceProperties& source(bool second) const { return second ? secondary : primary; }
};

struct BinarySnapshot {
  struct Source {
    Index width = 0, height = 0, channels = 0;
    Index consumed_channels = 0;
    bool operator==(const Source&) const = default;
  };
  const char* kernel_class = "";
  BinaryProperties properties;
  Source primary, secondary;
  Index produced_channels = 0;
  Region clip;  // effective
  Index destination_width = 0, destination_height = 0, destination_channels = 0;
  bool is_backwards = false;
  std::shared_ptr<const Padding> padding;
  const Source& source(bool second) const { return second ? secondary : primary; }
};

class BinaryGradientState : public ForwardState {
 public:
  BinaryGradientState(std::shared_ptr<Device> device,
                      const std::shared_ptr<CommandBuffer>& temporary, BinarySnapshot snapshot)
      : ForwardState(std::move(device), temporary), snapshot_(std::move(snapshot)) {}

  const char* class_name() const override { return "BinaryGradientState"; }
  const BinarySnapshot& snapshot() const { return snapshot_; }

 private:
  BinarySnapshot snapshot_;
};

}  // namespace mpsgrad
