// The weight gradient in Winograd's form: transformed tiles of source and gradient are multiplied,
// part by part, and summed over tiles; only the sums are transformed back. Blocks of weights are
// pieces of work with tiles of their own, so that nothing is held for all weights at once unless
// they are few.
#include <algorithm>
#include <cmath>

#include "cpu/threads.hpp"
#include "kernels/convolution/convolution_rows.hpp"
#include "kernels/convolution/convolution_winograd.hpp"
#include "kernels/convolution/winograd_tiles.hpp"

namespace mpsgrad::cpu::convolution {
namespace {

// Channels of one axis in blocks of whole vectors.
struct Blocks {
  Index channels, size, count;

  Blocks(Index all, Index lanes, Index most) : channels(all) {
    const Index vectors = ceil_div(all, lanes);
    count = ceil_div(vectors * lanes, most);
    size = ceil_div(vectors, count) * lanes;
    count = ceil_div(all, size);
  }
  Index first(Index block) const { return block * size; }
  Index width(Index block) const { return std::min(size, channels - first(block)); }
};

struct Plan {
  WinogradTiles tiles;
  Blocks sources, gradients;
  Index parts;  // of the tiles, each with sums of its own
  Index chunk;

  Plan(const WinogradWeightGradient& w, Index lanes)
      : tiles{w.batch, {w.height, w.dilation_y}, {w.width, w.dilation_x}},
        sources(w.sources, lanes, kBlock),
        gradients(w.gradients, lanes, kBlock) {
    const Index activations =
        4 * w.batch *
        (w.source_height * w.source_width * w.sources + w.height * w.width * w.gradients);
    const Index sums = 4 * kWinogradParts * w.sources * w.gradients;
    const Index flops = 2 * kWinogradParts * tiles.count() * w.sources * w.gradients;
    parts = std::clamp<Index>(activations / 10 / sums, 1,
                              std::clamp<Index>(flops / kPieceFlops, 1, kPieces));
    if (parts * blocks() == 1) {
      sources = Blocks(w.sources, lanes, kBlock / 2);
    }
    const Index tile_bytes = 4 * kWinogradParts * (sources.size + gradients.size);
    chunk = winograd_chunk(ceil_div(tiles.count(), parts),
                           winograd_budget(activations) / tile_bytes, kPieces);
  }
  Index blocks() const { return sources.count * gradients.count; }

 private:
  static constexpr Index kBlock = 64;
};

// One block of weights.
struct WeightBlock {
  Index source, sources, gradient, gradients;  // first channel and how many

