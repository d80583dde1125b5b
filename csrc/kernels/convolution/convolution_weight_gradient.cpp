// Weight and bias gradients: sums over all positions, cut into parts by rows and by channels. Parts
// of different rows add up in buffers of their own, which are added in order at the end.
#include "cpu/threads.hpp"
#include "kernels/convolution/convolution_engine.hpp"
#include "kernels/convolution/convolution_rows.hpp"
#include "kernels/convolution/convolution_winograd.hpp"
#include "kernels/convolution/weight_gradient_plan.hpp"

namespace mpsgrad::cpu {
namespace {

using namespace convolution;

// A plan, and where its sums go.
struct Sums : WeightGradientPlan {
  const WeightGradientLoops* loops = &weight_gradient_loops();
  float* first_partial = nullptr;  // possibly the result itself
  float* more_partials = nullptr;  // [parts - 1][weights]
  float* bias_partials = nullptr;  // [parts][destination_channels], or null

  float* partial(Index part) const {
    return part == 0 ? first_partial : more_partials + (part - 1) * weights;
  }
};

void zero(float* data, Index count) {
  constexpr Index kChunk = 64 * 1024;
  parallel_for(ceil_div(count, kChunk), [&](Index i) {
    std::fill_n(data + i * kChunk, std::min(kChunk, count - i * kChunk), 0.0F);
  });
}

// Gradient rows [first, last), counted over all samples, blocks [first_block, last_block), and of
// each group the channels [first_channel, last_channel) of a range.
struct Part {
  Index first, last;
  Index first_block, last_block;
  Index first_channel, last_channel;
  float* out;
  bool fresh;  // nothing is there yet
  float* bias;
};

// What a part reads of the rows of both sides, and the source channel that its rows begin with.
struct Windows {
  RowWindow source, gradient;
  Index source_channel = 0;
};

Windows windows_of(const Sums& sums, const Part& part) {
  const ConvolutionGeometry& g = sums.g;
  Windows windows{sums.source, sums.gradient};
  // Sums for the biases read all of it first.
  windows.gradient.read_first = sums.gradient.read_first && part.bias == nullptr;
  if (sums.by_source && !sums.source.direct && sums.merged == 1) {
    const Index blocks_per_group = ceil_div(sums.group_sources, kConvolutionBlock);
    const auto start_of = [&](Index block) {
      return block / blocks_per_group * sums.group_sources +
             block % blocks_per_group * kConvolutionBlock;
    };
    windows.source_channel = start_of(part.first_block);
    windows.source.channel = windows.source_channel;
    windows.source.channels =
        std::min(start_of(part.last_block), g.source_channels) - windows.source_channel;
  }
  if (g.depthwise) {
    windows.source.channel = windows.gradient.channel = part.first_channel;
    windows.source.channels = windows.gradient.channels = part.last_channel - part.first_channel;
  }
  return windows;
}

// What all bands of a part have in common.
WeightGradientTask task_of(const Sums& sums, const Part& part) {
  const ConvolutionGeometry& g = sums.g;
  WeightGradientTask task{};
  task.taps_y = g.kernel_height;
  task.taps_x = g.kernel_width / sums.merged;
  task.groups = g.groups;
  task.group_sources = sums.group_sources * sums.merged;
  task.group_gradients = sums.group_gradients;
  task.mixed = sums.mixed;
  task.first = part.first_block;
  task.last = part.last_block;
  task.first_gradient = task.first_column = part.first_channel;
  task.last_gradient = task.last_column = part.last_channel;
  task.out = part.out;
  task.bias = part.bias;
  task.walks = sums.walks;
  task.in_order = sums.in_order;
  task.asks = sums.large;
  task.across = sums.across;
  return task;
}

// How many rows a part reads at a time, and how many of the source's these are.
struct BandRows {
  BandRows(const Sums& sums, const Part& part)
      : reach((sums.g.kernel_height - 1) * sums.g.dilation_y + 1),
        rows(std::min(sums.band_rows, part.last - part.first)) {
    const ConvolutionGeometry& g = sums.g;
    // They may belong to different samples, each of which needs its own rows of the source.
    const Index samples = std::min(g.batch, ceil_div(rows - 1, g.destination_height) + 1);
    per_sample = std::min(rows, g.destination_height);
    positions = (per_sample - 1) * g.stride_y + reach;
    source_rows = std::min(samples * std::min(positions, g.source_height),
                           rows * std::min(g.kernel_height, g.source_height));
  }
  Index reach, rows;
  Index per_sample = 0, positions = 0, source_rows = 0;
};

// Bands of rows, one after the other, of some columns at a time.
class PartRun {
 public:
  PartRun(const Sums& sums, const Part& part)
      : sums_(sums),
        part_(part),
        windows_(windows_of(sums, part)),
        band_(sums, part),
        source_slots_(RowCache::slots(windows_.source, band_.positions)),
        gradient_slots_(RowCache::slots(windows_.gradient, band_.per_sample)),
        zeros_(sums.by_source || sums.by_tap || sums.walks || sums.mixed > 1
                   ? 0
                   : windows_.source.span * std::max(windows_.source.pixel_stride(),
                                                     windows_.source.images->pixel_stride)),
        panels_(sums.panels ? sums.loops->panel_floats() : 0),
        copies_(sums.by_tap ? sums.loops->column_floats(part.last_channel - part.first_channel,
                                                        band_.rows * sums.columns)
                            : 0),
        scratch_(bytes()),
        task_(task_of(sums, part)),
        gradient_rows_(scratch_.take<const float*>(band_.rows)),
        found_(scratch_.take<const float*>(band_.rows * sums.g.kernel_height)),
        begin_(scratch_.take<Index>(sums.g.kernel_width)),
        end_(scratch_.take<Index>(sums.g.kernel_width)),
        source_cache_(windows_.source, band_.source_rows, source_slots_, scratch_),
        gradient_cache_(windows_.gradient, band_.rows, gradient_slots_, scratch_) {
    auto* zeros = scratch_.take<float>(zeros_);
    std::fill_n(zeros, zeros_, 0.0F);
    task_.zeros = zeros;
    task_.gradient = gradient_rows_;
    task_.source = found_;
    task_.begin = begin_;
    task_.end = end_;
    task_.pairs = scratch_.take<std::byte>(16 * band_.rows);
    task_.columns = scratch_.take<float>(copies_);
    task_.panels = sums.panels ? scratch_.take<float>(panels_) : nullptr;
  }

