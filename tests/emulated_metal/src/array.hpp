// Vectors and matrices: where element (u, r, c) lies.
#pragma once
#include "internal.hpp"

namespace emulated_metal {

// A vector is a matrix of one row.
struct ArrayBody {
  NSUInteger count = 1, rows = 1, columns = 0, row_bytes = 0, array_bytes = 0, offset = 0;
  MPSDataType type = MPSDataTypeFloat32;
  Strong<id<MTLDevice>> device;
  Strong<id<MTLBuffer>> buffer;  // nil until needed
  bool temporary = false;
  const void* lineage = nullptr;
  Strong<id<MTLCommandBuffer>> command_buffer;
  NSUInteger read_count = 0;

  NSUInteger bytes() const;  // from the offset to the end of the last element
  bool same_shape(const ArrayBody& other) const {
    return count == other.count && rows == other.rows && columns == other.columns;
  }
};

// Body of an MPSVector or MPSMatrix, allocated; nullptr for nil.
ArrayBody* array_of(id vector_or_matrix, const Where& where);
void check_array(id array, id<MTLCommandBuffer> command_buffer, const Where& where);
void decrement_array(id array, const Where& where);

}  // namespace emulated_metal