  WeightBlock(const Plan& plan, Index i)
      : source(plan.sources.first(i % plan.sources.count)),
        sources(plan.sources.width(i % plan.sources.count)),
        gradient(plan.gradients.first(i / plan.sources.count)),
        gradients(plan.gradients.width(i / plan.sources.count)) {}
  Index weights() const { return sources * gradients; }
};

WinogradParts sums_of(const Plan& plan) {
  return WinogradParts(plan.sources.size, plan.gradients.size);
}

// Adds the products of some tiles to the sums of a block, and the gradient's to `bias` unless it is
// null.
void add_tiles(const WinogradWeightGradient& w, const Plan& plan, const WeightBlock& block,
               Index first, Index last, float* sums, float* bias) {
  const Index lanes = weight_gradient_loops().lanes;
  const WinogradParts source_parts(plan.chunk, ceil_div(block.sources, lanes) * lanes);
  const WinogradParts gradient_parts(plan.chunk, ceil_div(block.gradients, lanes) * lanes);
  const WinogradImages source_images{w.source,
                                     w.source_height,
                                     w.source_width,
                                     w.edge,
                                     w.first_y,
                                     w.first_x,
                                     kWinogradPixels + kWinogradTaps - 1};
  const WinogradImages gradient_images{w.gradient, w.height, w.width,        EdgeMode::Zero,
                                       0,          0,        kWinogradPixels};
  Scratch scratch(source_parts.bytes() + gradient_parts.bytes() +
                  WinogradReader::bytes(source_images, plan.chunk, block.sources) +
                  WinogradReader::bytes(gradient_images, plan.chunk, block.gradients));
  auto* sources = scratch.take<float>(source_parts.floats());
  auto* gradients = scratch.take<float>(gradient_parts.floats());
  const WinogradReader source(source_images, plan.tiles, plan.chunk, block.sources, scratch);
  const WinogradReader gradient(gradient_images, plan.tiles, plan.chunk, block.gradients, scratch);
  WinogradGradientProducts products{};
  products.gradients = gradients;
  products.gradient_tile_step = gradient_parts.tile_step;
  products.gradient_part_step = gradient_parts.part_step;
  products.sources = sources;
  products.source_tile_step = source_parts.tile_step;
  products.source_part_step = source_parts.part_step;
  products.gradient_channels = block.gradients;
  products.source_channels = block.sources;
  products.sums = sums;
  products.sum_part_step = sums_of(plan).part_step;
  for (Index tile = first; tile < last; tile += plan.chunk) {
    const Index end = std::min(last, tile + plan.chunk);
    source.transform(winograd_loops().sources, tile, end, block.source, source_parts, sources);
    gradient.transform(winograd_loops().gradients, tile, end, block.gradient, gradient_parts,
                       gradients);
    products.tiles = end - tile;
    weight_gradient_loops().winograd_products(products);
    if (bias != nullptr) {
      // In this part a tile is the sum of its four pixels.
      constexpr Index kSumOfAll = 5;
      weight_gradient_loops().channel_sums(gradients + kSumOfAll * gradient_parts.part_step,
                                           end - tile, gradient_parts.tile_step, block.gradients,
                                           bias);
    }
  }
}

// From the sums of a block to its weights; false, and nothing has been written, if one of them is
// not finite.
bool finish_block(const WinogradWeightGradient& w, const Plan& plan, const WeightBlock& block,
                  float* sums) {
  const Index step = sums_of(plan).part_step;
  if (!winograd_loops().weight_gradient(sums, step, block.weights(), sums, step)) {
    return false;
  }
  constexpr Index kTaps = kWinogradTaps * kWinogradTaps;
  for (Index o = 0; o < block.gradients; ++o) {
    for (Index tap = 0; tap < kTaps; ++tap) {
      const float* from = sums + tap * step + o * block.sources;
      float* to =
          w.weight_gradient + ((block.gradient + o) * kTaps + tap) * w.sources + block.source;
      put(from, block.sources, w.accumulate, to);
    }
  }
  return true;
}

}  // namespace

std::vector<WeightArea> winograd_weight_gradient(const WinogradWeightGradient& w) {
  const Plan plan(w, weight_gradient_loops().lanes);
  const Index tiles = plan.tiles.count();
  const Index sum_floats = sums_of(plan).floats();
  // Parts have sums of their own until all are there; a single one only while it is worked at.
  const Index held = plan.parts > 1 ? plan.parts * plan.blocks() * sum_floats : 0;
  Scratch scratch(Scratch::bytes<float>(held) + Scratch::bytes<float>(plan.parts * w.gradients) +
                  Scratch::bytes<bool>(plan.blocks()));
  auto* held_sums = scratch.take<float>(held);
  auto* biases = scratch.take<float>(plan.parts * w.gradients);
  std::fill_n(biases, plan.parts * w.gradients, 0.0F);
  auto* finite = scratch.take<bool>(plan.blocks());
  parallel_for(plan.parts * plan.blocks(), [&](Index i) {
    const Index part = i / plan.blocks();
    const WeightBlock block(plan, i % plan.blocks());
    Scratch own(Scratch::bytes<float>(held > 0 ? 0 : sum_floats));
    float* sums = held > 0 ? held_sums + i * sum_floats : own.take<float>(sum_floats);
    std::fill_n(sums, sum_floats, 0.0F);
    float* bias = w.bias_gradient != nullptr && block.source == 0
                      ? biases + part * w.gradients + block.gradient
                      : nullptr;
    add_tiles(w, plan, block, part * tiles / plan.parts, (part + 1) * tiles / plan.parts, sums,
              bias);
    if (held == 0) {
      finite[i % plan.blocks()] = finish_block(w, plan, block, sums);
    }
  });
  if (held > 0) {
    parallel_for(plan.blocks(), [&](Index i) {
      float* sums = held_sums + i * sum_floats;
      for (Index part = 1; part < plan.parts; ++part) {
        const float* more = sums + part * plan.blocks() * sum_floats;
        for (Index k = 0; k < sum_floats; ++k) {
          sums[k] += more[k];
        }
      }
      finite[i] = finish_block(w, plan, WeightBlock(plan, i), sums);
    });
  }
  if (w.bias_gradient != nullptr) {
    const float* end = biases + plan.parts * w.gradients;
    if (std::all_of(static_cast<const float*>(biases), end,
                    [](float b) { return std::isfinite(b); })) {
      finish_channel_sums(biases, plan.parts, w.gradients, w.bias_gradient, w.accumulate);
    } else {
      convolution_channel_sums(w.batch, w.height, w.width, w.gradients, *w.gradient,
                               w.bias_gradient, w.accumulate);
    }
  }
  std::vector<WeightArea> not_finite;
  for (Index i = 0; i < plan.blocks(); ++i) {
    if (!finite[i]) {
      const WeightBlock block(plan, i);
      not_finite.push_back({block.source, block.sources, block.gradient, block.gradients});
    }
  }
  return not_finite;
}

}  // namespace mpsgrad::cpu::convolution
