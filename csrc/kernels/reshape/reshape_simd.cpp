// Sums over the places that one element was copied to.
#include "kernels/reshape/reshape_simd.hpp"

#include "cpu/simd/lanes.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

template <class Element>
void fold(const Element* gradient, const Index* rows, Index row_count, const Index* columns,
          Index column_count, Index count, Element* out) {
  for_blocks(count, [=](auto block, Index i) {
    auto sum = block.floats(gradient + rows[0] + columns[0] + i);
    for (Index r = 0; r < row_count; ++r) {
      for (Index c = r == 0 ? 1 : 0; c < column_count; ++c) {
        sum += block.floats(gradient + rows[r] + columns[c] + i);
      }
    }
    block.put(out + i, sum);
  });
}

}  // namespace

const ByElement<PadLoops> pad_loops{{&fold<float>}, {&fold<Half>}};

}  // namespace mpsgrad::MPSGRAD_ISA
