// Forward pass and data gradient in Winograd's form: tiles of the operand are transformed some
// dozens at a time, so that they stay in a cache between the transforms and the products, which are
// 16 convolutions of one tap.
#include "kernels/convolution/convolution_winograd.hpp"

#include <mutex>

#include "cpu/simd/convert.hpp"
#include "cpu/threads.hpp"
#include "kernels/convolution/convolution_rows.hpp"
#include "kernels/convolution/winograd_tiles.hpp"

namespace mpsgrad::cpu::convolution {
namespace {

constexpr Index kMostResults = 128;  // channels of one piece of work

struct Plan {
  WinogradTiles tiles;
  Index lanes;
  Index operands;               // channels at a time, a divisor of them all
  Index blocks, range, ranges;  // of results: vectors in all, in one piece, and pieces
  Index chunk, chunks;          // of tiles
  Index together;               // of a chunk's tiles, from transform to results

  explicit Plan(const WinogradCorrelation& c)
      : tiles{c.batch, {c.result_height, c.dilation_y}, {c.result_width, c.dilation_x}},
        lanes(correlation_loops().lanes),
        operands(winograd_channels(c.operands)),
        blocks(ceil_div(c.results, lanes)) {
    const Index activations = c.batch * 4 *
                              (c.operand_height * c.operand_width * c.operands +
                               c.result_height * c.result_width * c.results);
    const Index budget = winograd_budget(activations);
    ranges = ceil_div(c.results, kMostResults);
    const auto tile_bytes = [&] {
      return kWinogradParts * 4 * (operands + ceil_div(blocks, ranges) * lanes);
    };
    while (kWinogradLeastTiles * tile_bytes() > budget && ceil_div(blocks, ranges) * lanes > 32) {
      ranges *= 2;
      if (operands > 32 && operands % 2 == 0) {
        operands /= 2;
      }
    }
    range = ceil_div(blocks, ranges);
    ranges = ceil_div(blocks, range);
    chunk = winograd_chunk(tiles.count(), budget / tile_bytes(), ranges);
    chunks = ceil_div(tiles.count(), chunk);
    // Few tiles stay in nearer caches; their products read all weights once more.
    constexpr Index kFewWeights = 64 * 1024;
    const Index weights = 4 * kWinogradParts * c.operands * range * lanes;
    together = weights <= kFewWeights ? kWinogradLeastTiles : chunk;
  }
};

// Where the four results of a tile go, in the channels of a range.
class Sink {
 public:
  Sink(const WinogradCorrelation& c, const WinogradTiles& tiles, Index first_channel,
       Index channels, float* values)
      : c_(c),
        tiles_(tiles),
        first_channel_(first_channel),
        channels_(channels),
        direct_(c.result->format == ChannelFormat::Float32 && c.hook.store),
        values_(values) {}

  // Floats of results that cannot be computed where they belong.
  static Index value_floats(Index channels) { return kWinogradPixels * kWinogradPixels * channels; }

  bool direct() const { return direct_; }
  // Whether all pixels of these channels are whole lines that need not stay in a cache.
  bool streams() const {
    const ConvolutionImages& images = *c_.result;
    constexpr Index kLine = 16;
    const bool even = images.pixel_stride % kLine == 0 && images.row_stride % kLine == 0 &&
                      first_channel_ % kLine == 0 && channels_ % kLine == 0;
    return direct_ && c_.hook.apply == nullptr && images.streamed && even &&
           std::all_of(images.samples, images.samples + c_.batch, [](const std::byte* sample) {
             return reinterpret_cast<std::uintptr_t>(sample) % (kLine * 4) == 0;
           });
  }

  // Where the results of a strip of tiles go, or if not direct those of one tile, to be finished.
  void aim(const WinogradPlace& place, Index tiles, WinogradResults& results) const {
    const Index last = place.x + (tiles - 1) * kWinogradPixels * tiles_.x.dilation;
    results.tiles = tiles;
    results.pixel_step = value_step();
    results.odd = tiles_.x.inside(last) < kWinogradPixels;
    for (Index r = 0; r < kWinogradPixels; ++r) {
      results.rows[r] = r >= tiles_.y.inside(place.y) ? nullptr
                        : direct_                     ? direct(place, r)
                                                      : values_ + r * row_floats();
    }
  }

