// The Metal device as plain C++ sees it: whether there is one.
#pragma once

#include <memory>

#include "device/device.hpp"

namespace mpsgrad::metal {

// Null where there is no GPU that MetalPerformanceShaders supports. The same object every time.
std::shared_ptr<Device> find_metal_device();

// Waits for everything that Metal has been given, and drops what the device keeps for itself.
void drain();

}  // namespace mpsgrad::metal
