// Loops of the Gram matrix kernels over blocks of channels and of pixels, packed as the tiles in
// registers read them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"

namespace mpsgrad {

// Most channels of a block, and most summands of one sum in registers: packed operands of that size
// stay in a second-level cache, and what a tile reads of them in a first-level one.
inline constexpr std::int64_t kGramBlock = 128;
inline constexpr std::int64_t kGramDepth = 128;

// Rows of blocks, packed or not, are padded to multiples of so many values, whole vectors of every
// instruction set.
inline constexpr std::int64_t kGramPadding = 16;
constexpr std::int64_t gram_padded(std::int64_t channels) {
  return (channels + kGramPadding - 1) / kGramPadding * kGramPadding;
}

// A packed block: panels of a few vectors of channels, each [kGramDepth summands][channels]. Room
// for so many floats.
inline constexpr std::int64_t kGramPanels = kGramBlock * kGramDepth;

// Lines that a loop asks for on its way, because they are needed after it: `bytes` of each pixel of
// the next block, whose pixels are `step` bytes apart.
struct GramAhead {
  const std::byte* first = nullptr;
  std::int64_t step = 0;
  std::int64_t bytes = 0;  // 0: none
};

template <class Element>
struct GramPacking {
  // Some channels of `pixels` pixels, `step` elements apart, as panels: summands [first, first +
  // pixels). The last vector is filled with zeros.
  void (*pack)(const Element* from, std::int64_t step, std::int64_t pixels, std::int64_t channels,
               std::int64_t first, float* panels);
  // The same as rows of gram_padded(channels) floats.
  void (*copy)(const Element* from, std::int64_t step, std::int64_t pixels, std::int64_t channels,
               float* out);
};

struct GramLoops {
  ByElement<GramPacking> packing;

  // How many summands add_products() takes at most: kGramDepth or fewer.
  std::int64_t depth;

  // sums[f][c] = or (`adds`) += the sum over `summands` pixels of rows(f) * columns(c), where rows
  // of sums are gram_padded(column_channels) long. `same`: rows are columns; then only whole
  // vectors that reach the diagonal or lie behind it are written. `ahead`: two of them.
  void (*add_products)(const float* rows, std::int64_t row_channels, const float* columns,
                       std::int64_t column_channels, std::int64_t summands, bool same, bool adds,
                       float* sums, const GramAhead* ahead);
  // sums[i] += more[i].
  void (*add)(float* sums, const float* more, std::int64_t count);
  // Multiplies rows of `step` values, which is a multiple of kGramPadding.
  void (*scale)(float* sums, std::int64_t rows, std::int64_t step, float factor);
  // out[c][r] = in[r][c], in blocks of 4 by 4, so both have rows of multiples of 4, and as many.
  void (*transpose)(const float* in, std::int64_t step, std::int64_t rows, std::int64_t columns,
                    float* out, std::int64_t out_step);
  // What is below the diagonal, from what is above.
  void (*mirror)(float* sums, std::int64_t step, std::int64_t channels);

  // Panels of the matrix that a gradient multiplies with, `summands` [c] by `channels` [k]:
  // alpha * (by_channel[k][c] + by_summand[c][k]), arrays with rows of gram_padded() floats, and
  // room for numbers of rows that are multiples of kGramPadding and 4; of by_channel all are read.
  void (*fold)(const float* by_channel, const float* by_summand, std::int64_t summands,
               std::int64_t channels, float alpha, float* panels);
  // out[pixel][k] = or (`adds`) += the sum over c of x[pixel][c] * panels[c][k]. Pixels of x and
  // out are so many floats apart; whole vectors of out are written, up to gram_padded(channels).
  void (*multiply)(const float* x, std::int64_t step, std::int64_t pixels, std::int64_t summands,
                   const float* panels, std::int64_t channels, bool adds, float* out,
                   std::int64_t out_step);
};

MPSGRAD_LOOPS(GramLoops, gram_loops)

}  // namespace mpsgrad
