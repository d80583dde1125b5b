// GradientState (MPSNNGradientState): a forward kernel's configuration, kept for the gradient
// kernel, plus whatever the device needs to keep beside it.
#pragma once

#include <memory>
#include <string>
#include <vector>

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
  std::vector<double> extra;  // of the family: zero padding, ...
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

class GradientState : public State {
 public:
  // `temporary` is the command buffer of a temporary state, null for an ordinary one.
  GradientState(std::shared_ptr<Device> device, const std::shared_ptr<CommandBuffer>& temporary,
                ForwardSnapshot snapshot)
      : State(std::move(device), temporary, ResourceList{}), snapshot_(std::move(snapshot)) {
    count_without_resources();
  }

  const char* class_name() const override { return "GradientState"; }
  const ForwardSnapshot& snapshot() const { return snapshot_; }

  std::shared_ptr<StatePayload> payload;

 protected:
  void release_contents() override {
    State::release_contents();
    if (payload) {
      payload->end();
    }
  }
  ForwardSnapshot& own_snapshot() { return snapshot_; }  // for states that outlive one batch

 private:
  ForwardSnapshot snapshot_;
};

}  // namespace mpsgrad
