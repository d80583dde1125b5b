// Vector, Matrix and their temporary forms (MPSVector, MPSMatrix, MPSTemporaryVector,
// MPSTemporaryMatrix): arrays of numbers over a buffer, with strides of their own.
#pragma once

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "device/buffer.hpp"
#include "device/device.hpp"
#include "device/read_count.hpp"

namespace mpsgrad {

// MPSDataType: the low 16 bits are the width of an element in bits.
using DataType = std::uint32_t;
inline constexpr DataType kFloat32 = 0x10000020U;
constexpr Index data_type_size(DataType type) { return static_cast<Index>((type & 0xFFFFU) >> 3U); }
std::string data_type_text(DataType type);  // "float32", "DataType(0x...)"

// `parts` arrays of rows x columns elements. Element (r, c) of part u lies at byte
// u * part_bytes + r * row_bytes + c * item.
struct ArrayLayout {
  Index parts = 1, rows = 1, columns = 1;
  Index row_bytes = 0, part_bytes = 0;
  DataType data_type = kFloat32;

  bool operator==(const ArrayLayout&) const = default;
  bool same_shape(const ArrayLayout& other) const {
    return parts == other.parts && rows == other.rows && columns == other.columns;
  }
  Index span() const;   // bytes from the first element to the end of the last
  bool packed() const;  // the elements follow each other without gaps
};

// Part of a buffer that holds numbers: what kernels over vectors, matrices and states work on.
struct ArrayView {
  std::shared_ptr<Buffer> buffer;
  Index offset = 0;  // bytes
  ArrayLayout layout;
};

// `count` float32 numbers in a row.
ArrayView float_view(std::shared_ptr<Buffer> buffer, Index offset, Index count);
// Whether some byte belongs to an element of both; never false wrongly.
bool overlap(const ArrayView& a, const ArrayView& b);
// Whether they are the same elements in the same order.
bool identical(const ArrayView& a, const ArrayView& b);

// MPSVectorDescriptor, MPSMatrixDescriptor. Strides of 0 stand for those of gapless data.
struct VectorDescriptor {
  Index length = 1;
  Index vectors = 1;
  Index vector_bytes = 0;
  DataType data_type = kFloat32;
  bool operator==(const VectorDescriptor&) const = default;
  // Fills in the stride; throws std::invalid_argument, naming `who`, unless every field is in
  // range.
  ArrayLayout layout(const char* who) const;
};

struct MatrixDescriptor {
  Index rows = 1, columns = 1;
  Index matrices = 1;
  Index row_bytes = 0, matrix_bytes = 0;
  DataType data_type = kFloat32;
  bool operator==(const MatrixDescriptor&) const = default;
  ArrayLayout layout(const char* who) const;
};

// What vectors and matrices share.
class DeviceArray {
 public:
  virtual ~DeviceArray();
  virtual const char* class_name() const = 0;

  const std::shared_ptr<Device>& device() const { return device_; }
  const ArrayLayout& layout() const { return layout_; }
  Index offset() const { return offset_; }
  const std::shared_ptr<Buffer>& data();  // allocates; throws if this is a spent temporary
  ArrayView view() { return {data(), offset_, layout_}; }
  void synchronize(CommandBuffer& command_buffer);

  ReadCount* read_count() { return count_ ? &*count_ : nullptr; }
  void set_read_count(Index value);
  void add_read_count(Index amount);
  // Throws unless work on `command_buffer` can use it.
  void require_usable(const char* who, const CommandBuffer& command_buffer) const;

  std::string label;

 protected:
  // Allocated when first needed.
  DeviceArray(std::shared_ptr<Device> device, const ArrayLayout& layout)
      : device_(std::move(device)), layout_(layout) {}
  DeviceArray(const char* class_name, std::shared_ptr<Buffer> buffer, Index offset,
              const ArrayLayout& layout);
  DeviceArray(const char* class_name, const std::shared_ptr<CommandBuffer>& owner,
              const ArrayLayout& layout);

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<Buffer> buffer_;
  Index offset_ = 0;
  ArrayLayout layout_;
  std::optional<ReadCount> count_;  // only of temporaries
};

class Vector : public DeviceArray {
 public:
  Vector(std::shared_ptr<Device> device, const VectorDescriptor& descriptor)
      : DeviceArray(std::move(device), descriptor.layout("Vector")) {}
  Vector(std::shared_ptr<Buffer> buffer, Index offset, const VectorDescriptor& descriptor)
      : DeviceArray("Vector", std::move(buffer), offset, descriptor.layout("Vector")) {}
  const char* class_name() const override { return "Vector"; }

 protected:
  Vector(const std::shared_ptr<CommandBuffer>& owner, const VectorDescriptor& descriptor)
      : DeviceArray("TemporaryVector", owner, descriptor.layout("TemporaryVector")) {}
};

class Matrix : public DeviceArray {
 public:
  Matrix(std::shared_ptr<Device> device, const MatrixDescriptor& descriptor)
      : DeviceArray(std::move(device), descriptor.layout("Matrix")) {}
  Matrix(std::shared_ptr<Buffer> buffer, Index offset, const MatrixDescriptor& descriptor)
      : DeviceArray("Matrix", std::move(buffer), offset, descriptor.layout("Matrix")) {}
  const char* class_name() const override { return "Matrix"; }

 protected:
  Matrix(const std::shared_ptr<CommandBuffer>& owner, const MatrixDescriptor& descriptor)
      : DeviceArray("TemporaryMatrix", owner, descriptor.layout("TemporaryMatrix")) {}
};

// Of one command buffer, with a read count that starts at 1.
class TemporaryVector final : public Vector {
 public:
  TemporaryVector(const std::shared_ptr<CommandBuffer>& owner, const VectorDescriptor& descriptor)
      : Vector(owner, descriptor) {}
  const char* class_name() const override { return "TemporaryVector"; }
};

class TemporaryMatrix final : public Matrix {
 public:
  TemporaryMatrix(const std::shared_ptr<CommandBuffer>& owner, const MatrixDescriptor& descriptor)
      : Matrix(owner, descriptor) {}
  const char* class_name() const override { return "TemporaryMatrix"; }
};

using DeviceArrays = std::vector<std::shared_ptr<DeviceArray>>;

// One read of each entry, so two for an object that stands there twice; objects without a count are
// left out. check_reads throws ReadCountError and changes nothing if some count is too low.
void check_reads(const DeviceArrays& arrays);
void spend_reads(const DeviceArrays& arrays);

// "(5,) float32" or "(2, 5) float32", with "3 x " in front of several.
std::ostream& operator<<(std::ostream& out, const ArrayLayout& layout);

}  // namespace mpsgrad