  // After the results have been computed.
  bool finishes() const { return !direct_ || c_.hook.apply != nullptr; }
  void finish(const WinogradPlace& place) const {
    const Index pixels = tiles_.x.inside(place.x);
    for (Index r = 0; r < tiles_.y.inside(place.y); ++r) {
      float* values = direct_ ? direct(place, r) : values_ + r * row_floats();
      if (c_.hook.apply != nullptr) {
        c_.hook.apply(c_.hook.context,
                      {place.sample, place.y + r * tiles_.y.dilation, place.x, tiles_.x.dilation,
                       pixels, first_channel_, channels_, values, value_step()});
      }
      if (!direct_ && c_.hook.store) {
        convert_loops().store_row(values, data(place, r), c_.result->format, pixels, channels_,
                                  c_.result->pixel_stride * tiles_.x.dilation);
      }
    }
  }

 private:
  std::byte* data(const WinogradPlace& place, Index row) const {
    const Index y = place.y + row * tiles_.y.dilation;
    const Index at = y * c_.result->row_stride + place.x * c_.result->pixel_stride + first_channel_;
    return c_.result->samples[place.sample] + at * item_size(c_.result->format);
  }
  float* direct(const WinogradPlace& place, Index row) const {
    return reinterpret_cast<float*>(data(place, row));
  }
  Index value_step() const {  // from one pixel of a tile to the next
    return direct_ ? c_.result->pixel_stride * tiles_.x.dilation : channels_;
  }
  Index row_floats() const { return kWinogradPixels * channels_; }

