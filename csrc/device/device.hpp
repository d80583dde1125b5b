// A device: where memory comes from, where work is queued, and one accessor per kernel family, null
// where the device has none. Everything that checks arguments is written against this header;
// csrc/cpu and csrc/metal implement it.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "device/image_descriptor.hpp"

namespace mpsgrad {

class Buffer;
class CommandBuffer;
class CommandQueue;
class ImageStorage;

class ArithmeticBackend;
class BatchNormalizationBackend;
class ConvolutionBackend;
class DropoutBackend;
class GramMatrixBackend;
class GroupNormalizationBackend;
class LocalNormalizationBackend;
class LossBackend;
class NeuronBackend;
class OptimizerBackend;
class PoolingBackend;
class ReductionBackend;
class ReshapeBackend;
class ResizeBackend;
class SoftMaxBackend;
class UpsamplingBackend;

// Memory that somebody else owns and lends for as long as `owner` lives.
struct LentMemory {
  void* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> owner;
  bool read_only = false;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  virtual ~Device() = default;

  virtual std::string kind() const = 0;  // "cpu" or "metal"
  virtual std::string name() const = 0;  // for people: "avx512, 2 threads", "Apple M3"
  virtual std::shared_ptr<CommandQueue> make_queue() = 0;

  // `count` images of one descriptor, in one allocation where the device can. `zeroed`: contents
  // are 0, else undefined.
  virtual std::shared_ptr<ImageStorage> make_images(const ImageDescriptor&, Index count,
                                                    bool zeroed) = 0;
  virtual std::shared_ptr<ImageStorage> make_temporary_images(CommandBuffer&,
                                                              const ImageDescriptor&, Index count,
                                                              bool zeroed) = 0;
  // A dense NHWC array of `count` images: used in place where the device can (then `lent` is kept),
  // else copied.
  virtual std::shared_ptr<ImageStorage> images_from_memory(const ImageDescriptor&, Index count,
                                                           LentMemory lent) = 0;
  virtual std::shared_ptr<Buffer> make_buffer(std::size_t bytes) = 0;  // zeroed
  virtual std::shared_ptr<Buffer> make_temporary_buffer(CommandBuffer&, std::size_t bytes) = 0;
  // So many float32 numbers, zeroed; null: not temporary.
  std::shared_ptr<Buffer> make_floats(Index count, CommandBuffer* temporary) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
    return temporary ? make_temporary_buffer(*temporary, bytes) : make_buffer(bytes);
  }
  virtual std::shared_ptr<Buffer> buffer_from_memory(
      LentMemory lent) = 0;  // in place where the device can
  // Encodes a copy of the first `bytes` bytes, which both buffers have.
  virtual void copy_buffer(CommandBuffer&, const std::shared_ptr<Buffer>& from,
                           const std::shared_ptr<Buffer>& to, std::size_t bytes) = 0;

  virtual const ArithmeticBackend* arithmetic() const { return nullptr; }
  virtual const ConvolutionBackend* convolution() const { return nullptr; }
  virtual const DropoutBackend* dropout() const { return nullptr; }
  virtual const GramMatrixBackend* gram_matrix() const { return nullptr; }
  virtual const GroupNormalizationBackend* group_normalization() const { return nullptr; }
  virtual const LocalNormalizationBackend* local_normalization() const { return nullptr; }
  virtual const LossBackend* loss() const { return nullptr; }
  virtual const NeuronBackend* neuron() const { return nullptr; }
  virtual const OptimizerBackend* optimizer() const { return nullptr; }
  virtual const PoolingBackend* pooling() const { return nullptr; }
  virtual const ReductionBackend* reduction() const { return nullptr; }
  virtual const ReshapeBackend* reshape() const { return nullptr; }
  virtual const ResizeBackend* resize() const { return nullptr; }
  virtual const SoftMaxBackend* softmax() const { return nullptr; }
  virtual const UpsamplingBackend* upsampling() const { return nullptr; }
  virtual const BatchNormalizationBackend* batch_normalization() const { return nullptr; }
};

// devices.cpp: "cpu", "metal", or "" for metal where there is a supported GPU, else cpu. Throws
// DeviceError where the build or the machine has no such device.
std::shared_ptr<Device> find_device(const std::string& kind);

// Waits for everything committed on any device, and drops what devices keep for themselves: for the
// end of the process.
void drain_all_devices();

// Downcast to the device's own class; throws std::invalid_argument if the object belongs to another
// device.
template <class Own, class Base>
Own& as(Base& object) {
  if (auto* own = dynamic_cast<Own*>(&object)) {
    return *own;
  }
  throw std::invalid_argument("object belongs to another device");
}

}  // namespace mpsgrad
