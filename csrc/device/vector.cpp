// Layouts, allocation and read counts of vectors and matrices.
#include "device/vector.hpp"

#include <algorithm>
#include <map>

#include "base/errors.hpp"
#include "base/memory_limits.hpp"
#include "base/warnings.hpp"

namespace mpsgrad {

std::string data_type_text(DataType type) {
  switch (type) {
    case kFloat32:
      return "float32";
    case 0x10000010U:
      return "float16";
    default:
      return text("DataType(0x", std::hex, type, ")");
  }
}

Index ArrayLayout::span() const {
  return (parts - 1) * part_bytes + (rows - 1) * row_bytes + columns * data_type_size(data_type);
}

bool ArrayLayout::packed() const {
  const Index row = columns * data_type_size(data_type);
  return (rows == 1 || row_bytes == row) && (parts == 1 || part_bytes == rows * row);
}

ArrayView float_view(std::shared_ptr<Buffer> buffer, Index offset, Index count) {
  const Index bytes = count * static_cast<Index>(sizeof(float));
  return {std::move(buffer), offset, {1, 1, count, bytes, bytes, kFloat32}};
}

namespace {

std::uintptr_t address(const ArrayView& view) {
  return view.buffer->extent().first + static_cast<std::uintptr_t>(view.offset);
}

// Whether two sets of byte runs of equal stride, `distance` apart, never touch.
bool interleave(Index stride, Index distance, Index first, Index second) {
  const Index shift = ((distance % stride) + stride) % stride;
  return shift >= first && shift + second <= stride;
}

}  // namespace

bool overlap(const ArrayView& a, const ArrayView& b) {
  // Extents of buffers that share nothing may lie closer than the buffers are long.
  const auto a_buffer = a.buffer->extent();
  const auto b_buffer = b.buffer->extent();
  if (a_buffer.first >= b_buffer.second || b_buffer.first >= a_buffer.second) {
    return false;
  }
  const std::uintptr_t first = address(a);
  const std::uintptr_t second = address(b);
  if (first >= second + static_cast<std::uintptr_t>(b.layout.span()) ||
      second >= first + static_cast<std::uintptr_t>(a.layout.span())) {
    return false;
  }
  const auto distance = static_cast<Index>(second) - static_cast<Index>(first);
  const auto row = [](const ArrayLayout& layout) {
    return layout.columns * data_type_size(layout.data_type);
  };
  const auto part = [&](const ArrayLayout& layout) {
    return (layout.rows - 1) * layout.row_bytes + row(layout);
  };
  // Columns of one matrix, or parts of one sequence: the strides keep them apart.
  const bool rows_apart = a.layout.parts == 1 && b.layout.parts == 1 &&
                          a.layout.row_bytes == b.layout.row_bytes &&
                          interleave(a.layout.row_bytes, distance, row(a.layout), row(b.layout));
  const bool parts_apart =
      a.layout.part_bytes == b.layout.part_bytes &&
      interleave(a.layout.part_bytes, distance, part(a.layout), part(b.layout));
  return !rows_apart && !parts_apart;
}

bool identical(const ArrayView& a, const ArrayView& b) {
  const ArrayLayout& x = a.layout;
  const ArrayLayout& y = b.layout;
  return address(a) == address(b) && x.same_shape(y) && x.data_type == y.data_type &&
         (x.rows == 1 || x.row_bytes == y.row_bytes) &&
         (x.parts == 1 || x.part_bytes == y.part_bytes);
}

namespace {

Index item_of(DataType type, const char* who) {
  const Index item = data_type_size(type);
  require(item > 0, who, ": data_type must have elements of whole bytes, got ",
          data_type_text(type));
  return item;
}

void check_extent(const char* who, const char* name, Index value) {
  require(value >= 1, who, ": ", name, " must be at least 1, got ", value);
}

// Bytes of so many items, rows or parts.
Index bytes_of(const char* who, const char* name, Index count, Index each) {
  require(count <= kMostBytes / each, who, ": ", name, " ", count, " of ", each, " bytes",
          kBeyondMemory);
  return count * each;
}

// The stride that was asked for, or the smallest one.
Index check_stride(const char* who, const char* name, Index value, Index smallest, Index unit) {
  if (value == 0) {
    return smallest;
  }
  require(value >= smallest && value % unit == 0, who, ": ", name, " must be a multiple of ", unit,
          " and at least ", smallest, ", got ", value);
  return value;
}

}  // namespace

ArrayLayout VectorDescriptor::layout(const char* who) const {
  const Index item = item_of(data_type, who);
  check_extent(who, "length", length);
  check_extent(who, "vectors", vectors);
  const Index smallest = bytes_of(who, "length", length, item);
  const Index stride = check_stride(who, "vector_bytes", vector_bytes, smallest, item);
  bytes_of(who, "vectors", vectors, stride);
  return {vectors, 1, length, stride, stride, data_type};
}

ArrayLayout MatrixDescriptor::layout(const char* who) const {
  const Index item = item_of(data_type, who);
  check_extent(who, "rows", rows);
  check_extent(who, "columns", columns);
  check_extent(who, "matrices", matrices);
  const Index narrowest = bytes_of(who, "columns", columns, item);
  const Index row = check_stride(who, "row_bytes", row_bytes, narrowest, item);
  const Index smallest = bytes_of(who, "rows", rows, row);
  const Index part = check_stride(who, "matrix_bytes", matrix_bytes, smallest, row);
  bytes_of(who, "matrices", matrices, part);
  return {matrices, rows, columns, row, part, data_type};
}

DeviceArray::DeviceArray(const char* class_name, std::shared_ptr<Buffer> buffer, Index offset,
                         const ArrayLayout& layout)
    : buffer_(std::move(buffer)), offset_(offset), layout_(layout) {
  require<TypeError>(buffer_ != nullptr, class_name, ": buffer must be a Buffer, got None");
  device_ = buffer_->device();
  const Index item = data_type_size(layout.data_type);
  require(offset >= 0 && offset % item == 0, class_name, ": offset must be a multiple of ", item,
          " and not negative, got ", offset);
  const Index needed = layout.span();
  require(offset <= static_cast<Index>(buffer_->size()) - needed, class_name, ": ", layout,
          " needs ", needed, " bytes from offset ", offset, " on, but the buffer has ",
          buffer_->size());
}

DeviceArray::DeviceArray(const char* class_name, const std::shared_ptr<CommandBuffer>& owner,
                         const ArrayLayout& layout)
    : device_(owner->device()), layout_(layout) {
  owner->require_encodable(class_name);
  count_.emplace(owner, class_name);
}

DeviceArray::~DeviceArray() {
  if (count_ && count_->value() > 0) {
    warn(WarningKind::Resource,
         text("temporary vector or matrix ", layout_, " was dropped with read count ",
              count_->value(), "; every read must happen, or set read_count to 0"));
  }
}

const std::shared_ptr<Buffer>& DeviceArray::data() {
  if (count_) {
    const auto owner = count_->owner();
    require<ReadCountError>(owner && count_->value() > 0, class_name(),
                            ": read count is 0, its contents are gone");
    if (!buffer_) {
      buffer_ = device_->make_temporary_buffer(*owner, static_cast<std::size_t>(layout_.span()));
    }
  } else if (!buffer_) {
    buffer_ = device_->make_buffer(static_cast<std::size_t>(layout_.span()));
  }
  return buffer_;
}

void DeviceArray::synchronize(CommandBuffer& command_buffer) {
  require(command_buffer.device() == device_, class_name(),
          ": synchronize() on a command buffer of another device");
  command_buffer.require_encodable("synchronize()");
  if (buffer_) {
    buffer_->synchronize(command_buffer);
    command_buffer.note_encoded();
  }
}

void DeviceArray::set_read_count(Index value) {
  require<std::runtime_error>(count_.has_value(), class_name(),
                              ": only temporary objects have a read count to set");
  count_->set(value);
  if (value == 0) {
    buffer_.reset();
  }
}

void DeviceArray::add_read_count(Index amount) {
  count_->add(amount);
  if (count_->value() == 0) {
    buffer_.reset();
  }
}

void DeviceArray::require_usable(const char* who, const CommandBuffer& command_buffer) const {
  require(command_buffer.device() == device_, who, ": this ", class_name(),
          " is on another device");
  if (count_) {
    count_->require_usable(who, command_buffer);
  }
}

namespace {

std::map<DeviceArray*, Index> reads_of(const DeviceArrays& arrays) {
  std::map<DeviceArray*, Index> reads;
  for (const auto& array : arrays) {
    if (array->read_count()) {
      ++reads[array.get()];
    }
  }
  return reads;
}

}  // namespace

void check_reads(const DeviceArrays& arrays) {
  for (const auto& [array, reads] : reads_of(arrays)) {
    array->read_count()->require_addable(-reads);
  }
}

void spend_reads(const DeviceArrays& arrays) {
  for (const auto& [array, reads] : reads_of(arrays)) {
    array->add_read_count(-reads);
  }
}

std::ostream& operator<<(std::ostream& out, const ArrayLayout& layout) {
  if (layout.parts > 1) {
    out << layout.parts << " x ";
  }
  out << "(";
  if (layout.rows > 1) {
    out << layout.rows << ", " << layout.columns;
  } else {
    out << layout.columns << ",";
  }
  return out << ") " << data_type_text(layout.data_type);
}

}  // namespace mpsgrad