  const WinogradCorrelation& c_;
  const WinogradTiles& tiles_;
  Index first_channel_, channels_;
  bool direct_;
  float* values_;
};

// Asks for pixels that will be written, so that their lines are there after the products.
void ask_for(const WinogradResults& results) {
  constexpr Index kLine = 16;
  const Index pixels = kWinogradPixels * results.tiles - (results.odd ? 1 : 0);
  for (float* const row : results.rows) {
    for (Index i = 0; i < pixels && row != nullptr; ++i) {
      for (Index c = 0; c < results.channels; c += kLine) {
        __builtin_prefetch(row + i * results.pixel_step + c, 1, 2);
      }
    }
  }
}

// Adds the results of a tile to areas, neighbours of one row to the same one.
void add_tile(const WinogradTiles& tiles, const WinogradPlace& place, Index block, Index blocks,
              std::vector<ResultArea>& areas) {
  const Index rows = tiles.y.inside(place.y);
  const Index columns = tiles.x.inside(place.x);
  if (tiles.y.dilation > 1 || tiles.x.dilation > 1) {
    for (Index i = 0; i < rows * columns; ++i) {
      areas.push_back({place.sample, place.y + i / columns * tiles.y.dilation, 1,
                       place.x + i % columns * tiles.x.dilation, 1, block, blocks});
    }
    return;
  }
  if (!areas.empty()) {
    ResultArea& last = areas.back();
    if (last.sample == place.sample && last.row == place.y &&
        last.column + last.columns == place.x) {
      last.columns += columns;
      return;
    }
  }
  areas.push_back({place.sample, place.y, rows, place.x, columns, block, blocks});
}

// Tiles [first, last) in the vectors of one range. Appends what is not finite.
void run_piece(const WinogradCorrelation& c, const Plan& plan, Index first, Index last, Index range,
               std::vector<ResultArea>& not_finite) {
  const Index lanes = plan.lanes;
  const Index most = ceil_div(last - first, ceil_div(last - first, plan.together));
  const Index block = range * plan.range;
  const Index blocks = std::min(plan.range, plan.blocks - block);
  const Index channel = block * lanes;
  const Index channels = std::min(blocks * lanes, c.results - channel);
  const Index operand_floats = ceil_div(plan.operands, lanes) * lanes;
  // Sums in the place of their operands leave the nearest cache to others.
  const bool in_place =
      plan.operands == c.operands && blocks <= correlation_loops().winograd_blocks;
  const WinogradParts result_parts(most, std::max(blocks * lanes, in_place ? operand_floats : 0));
  const WinogradParts operand_parts = in_place ? result_parts : WinogradParts(most, operand_floats);
  const WinogradImages images{c.operand,
                              c.operand_height,
                              c.operand_width,
                              c.edge,
                              c.first_y,
                              c.first_x,
                              kWinogradPixels + kWinogradTaps - 1};
  Scratch scratch((in_place ? 0 : operand_parts.bytes()) + result_parts.bytes() +
                  WinogradReader::bytes(images, most, plan.operands) + Scratch::bytes<bool>(most) +
                  Scratch::bytes<float>(Sink::value_floats(channels)));
  auto* sums = scratch.take<float>(result_parts.floats());
  auto* operands = in_place ? sums : scratch.take<float>(operand_parts.floats());
  auto* finite = scratch.take<bool>(most);
  const Sink sink(c, plan.tiles, channel, channels,
                  scratch.take<float>(Sink::value_floats(channels)));
  const WinogradReader source(images, plan.tiles, most, plan.operands, scratch);
  WinogradResults results{};
  results.channels = channels;
  results.tile_step = result_parts.tile_step;
  results.part_step = result_parts.part_step;
  results.bias = c.bias + channel;
  results.streamed = sink.streams();

  WinogradProducts products{};
  products.operands = operands;
  products.operand_tile_step = operand_parts.tile_step;
  products.operand_part_step = operand_parts.part_step;
  products.channels = plan.operands;
  products.weight_block_step = c.operands * lanes;
  products.weight_part_step = plan.blocks * products.weight_block_step;
  products.sums = sums;
  products.sum_tile_step = result_parts.tile_step;
  products.sum_part_step = result_parts.part_step;
  products.blocks = blocks;
  for (Index begin = first; begin < last; begin += most) {
    const Index end = std::min(last, begin + most);
    if (sink.direct() && !results.streamed) {
      plan.tiles.each_strip(begin, end,
                            [&](const WinogradPlace& place, Index /*tile*/, Index count) {
                              sink.aim(place, count, results);
                              ask_for(results);
                            });
    }
    products.tiles = end - begin;
    for (Index at = 0; at < c.operands; at += plan.operands) {
      source.transform(winograd_loops().sources, begin, end, at, operand_parts, operands);
      products.weights = c.weights + block * products.weight_block_step + at * lanes;
      products.accumulate = at > 0;
      correlation_loops().winograd_products(products);
    }

    // As many tiles at a time as there is room for.
    const auto finish = [&](const WinogradPlace& place, Index tile, Index count) {
      results.sums = sums + (tile - begin) * result_parts.tile_step;
      results.finite = finite + (tile - begin);
      sink.aim(place, count, results);
      winograd_loops().results(results);
      WinogradPlace own = place;
      for (Index t = 0; t < count; ++t, own.x += kWinogradPixels * plan.tiles.x.dilation) {
        if (!results.finite[t]) {
          add_tile(plan.tiles, own, block, blocks, not_finite);
        } else if (sink.finishes()) {
          sink.finish(own);
        }
      }
    };
    plan.tiles.each_strip(begin, end, [&](const WinogradPlace& place, Index tile, Index count) {
      if (sink.direct()) {
        finish(place, tile, count);
        return;
      }
      WinogradPlace own = place;
      for (Index t = 0; t < count; ++t, own.x += kWinogradPixels * plan.tiles.x.dilation) {
        finish(own, tile + t, 1);
      }
    });
  }
}

}  // namespace

bool winograd_pays(Index batch, Index height, Index width, Index dilation_y, Index dilation_x,
                   Index operands, Index results, Index products) {
  constexpr Index kChannels = 16;
  constexpr Index kTiles = 32;  // fewer do not pay for reading 16 parts instead of 9 weights
  const WinogradTiles tiles{batch, {height, dilation_y}, {width, dilation_x}};
  constexpr Index kWindow = kWinogradTaps * kWinogradTaps;
  return operands >= kChannels && results >= kChannels && tiles.count() >= kTiles &&
         2 * kWindow * batch * height * width >= 3 * kWinogradParts * tiles.count() &&
         4 * products >= 5 * kWinogradParts * tiles.count();
}

std::vector<ResultArea> winograd_correlate(const WinogradCorrelation& c) {
  const Plan plan(c);
  std::vector<ResultArea> not_finite;
  std::mutex mutex;
  parallel_for(plan.chunks * plan.ranges, [&](Index i) {
    const Index chunk = i % plan.chunks;
    const Index tiles = plan.tiles.count();
    std::vector<ResultArea> found;
    run_piece(c, plan, chunk * tiles / plan.chunks, (chunk + 1) * tiles / plan.chunks,
              i / plan.chunks, found);
    if (!found.empty()) {
      const std::lock_guard lock(mutex);
      not_finite.insert(not_finite.end(), found.begin(), found.end());
    }
  });
  return not_finite;
}

}  // namespace mpsgrad::cpu::convolution