  void run() {
    const ConvolutionGeometry& g = sums_.g;
    for (Index column = 0; column < g.destination_width; column += task_.width) {
      task_.width = choose_columns(column);
      set_columns(column);
      for (Index band = part_.first; band < part_.last; band += band_.rows) {
        const Index last = std::min(band + band_.rows, part_.last);
        find_rows(band, last);
        task_.rows = last - band;
        task_.fresh = part_.fresh && column == 0 && band == part_.first;
        task_.streams = task_.fresh && last == part_.last && task_.width == g.destination_width &&
                        4 * sums_.weights >= streamed_bytes();
        const Index next_rows = sums_.asks_ahead ? std::min(band_.rows, part_.last - last) : 0;
        const Index sample = last / g.destination_height;
        const Index next = last % g.destination_height;
        task_.next[0] = source_cache_.lines_of(sample, next, next_rows);
        task_.next[1] = gradient_cache_.lines_of(sample, next, next_rows);
        add_band();
      }
    }
  }

 private:
  Index bytes() const {
    const Index rows = band_.rows;
    return RowCache::bytes(windows_.source, band_.source_rows, source_slots_) +
           RowCache::bytes(windows_.gradient, rows, gradient_slots_) +
           Scratch::bytes<const float*>(rows) +
           Scratch::bytes<const float*>(rows * sums_.g.kernel_height) +
           2 * Scratch::bytes<Index>(sums_.g.kernel_width) + Scratch::bytes<float>(zeros_) +
           Scratch::bytes<std::byte>(16 * rows) + Scratch::bytes<float>(panels_) +
           Scratch::bytes<float>(copies_);
  }

