// Sums over the places that one element was copied to.
#include "kernels/reshape/reshape_simd.hpp"

#include "cpu/simd/with_channels.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

template <class Element, class Channels>
MPSGRAD_INLINE void fold_pixel(const Element* gradient, const Index* rows, Index row_count,
                               const Index* columns, Index column_count, Channels channels,
                               Element* out) {
  for_blocks(channels, [=](auto block, Index i) {
    const auto of_part = [&](Index r, Index first, Index end) {
      auto sum = block.floats(gradient + rows[r] + columns[first] + i);
      for (Index c = first + 1; c < end; ++c) {
        sum += block.floats(gradient + rows[r] + columns[c] + i);
      }
      return sum;
    };
    const auto of_row = [&](Index r) {
      auto sum = of_part(r, 0, smaller(kPadPart, column_count));
      for (Index c = kPadPart; c < column_count; c += kPadPart) {
        sum += of_part(r, c, smaller(c + kPadPart, column_count));
      }
      return sum;
    };
    auto sum = of_row(0);
    for (Index r = 1; r < row_count; ++r) {
      sum += of_row(r);
    }
    block.put(out + i, sum);
  });
}

template <class Element>
void fold(const Element* gradient, const Index* rows, Index row_count, const Index* columns,
          Index column_count, Index pixels, Index channels, Element* out, Index out_stride) {
  with_channels(channels, [=](auto, auto known) {
    for (Index p = 0; p < pixels; ++p) {
      fold_pixel(gradient, rows, row_count, columns + p * column_count, column_count, known,
                 out + p * out_stride);
    }
  });
}

}  // namespace

const ByElement<PadLoops> pad_loops{{&fold<float>}, {&fold<Half>}};

}  // namespace mpsgrad::MPSGRAD_ISA
