#include "kernels/convolution/correlation_plan.hpp"

namespace mpsgrad::cpu::convolution {
namespace {

// Where depthwise loops pass down the rows of a few pixels in one vector of channels after the
// other, each piece reads operand rows around its own, while a part of the channels costs little:
// so pieces have at least so many rows, of fewer channels if need be, a multiple of a block.
constexpr Index kRowsAtOnce = 7;
// Rows are cut into columns of whole tiles, of which the widest has so many pixels.
constexpr Index kTilePixels = 14;
constexpr Index kLeastColumns = 2 * kTilePixels;
// Pieces of fewer blocks would read operands too often.
constexpr Index kBlocksOfPiece = 4;
// Larger weights would leave the second-level cache between one piece of the images and the next:
// so a part of them that stays there has its turn with all pieces before the next part. As pieces
// are read again for each, parts have at least so many blocks.
constexpr Index kLargeWeights = 1024 * 1024;
constexpr Index kNearWeights = 768 * 1024;
constexpr Index kBlocksOfPart = 8;

// Whether pieces read operands where they lie, so that to read them again costs little.
bool reads_in_place(const Correlation& c) {
  return !c.depthwise && !c.copies && c.operand.format == ChannelFormat::Float32 &&
         count_taps(c.x, c.operand_width).outside == 0;
}

const Phase& tallest_phase(const Correlation& c) {
  return *std::max_element(c.y.phases.begin(), c.y.phases.end(),
                           [](const Phase& a, const Phase& b) {
                             return rows_needed(a, a.count) < rows_needed(b, b.count);
                           });
}

class Plan {
 public:
  Plan(const Correlation& c, Index lanes)
      : c_(c),
        tallest_(tallest_phase(c)),
        widest_(c.x.most_results()),
        kernel_(static_cast<Index>(c.y.taps.size() * c.x.taps.size())),
        walks_(c.depthwise && walks_down(c)),
        blocks_(c.depthwise ? ceil_div(c.group_results, kChannelBlock)
                            : c.groups * ceil_div(c.group_results, lanes)),
        // A share of the activations, so that scratch is a small part of them.
        budget_(std::clamp(bytes_of(c) / 16, kPieceBytes / 4, kPieceBytes)) {
    choose_columns_and_rows();
    choose_samples();
    if (walks_) {
      split_channels();
    } else {
      split_blocks();
    }
  }

  std::vector<Piece> pieces() && { return std::move(pieces_); }

 private:
  // As many as the budget has room for; where loops walk, of so few channels that there are rows.
  void choose_columns_and_rows() {
    Index pixel_bytes = c_.operand_channels() * 4 * c_.x.phases[0].operand_step;
    Index at_least = budget_;  // for fewer than kRowsAtOnce
    if (walks_) {
      at_least = c_.direct() ? 2 * budget_ : budget_;  // copies are scratch
      const Index block_bytes = rows_needed(tallest_, std::min(tallest_.count, kRowsAtOnce)) *
                                ceil_div(widest_ * pixel_bytes, blocks_);
      splits_ = ceil_div(blocks_, std::max<Index>(1, at_least / std::max<Index>(1, block_bytes)));
      pixel_bytes = ceil_div(pixel_bytes, splits_);
    }
    columns_ = widest_;
    if (columns_ > kLeastColumns && tallest_.taps * columns_ * pixel_bytes > budget_) {
      const Index fitting = budget_ / std::max<Index>(1, tallest_.taps * pixel_bytes);
      columns_ = std::max(kLeastColumns, fitting / kTilePixels * kTilePixels);
    }
    row_bytes_ = columns_ * pixel_bytes;
    while (rows_ < tallest_.count && rows_needed(tallest_, rows_ + 1) * row_bytes_ <=
                                         (rows_ < kRowsAtOnce ? at_least : budget_)) {
      ++rows_;
    }
    const auto x_phases = static_cast<Index>(c_.x.phases.size());
    const auto phases = static_cast<Index>(c_.y.phases.size()) * x_phases;
    row_flops_ = std::max<Index>(1, 2 * operands() * c_.groups * c_.group_results * kernel_ /
                                        phases / splits_ * columns_ * x_phases);
  }

  // Several, where all rows of one are little work, but not so many that threads are left without.
  void choose_samples() {
    if (rows_ == tallest_.count) {
      const Index by_size = budget_ / std::max<Index>(1, rows_needed(tallest_, rows_) * row_bytes_);
      const Index by_work = ceil_div(kPieceFlops, rows_ * row_flops_);
      samples_ = std::clamp<Index>(std::min(by_size, std::max<Index>(by_work, 1)), 1, c_.batch);
      if (rows_ * row_flops_ * c_.batch <= kPieceFlops) {
        samples_ = c_.batch;
      }
    }
    samples_ = ceil_div(samples_, wanted(flops()));
  }