  // How many from `column` on; of depthwise ones only those that reach beyond the edges are copied.
  Index choose_columns(Index column) {
    const Index left = sums_.g.destination_width - column;
    if (sums_.inside >= sums_.outside) {
      return std::min(sums_.columns, left);
    }
    windows_.source.direct = column >= sums_.inside && column < sums_.outside;
    return column < sums_.inside    ? sums_.inside - column
           : windows_.source.direct ? sums_.outside - column
                                    : left;
  }

  // The columns that each tap reads.
  void set_columns(Index column) {
    const ConvolutionGeometry& g = sums_.g;
    RowWindow& source = windows_.source;
    const Index width = task_.width;
    windows_.gradient.first_x = column;
    windows_.gradient.span = width;
    const Index first_x = g.first_x + column * g.stride_x;
    if (sums_.every_pixel) {
      source.first_x = first_x;
      source.span = (width - 1) * g.stride_x + (g.kernel_width - 1) * g.dilation_x + 1;
      task_.source_offset = -windows_.source_channel;
      std::fill_n(begin_, g.kernel_width, 0);
      std::fill_n(end_, g.kernel_width, width);
    } else {
      task_.source_offset = first_x * source.pixel_stride() - windows_.source_channel;
      task_.first_element = -first_x * source.pixel_stride();
      task_.last_element = (g.source_width - first_x) * source.pixel_stride();
      for (Index p = 0; p < g.kernel_width; ++p) {
        const Index x = first_x + p * g.dilation_x;
        begin_[p] = std::clamp<Index>(floor_div(-x + g.stride_x - 1, g.stride_x), 0, width);
        end_[p] =
            std::clamp<Index>(floor_div(g.source_width - 1 - x, g.stride_x) + 1, begin_[p], width);
      }
    }
    task_.source_step = g.stride_x * source.pixel_stride();
    task_.source_tap_step = g.dilation_x * source.pixel_stride();
    task_.gradient_step = windows_.gradient.pixel_stride();
    source_cache_.use(source);
    gradient_cache_.use(windows_.gradient);
  }

  void find_rows(Index first, Index last) {
    const ConvolutionGeometry& g = sums_.g;
    source_cache_.clear();
    gradient_cache_.clear();
    for (Index row = first; row < last; ++row) {
      const Index n = row / g.destination_height;
      const Index j = row % g.destination_height;
      if (row == first || j == 0) {
        const Index last_j = std::min(g.destination_height, j + last - row) - 1;
        source_cache_.start(n, g.first_y + j * g.stride_y,
                            g.first_y + last_j * g.stride_y + band_.reach - 1);
        gradient_cache_.start(n, j, last_j);
      }
      gradient_rows_[row - first] = gradient_cache_.row(j);
      for (Index q = 0; q < g.kernel_height; ++q) {
        found_[(row - first) * g.kernel_height + q] =
            source_cache_.row(g.first_y + j * g.stride_y + q * g.dilation_y);
      }
    }
  }

  void add_band() {
    if (sums_.mixed == 1) {
      return (sums_.g.depthwise ? depthwise_gradient_loops().weights
              : sums_.by_tap    ? sums_.loops->by_tap
              : sums_.by_source ? sums_.loops->by_source
                                : sums_.loops->by_gradient)(task_);
    }
    grouped_gradient_loops().weights(task_);
    if (task_.bias != nullptr) {
      for (Index row = 0; row < task_.rows; ++row) {
        sums_.loops->channel_sums(gradient_rows_[row], task_.width, task_.gradient_step,
                                  task_.last_gradient - task_.first_gradient, task_.bias);
      }
    }
  }

