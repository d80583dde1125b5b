// Sums of column_sums.hpp in every width of vector that it can be asked for, compiled for every
// instruction set as the library's own loops are.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"

namespace mpsgrad {

struct ColumnSumsLoops {
  // sums[j] += x[i], squares[j] += x[i] * x[i] for each value i of a run and its place j in a tile.
  using Add = void (*)(const float* x, std::int64_t count, std::int64_t tile, double* sums,
                       double* squares);
  Add whole_vectors, half_vectors, chosen;
  Add strips;  // in another order
};

MPSGRAD_LOOPS(ColumnSumsLoops, column_sums_loops)

}  // namespace mpsgrad