  void split_channels() {
    const Index before = splits_;
    splits_ = std::min(splits_ * wanted(flops()), blocks_);
    rows_ = ceil_div(rows_, wanted(flops() * before / splits_));
    add_pieces(0, blocks_);
  }

  void split_blocks() {
    const Index weights = kernel_ * operands() * c_.groups * c_.group_results;
    if (tallest_.count * row_bytes_ * 2 >= weights * 4 || c_.depthwise ||
        blocks_ < 2 * kBlocksOfPiece) {
      rows_ = ceil_div(rows_, wanted(flops()));
    }
    splits_ = std::clamp<Index>(wanted(work_on_weights(flops(), weights)), 1,
                                c_.depthwise ? 1 : std::max<Index>(1, blocks_ / kBlocksOfPiece));
    if (weights * 4 <= kLargeWeights || !reads_in_place(c_) || pieces_of_images() == 1) {
      return add_pieces(0, blocks_);
    }
    const Index parts = std::min(ceil_div(weights * 4, kNearWeights), blocks_ / kBlocksOfPart);
    splits_ = std::max(splits_, parts);
    const Index part = ceil_div(blocks_, splits_);
    for (Index first = 0; first < blocks_; first += part) {
      add_pieces(first, std::min(first + part, blocks_));
    }
  }

  Index operands() const { return walks_ ? kDepthwiseCost : c_.group_operands; }
  Index flops() const { return samples_ * rows_ * row_flops_; }
  // How many pieces the images are cut into, all channels together.
  Index pieces_of_images() const {
    return ceil_div(c_.batch, samples_) * static_cast<Index>(c_.y.phases.size()) *
           ceil_div(tallest_.count, rows_) * ceil_div(widest_, columns_);
  }
  // Into how many a piece of so much work had better be cut, so that there are enough.
  Index wanted(Index work) const {
    return std::clamp<Index>(ceil_div(kPieces, splits_ * pieces_of_images()), 1,
                             std::max<Index>(1, work / kPieceFlops));
  }

  // Of the blocks [first, last).
  void add_pieces(Index first, Index last) {
    const Index blocks = ceil_div(blocks_, splits_);
    for (Index n = 0; n < c_.batch; n += samples_) {
      for (std::size_t phase = 0; phase < c_.y.phases.size(); ++phase) {
        const Index count = c_.y.phases[phase].count;
        for (Index row = 0; row < count; row += rows_) {
          for (Index column = 0; column < widest_; column += columns_) {
            for (Index block = first; block < last; block += blocks) {
              pieces_.push_back({n, std::min(samples_, c_.batch - n), phase, row,
                                 std::min(rows_, count - row), column,
                                 std::min(columns_, widest_ - column), block,
                                 std::min(blocks, last - block)});
            }
          }
        }
      }
    }
  }

  const Correlation& c_;
  const Phase& tallest_;
  Index widest_, kernel_;  // results of a row at most, taps
  bool walks_;
  Index blocks_, budget_;
  Index samples_ = 1, rows_ = 1, columns_ = 1, splits_ = 1;  // splits: of the blocks
  Index row_bytes_ = 0, row_flops_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace

Index choose_lanes(const Correlation& c, Index widest) {
  if (c.depthwise) {
    return widest;
  }
  const auto taps_x = static_cast<Index>(c.x.taps.size());
  const auto taps_y = static_cast<Index>(c.y.taps.size());
  const Index across = c.group_operands * taps_x * taps_y * ceil_div(c.group_results, widest);
  const bool merged = c.groups == 1 && c.x.phases.size() == 1 && c.x.phases[0].tap_step == 1;
  const Index run_vectors = merged ? ceil_div(taps_x * c.group_operands, widest)
                                   : taps_x * ceil_div(c.group_operands, widest);
  const auto phases = static_cast<Index>(c.y.phases.size() * c.x.phases.size());
  const Index dot = c.group_results * (taps_y * run_vectors + phases * widest / 2);
  return dot + dot / 4 < across ? 1 : widest;
}

std::vector<Piece> cut_into_pieces(const Correlation& c, Index lanes) {
  return Plan(c, lanes).pieces();
}

}  // namespace mpsgrad::cpu::convolution