  const Sums& sums_;
  Part part_;
  Windows windows_;
  BandRows band_;
  Index source_slots_, gradient_slots_;
  Index zeros_, panels_, copies_;  // floats
  Scratch scratch_;
  WeightGradientTask task_;
  const float** gradient_rows_;
  const float** found_;  // source rows, one for each row of taps
  Index *begin_, *end_;  // for each tap of a row the columns that read inside of the source
  RowCache source_cache_, gradient_cache_;
};

// Adds the parts up in order and puts every weight where the layout of the weights has it.
void finish(const Sums& sums, float* result, bool accumulate) {
  const ConvolutionGeometry& g = sums.g;
  constexpr Index kChunk = 16 * 1024;
  if (sums.parts > 1) {
    parallel_for(ceil_div(sums.weights, kChunk), [&](Index chunk) {
      float* to = sums.first_partial;
      const Index last = std::min(sums.weights, (chunk + 1) * kChunk);
      for (Index part = 1; part < sums.parts; ++part) {
        const float* from = sums.partial(part);
        for (Index i = chunk * kChunk; i < last; ++i) {
          to[i] += from[i];
        }
      }
    });
  }
  if (sums.first_partial == result) {
    return;
  }
  // Weight (group, o, tap, c) is found at these distances in the sums, and goes to those in the
  // result.
  const Index taps = sums.taps;
  const Index groups = sums.mixed > 1 ? sums.group_gradients / sums.mixed : g.groups;
  const Index inputs = g.depthwise ? sums.mixed : sums.group_sources;
  const Index outputs = sums.mixed > 1 ? sums.mixed : sums.group_gradients;
  const Index weights = taps * inputs * outputs;  // of a group
  const Index from_o = sums.by_source ? taps * inputs : 1;
  const Index from_c = sums.by_source ? 1 : g.depthwise ? taps * sums.group_gradients : outputs;
  const Index from_tap = sums.by_source ? inputs
                         : g.depthwise  ? sums.group_gradients
                                        : inputs * outputs;
  const Index from_group = g.depthwise ? outputs : weights;
  const bool transposed = g.transposed_weights && !g.depthwise;
  const Index to_o = transposed ? 1 : taps * inputs;
  const Index to_c = transposed ? taps * outputs : 1;
  const Index to_tap = transposed ? outputs : inputs;
  const auto put_row = [&](Index group, Index tap, Index c, Index first, Index last) {
    const float* from = sums.first_partial + group * from_group + tap * from_tap + c * from_c;
    float* to = result + group * weights + (g.transposed_weights ? taps - 1 - tap : tap) * to_tap +
                c * to_c;
    for (Index o = first; o < last; ++o) {
      const float value = from[o * from_o];
      float& weight = to[o * to_o];
      weight = accumulate ? weight + value : value;
    }
  };
  if (transposed) {
    // One side is read or the other written across: some outputs at a time, so that both find their
    // cache lines again.
    constexpr Index kOutputs = 16;
    const Index rows = groups * taps * inputs;
    const Index together = std::max<Index>(1, kChunk / std::max<Index>(1, outputs));
    parallel_for(ceil_div(rows, together), [&](Index chunk) {
      const Index last = std::min(rows, (chunk + 1) * together);
      for (Index o = 0; o < outputs; o += kOutputs) {
        for (Index row = chunk * together; row < last; ++row) {
          put_row(row / (taps * inputs), row / inputs % taps, row % inputs, o,
                  std::min(outputs, o + kOutputs));
        }
      }
    });
    return;
  }
  const Index together = std::max<Index>(1, kChunk / std::max<Index>(1, weights));
  parallel_for(ceil_div(groups, together), [&](Index chunk) {
    for (Index i = chunk * together; i < std::min(groups, (chunk + 1) * together); ++i) {
      for (Index tap = 0; tap < taps; ++tap) {
        for (Index c = 0; c < inputs; ++c) {
          put_row(i, tap, c, 0, outputs);
        }
      }
    }
  });
}

// Every part of the rows, every split of its blocks and every range of their channels. If `writes`,
// a part's first band replaces what is in its memory, but not in a result that is added to.
void run_parts(const Sums& sums, bool writes, bool accumulate) {
  const ConvolutionGeometry& g = sums.g;
  const Index splits = sums.splits * sums.ranges;
  parallel_for(sums.parts * splits, [&](Index i) {
    const Index part = i / splits;
    const Index split = i % splits / sums.ranges;
    const Index range = i % sums.ranges;
    const Index first = sums.first_of(range);
    const Index last = sums.first_of(range + 1);
    const Index begin = g.depthwise ? first : 0;  // of what the part has for itself
    float* bias = sums.bias_partials != nullptr && (g.depthwise || i % splits == 0)
                      ? sums.bias_partials + part * g.destination_channels + begin
                      : nullptr;
    PartRun(sums, {part * sums.rows() / sums.parts, (part + 1) * sums.rows() / sums.parts,
                   split * sums.blocks / sums.splits, (split + 1) * sums.blocks / sums.splits,
                   first, last, sums.partial(part) + begin,
                   writes && !(accumulate && sums.in_place && part == 0), bias})
        .run();
  });
}

void direct_weight_gradient(const ConvolutionGeometry& geometry,
                            const ConvolutionImages& source_images,
                            const ConvolutionImages& gradient_images, float* weight_gradient,
                            float* bias_gradient, bool accumulate) {
  ConvolutionGeometry g = geometry;
  ConvolutionImages source = source_images;
  ConvolutionImages gradient = gradient_images;
  merge_positions(g, source, gradient);
  Sums sums{plan_weight_gradient(g, source, gradient)};
  const Index weights = sums.weights;
  const Index beside = sums.parts - (sums.in_place ? 1 : 0);
  Scratch scratch(Scratch::bytes<float>(beside * weights) +
                  Scratch::bytes<float>(sums.parts * g.destination_channels));
  auto* memory = scratch.take<float>(beside * weights);
  sums.first_partial = sums.in_place ? weight_gradient : memory;
  sums.more_partials = sums.in_place ? memory : memory + weights;
  // Sums of these kinds are written by the first band.
  const bool writes = (sums.by_tap || sums.by_source) && !sums.is_empty();
  if (!writes) {
    zero(memory, beside * weights);
    if (sums.in_place && !accumulate) {
      zero(weight_gradient, weights);
    }
  }
  if (bias_gradient != nullptr) {
    sums.bias_partials = scratch.take<float>(sums.parts * g.destination_channels);
    std::fill_n(sums.bias_partials, sums.parts * g.destination_channels, 0.0F);
  }
  if (!sums.is_empty()) {
    run_parts(sums, writes, accumulate);
  }
  finish(sums, weight_gradient, accumulate);
  if (bias_gradient != nullptr) {
    finish_channel_sums(sums.bias_partials, sums.parts, g.destination_channels, bias_gradient,
                        accumulate);
  }
}

// Images that begin at a channel.
class ChannelsOf {
 public:
  ChannelsOf(const ConvolutionImages& images, Index batch, Index channel)
      : samples_(images.samples, images.samples + batch), images_(images) {
    for (std::byte*& sample : samples_) {
      sample += channel * item_size(images.format);
    }
    images_.samples = samples_.data();
  }
  const ConvolutionImages& images() const { return images_; }

