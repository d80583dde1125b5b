// The loops of column_sums_test.cpp.
#include "column_sums_loops.hpp"

#include "cpu/simd/column_sums.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

constexpr int kTogether = 2;  // as column_sums_test.cpp has it

struct Both {
  const float* x;
  template <class Block, class Terms>
  MPSGRAD_INLINE void operator()(Block block, Index i, Index /*j*/, Terms& terms) const {
    const auto value = block.widened(x + i);
    terms[0] = added(terms[0], value);
    terms[1] += value * value;
  }
};

template <int kPlaces>
void add_by(const float* x, Index count, Index tile, double* sums, double* squares) {
  add_tiles_by<2, kTogether>(SeveralDoubles<kPlaces>{}, count, tile, tile, {sums, squares},
                             Both{x});
}

void add_chosen(const float* x, Index count, Index tile, double* sums, double* squares) {
  add_tiles<2, kTogether>(count, tile, tile, {sums, squares}, Both{x}, x);
}

void add_by_strips(const float* x, Index count, Index tile, double* sums, double* squares) {
  add_strips(count, tile, tile, {sums, squares}, Both{x}, x);
}

constexpr int kWhole = kWidest / 2;
constexpr int kHalf = kWhole > 2 ? kWhole / 2 : 2;

}  // namespace

const ColumnSumsLoops column_sums_loops{&add_by<kWhole>, &add_by<kHalf>, &add_chosen,
                                        &add_by_strips};

}  // namespace mpsgrad::MPSGRAD_ISA
