// Questions to the framework behind a device: what its own classes answer where Apple's
// documentation is silent. `mpsgrad probe` prints the answers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "device/device.hpp"

namespace mpsgrad {

struct ProbedDescriptor {
  std::string kernel;  // Apple's class
  ImageDescriptor result;
  Offset offset;  // that the kernel has afterwards; (0, 0, 0) of gradient kernels
};

// Stateless: one const instance serves all threads.
class Prober {
 public:
  virtual ~Prober() = default;
  // A max pooling `kernel` pixels wide and one high, of a source `width` pixels wide and one high.
  virtual ProbedDescriptor pooling_descriptor(Device& device, Index width, Index kernel,
                                              Index stride, Index padding_method) const = 0;
  // What each kernel, and after it its gradient, makes of a source of 5x5x4.
  virtual std::vector<ProbedDescriptor> descriptors(Device& device, ChannelFormat format,
                                                    Index destination_channel_offset) const = 0;
  // Reads that an encode counts on a temporary image that is both of its sources.
  virtual Index reads_of_shared_source(Device& device) const = 0;
  // By how much an Adam's time step grows with one encode of weights and biases.
  virtual Index steps_of_state_encode(Device& device) const = 0;
  // Every property of an average pooling, and whether it was kept by an archive.
  virtual std::vector<std::pair<std::string, bool>> archived_properties(Device& device) const = 0;
};

// devices.cpp: null where there is no framework behind the device.
const Prober* find_prober(const Device& device);

}  // namespace mpsgrad