 private:
  std::vector<std::byte*> samples_;
  ConvolutionImages images_;
};

// Some of the weights by themselves.
void direct_weight_gradient(const ConvolutionGeometry& geometry, const ConvolutionImages& source,
                            const ConvolutionImages& gradient, const WeightArea& area,
                            float* weight_gradient, bool accumulate) {
  ConvolutionGeometry g = geometry;
  g.source_channels = area.sources;
  g.destination_channels = area.gradients;
  const Index taps = g.kernel_height * g.kernel_width;
  Scratch scratch(Scratch::bytes<float>(area.gradients * taps * area.sources));
  auto* sums = scratch.take<float>(area.gradients * taps * area.sources);
  direct_weight_gradient(g, ChannelsOf(source, g.batch, area.source).images(),
                         ChannelsOf(gradient, g.batch, area.gradient).images(), sums, nullptr,
                         false);
  for (Index row = 0; row < area.gradients * taps; ++row) {
    const float* from = sums + row * area.sources;
    float* to =
        weight_gradient + (area.gradient * taps + row) * geometry.source_channels + area.source;
    put(from, area.sources, accumulate, to);
  }
}

// Whether each tap of an axis, at stride 1, reads a pixel: the gradient of one that does not is
// zero, without the roundings of its neighbours.
bool every_tap_reads(Index results, Index first, Index dilation, Index length) {
  return first + results > 0 && first + (kWinogradTaps - 1) * dilation < length;
}

// How many taps of all results read inside of the source.
Index taps_inside(Index results, Index first, Index dilation, Index length) {
  Index count = 0;
  for (Index tap = 0; tap < kWinogradTaps; ++tap, first += dilation) {
    count += std::max<Index>(0, std::min(results, length - first) - std::max<Index>(0, -first));
  }
  return count;
}

bool suits_winograd(const ConvolutionGeometry& g) {
  const Index products =
      g.edge == EdgeMode::Clamp
          ? g.destination_height * g.destination_width * kWinogradTaps * kWinogradTaps
          : taps_inside(g.destination_height, g.first_y, g.dilation_y, g.source_height) *
                taps_inside(g.destination_width, g.first_x, g.dilation_x, g.source_width);
  return (g.edge == EdgeMode::Clamp ||
          (every_tap_reads(g.destination_height, g.first_y, g.dilation_y, g.source_height) &&
           every_tap_reads(g.destination_width, g.first_x, g.dilation_x, g.source_width))) &&
         g.groups == 1 && !g.depthwise && !g.transposed_weights &&
         g.kernel_height == kWinogradTaps && g.kernel_width == kWinogradTaps && g.stride_y == 1 &&
         g.stride_x == 1 &&
         winograd_pays(g.batch, g.destination_height, g.destination_width, g.dilation_y,
                       g.dilation_x, g.source_channels, g.destination_channels, g.batch * products);
}

}  // namespace

namespace convolution {

void finish_channel_sums(const float* partials, Index parts, Index channels, float* sums,
                         bool accumulate) {
  for (Index c = 0; c < channels; ++c) {
    float total = 0.0F;
    for (Index part = 0; part < parts; ++part) {
      total += partials[part * channels + c];
    }
    sums[c] = accumulate ? sums[c] + total : total;
  }
}

}  // namespace convolution

void convolution_weight_gradient(const ConvolutionGeometry& g, const ConvolutionImages& source,
                                 const ConvolutionImages& gradient, float* weight_gradient,
                                 float* bias_gradient, bool accumulate) {
  if (!suits_winograd(g)) {
    direct_weight_gradient(g, source, gradient, weight_gradient, bias_gradient, accumulate);
    return;
  }
  const std::vector<WeightArea> left = winograd_weight_gradient(
      {g.batch, g.source_height, g.source_width, g.source_channels, g.destination_height,
       g.destination_width, g.destination_channels, g.first_y, g.first_x, g.dilation_y,
       g.dilation_x, g.edge, &source, &gradient, weight_gradient, bias_gradient, accumulate});
  for (const WeightArea& area : left) {
    direct_weight_gradient(g, source, gradient, area, weight_gradient, accumulate);
  }
}

void convolution_channel_sums(Index batch, Index height, Index width, Index channels,
                              const ConvolutionImages& images, float* sums, bool accumulate) {
  const WeightGradientLoops& loops = weight_gradient_loops();
  const Index rows = batch * height;
  const Index parts = std::clamp<Index>(rows * width * channels / 65536, 1,
                                        std::min(kPieces, std::max<Index>(rows, 1)));
  const RowWindow all{&images, height,   width,
                      0,       channels, EdgeMode::Zero,
                      0,       width,    images.format == ChannelFormat::Float32,
                      0};
  Scratch scratch(Scratch::bytes<float>(parts * channels));
  auto* partials = scratch.take<float>(parts * channels);
  std::fill_n(partials, parts * channels, 0.0F);
  parallel_for(parts, [&](Index part) {
    Scratch own(RowCache::bytes(all, 1, 1));
    RowCache cache(all, 1, 1, own);
    for (Index row = part * rows / parts; row < (part + 1) * rows / parts; ++row) {
      cache.clear();
      cache.start(row / height, row % height, row % height);
      loops.channel_sums(cache.row(row % height), width, all.pixel_stride(), channels,
                         partials + part * channels);
    }
  });
  finish_channel_sums(partials, parts, channels, sums, accumulate);
}

}  // namespace mpsgrad::cpu
