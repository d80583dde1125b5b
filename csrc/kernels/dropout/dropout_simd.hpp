// Loops of the dropout kernels: drawing masks, a bit an element, and applying them.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"
#include "cpu/simd/results.hpp"

namespace mpsgrad {

// The mask of one image: Philox4x32-10 (Salmon et al., SC 2011) with the key `seed`, low word
// first, and counters (i, i >> 32, image, encode). Words of a mask are 64 bits, the lowest first.
// Bit 16 w + l of word b comes from word w of counter i = 16 b + l, and is set if that number,
// taken as signed, is less than `limit`.
struct DropoutStream {
  std::uint64_t seed;
  std::uint32_t encode, image;
  std::int32_t limit;
};

// Of a word that begins at bit `first` of `words`, up to 31 bits are read after the last one.
template <class Element>
struct DropoutElementLoops {
  // y[i] = x[i] / keep where bit first + i is set, else 0.
  void (*apply)(const Element* x, Results<Element> y, const std::uint64_t* words,
                std::int64_t first, std::int64_t count, float keep);
  // y[i] = x[i] / keep where kept[j] is -1, else 0 as kept[j] is; j is the place of i in a tile.
  void (*apply_tiles)(const Element* x, Results<Element> y, const std::int32_t* kept,
                      std::int64_t count, std::int64_t tile, float keep);
  // As apply() with bits that are drawn on the way; first and count as in the mask of the image,
  // whose words go to `kept` if that is not null: those that begin in the run, and no other.
  void (*draw_and_apply)(const DropoutStream& stream, const Element* x, Results<Element> y,
                         std::uint64_t* kept, std::int64_t first, std::int64_t count, float keep);
};

struct DropoutLoops {
  // Words [first, first + count) of the mask to `words`.
  void (*draw)(const DropoutStream& stream, std::int64_t first, std::int64_t count,
               std::uint64_t* words);
  // kept[i] = -1 where bit i is set, else 0.
  void (*spread)(const std::uint64_t* words, std::int64_t count, std::int32_t* kept);
  ByElement<DropoutElementLoops> elements;
};

MPSGRAD_LOOPS(DropoutLoops, dropout_loops)

}  // namespace mpsgrad
