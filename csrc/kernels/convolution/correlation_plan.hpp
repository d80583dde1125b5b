// How the results of a correlation are cut into the pieces that threads work on.
#pragma once

#include <vector>

#include "kernels/convolution/correlation.hpp"

namespace mpsgrad::cpu::convolution {

// Results of some rows (of one phase) and columns (of every phase) of some samples, in some blocks
// of channels.
struct Piece {
  Index sample, samples;
  std::size_t phase;
  Index row, rows;
  Index column, columns;
  Index block, blocks;
};

// Channels that depthwise pieces have a multiple of.
constexpr Index kChannelBlock = 64;

// How many results a vector has: `widest`, or 1 where so few of them are used that dot products are
// cheaper.
Index choose_lanes(const Correlation& c, Index widest);

// Needs at least one sample and one result.
std::vector<Piece> cut_into_pieces(const Correlation& c, Index lanes);

}  // namespace mpsgrad::cpu::convolution
