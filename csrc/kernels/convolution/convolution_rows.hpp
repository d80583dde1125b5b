// What the two halves of the convolution engine share: scratch memory of a piece of work, and rows
// of images as float32 with their surroundings.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>

#include "base/types.hpp"
#include "cpu/memory.hpp"
#include "kernels/convolution/convolution_engine.hpp"

namespace mpsgrad::cpu::convolution {

// Operands that one piece of work should not exceed, so that they stay in the second-level cache;
// and the number of pieces that even a small problem is cut into, if each is worth handing over.
inline constexpr Index kPieceBytes = 256 * 1024;
inline constexpr Index kPieces = 16;
inline constexpr Index kPieceFlops = 2'000'000;
inline constexpr Index kDepthwiseCost = 8;  // of an operation, in those of other convolutions

// Work on weights that each piece has for itself: their bytes may take longer than the operations.
constexpr Index work_on_weights(Index flops, Index weights) {
  constexpr Index kFlopsPerByte = 8;
  return std::max<Index>(flops, weights * 4 * kFlopsPerByte);
}

// Whether groups of so many channels lie side by side in a vector, of which loops take groups of at
// most `most_mixed`.
inline bool shares_vectors(Index operands, Index results, Index most_mixed) {
  constexpr Index kLeast = 4;
  return operands == results && operands >= kLeast && operands <= most_mixed &&
         (operands & (operands - 1)) == 0;
}

// What rows under one window may take in the first-level cache.
inline constexpr Index kFirstLevelBytes = 24 * 1024;

// Loops that walk along pixels in one vector of channels would find all of them in a few sets of
// the first-level cache if the distance were a large power of two.
constexpr Index gap_between_pixels(Index channels) { return channels % 256 == 0 ? 16 : 0; }

// Scratch arrays out of one block of the pool. Ask for all sizes first: add() them up, then take()
// in any order.
class Scratch {
 public:
  template <class T>
  static Index bytes(Index count) {
    constexpr auto kAlign = static_cast<Index>(kAlignment);
    return ceil_div(count * static_cast<Index>(sizeof(T)), kAlign) * kAlign;
  }

  explicit Scratch(Index bytes)
      : block_(
            MemoryPool::instance().acquire(static_cast<std::size_t>(std::max<Index>(bytes, 64)))),
        next_(block_->data()) {}

  template <class T>
  T* take(Index count) {
    auto* first = reinterpret_cast<T*>(next_);
    next_ += bytes<T>(count);
    return first;
  }

 private:
  std::shared_ptr<Block> block_;
  std::byte* next_;
};

// Rows of one image as float32 from position `first_x` on, `span` pixels, some of which may lie
// outside. Rows that lie in memory as they are needed are not copied.
struct RowWindow {
  const ConvolutionImages* images = nullptr;
  Index height = 0, width = 0;
  Index channel = 0, channels = 0;
  EdgeMode edge = EdgeMode::Zero;
  Index first_x = 0, span = 0;
  bool direct = false;  // rows are elements of the images' format
  Index gap = 0;        // between copied pixels, floats
  // Direct rows are read through when they are found: for loops that then read parts of each pixel,
  // in an order that processors do not foresee.
  bool read_first = false;

  // Whether float32 pixels can be read in place, given which positions are needed.
  bool can_be_direct() const {
    return images->format == ChannelFormat::Float32 && first_x >= 0 && first_x + span <= width;
  }
  Index pixel_stride() const { return direct ? images->pixel_stride : channels + gap; }
  Index row_floats() const { return direct ? 0 : span * (channels + gap); }
  // So many elements further on in a row.
  const float* moved(const float* row, Index elements) const {
    const Index item = direct ? item_size(images->format) : Index{sizeof(float)};
    return reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(row) +
                                          elements * item);
  }
  void copy(Index sample, Index y, float* out) const;
};

class RowCache {
 public:
  static Index bytes(const RowWindow& window, Index rows, Index slots) {
    return Scratch::bytes<float>(rows * window.row_floats()) + Scratch::bytes<const float*>(slots);
  }

  // Room for `rows` rows at a time, out of at most `slots` neighbouring positions.
  RowCache(const RowWindow& window, Index rows, Index slots, Scratch& scratch)
      : window_(window),
        memory_(scratch.take<float>(rows * window.row_floats())),
        found_(scratch.take<const float*>(slots)) {}

  // Another part of the rows, not longer than the one before.
  void use(const RowWindow& window) { window_ = window; }
  // Forgets the rows, whose memory is used again.
  void clear() { used_ = 0; }
  // Turns to another sample; rows that were asked for before stay valid. Positions lie in [first,
  // last].
  void start(Index sample, Index first, Index last) {
    sample_ = sample;
    base_ = clamp(first);
    std::fill_n(found_, clamp(last) - base_ + 1, nullptr);
  }
  static Index slots(const RowWindow& window, Index positions) {
    return std::min(positions, window.height);
  }

  // Null: zeros.
  const float* row(Index y) {
    if ((y < 0 || y >= window_.height) && window_.edge != EdgeMode::Clamp) {
      return nullptr;
    }
    const Index inside = clamp(y);
    const float*& found = found_[inside - base_];
    if (found == nullptr) {
      found = fetch(inside);
    }
    return found;
  }
  // Where the rows [y, y + count) of a sample lie, as far as it has them, if they are direct and
  // follow each other.
  LinesAhead lines_of(Index sample, Index y, Index count) const;

 private:
  Index clamp(Index y) const { return std::clamp<Index>(y, 0, window_.height - 1); }
  const float* direct_row(Index sample, Index y) const;
  const float* fetch(Index y);

  RowWindow window_;
  float* memory_;
  const float** found_;
  Index sample_ = 0, base_ = 0, used_ = 0;
};

// to[i] = (or += if `accumulate`) from[i].
inline void put(const float* from, Index count, bool accumulate, float* to) {
  for (Index i = 0; i < count; ++i) {
    to[i] = accumulate ? to[i] + from[i] : from[i];
  }
}

// sums[c] = (or += if `accumulate`) the sum of partials[part][c], in order.
void finish_channel_sums(const float* partials, Index parts, Index channels, float* sums,
                         bool accumulate);

// The bytes from one sample to the next if that is the same everywhere and counts whole elements.
bool even_sample_stride(const ConvolutionImages& images, Index batch, Index* elements);

// Rewrites a case whose positions can be counted along one row: images that the window covers as a
// whole, or small images under a window of one tap. Then tiles of results are as wide as they
// should be. False: nothing was changed.
bool merge_positions(ConvolutionGeometry& geometry, ConvolutionImages& source,
                     ConvolutionImages& destination);

}  // namespace mpsgrad::cpu::convolution
