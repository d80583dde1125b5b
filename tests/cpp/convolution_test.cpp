// The convolution engine against the formulas, written as plain loops in double, on random
// geometries of every kind: all instruction sets are reached through MPSGRAD_CPU. Also the worked
// examples of the documentation, guard values round every result, batch accumulation, and the same
// bits for any number of threads.
//
// Arguments: number of random cases, first seed.
#include "kernels/convolution/convolution_engine.hpp"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "cpu/isa.hpp"
#include "cpu/simd/convert.hpp"
#include "cpu/threads.hpp"
#include "kernels/convolution/convolution_simd.hpp"

namespace mpsgrad::test {
namespace {

using cpu::ConvolutionGeometry;
using cpu::ConvolutionImages;
using cpu::ConvolutionWeights;

using Doubles = std::vector<double>;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

// Images of one format with room round the pixels and the channels that are used.
class Storage {
 public:
  Storage(ChannelFormat format, Index batch, Index height, Index width, Index channels,
          Index extra_channels, Index extra_pixels, bool scattered)
      : format_(format), batch_(batch), height_(height), width_(width), channels_(channels) {
    images.format = format;
    images.pixel_stride = channels + extra_channels;
    images.row_stride = (width + extra_pixels) * images.pixel_stride;
    const Index image = height * images.row_stride;
    const Index item = item_size(format);
    if (scattered) {
      for (Index n = 0; n < batch; ++n) {
        blocks_.emplace_back(at((image + 64 + 8 * n) * item));
        samples_.push_back(blocks_.back().data() + (16 + 4 * n) * item);
      }
    } else {
      // From the start of a cache line on, as images are.
      constexpr std::uintptr_t kLine = 64;
      blocks_.emplace_back(at((batch * image + 64) * item) + 3 * kLine);
      std::byte* first = blocks_.back().data() + 2 * kLine -
                         reinterpret_cast<std::uintptr_t>(blocks_.back().data()) % kLine;
      for (Index n = 0; n < batch; ++n) {
        samples_.push_back(first + n * image * item);
      }
    }
    images.samples = samples_.data();
    for (std::vector<std::byte>& block : blocks_) {
      std::memset(block.data(), kGuard, block.size());
    }
  }

  std::byte* pixel(Index n, Index y, Index x) const {
    return samples_[at(n)] + (y * images.row_stride + x * images.pixel_stride) * item_size(format_);
  }
  template <class Value>
  void fill(const Value& value) {
    std::vector<float> row(at(channels_));
    for (Index n = 0; n < batch_; ++n) {
      for (Index y = 0; y < height_; ++y) {
        for (Index x = 0; x < width_; ++x) {
          for (float& v : row) {
            v = value();
          }
          convert_loops().store_row(row.data(), pixel(n, y, x), format_, 1, channels_, channels_);
        }
      }
    }
  }
  Doubles values() const {
    Doubles all;
    std::vector<float> row(at(channels_));
    for (Index n = 0; n < batch_; ++n) {
      for (Index y = 0; y < height_; ++y) {
        for (Index x = 0; x < width_; ++x) {
          convert_loops().load_row(pixel(n, y, x), format_, 1, channels_, channels_, row.data());
          all.insert(all.end(), row.begin(), row.end());
        }
      }
    }
    return all;
  }
  // Whether nothing but the pixels' own channels has been written.
  bool guarded() const {
    std::vector<std::vector<std::byte>> blocks = blocks_;
    for (Index n = 0; n < batch_; ++n) {
      for (Index y = 0; y < height_; ++y) {
        for (Index x = 0; x < width_; ++x) {
          const std::byte* from = pixel(n, y, x);
          for (std::size_t b = 0; b < blocks.size(); ++b) {
            if (from >= blocks_[b].data() && from < blocks_[b].data() + blocks_[b].size()) {
              std::memset(blocks[b].data() + (from - blocks_[b].data()), kGuard,
                          at(channels_ * item_size(format_)));
            }
          }
        }
      }
    }
    for (const std::vector<std::byte>& block : blocks) {
      for (const std::byte byte : block) {
        if (byte != static_cast<std::byte>(kGuard)) {
          return false;
        }
      }
    }
    return true;
  }
  const std::vector<std::vector<std::byte>>& bytes() const { return blocks_; }

  ConvolutionImages images;

 private:
  static constexpr int kGuard = 0xff;  // NaN in the float formats

  ChannelFormat format_;
  Index batch_, height_, width_, channels_;
  std::vector<std::vector<std::byte>> blocks_;
  std::vector<std::byte*> samples_;
};

struct Sums {  // and the sums of magnitudes, which roundings are judged by
  Doubles values, magnitudes;
  explicit Sums(Index count) : values(at(count)), magnitudes(at(count)) {}
  void add(Index i, double product) {
    values[at(i)] += product;
    magnitudes[at(i)] += std::abs(product);
  }
};

Index weight_index(const ConvolutionGeometry& g, Index o, Index q, Index p, Index c) {
  const Index in = g.source_channels / g.groups;
  const Index out = g.destination_channels / g.groups;
  if (g.depthwise) {
    const Index tap = q * g.kernel_width + p;
    const Index taps = g.kernel_height * g.kernel_width;
    return o * taps + (g.transposed_weights ? taps - 1 - tap : tap);
  }
  if (g.transposed_weights) {
    return (((o / out * in + c) * g.kernel_height + g.kernel_height - 1 - q) * g.kernel_width +
            g.kernel_width - 1 - p) *
               out +
           o % out;
  }
  return ((o * g.kernel_height + q) * g.kernel_width + p) * in + c;
}

Index weight_count(const ConvolutionGeometry& g) {
  return g.destination_channels * g.kernel_height * g.kernel_width *
         (g.depthwise ? 1 : g.source_channels / g.groups);
}

Index source_count(const ConvolutionGeometry& g) {
  return g.batch * g.source_height * g.source_width * g.source_channels;
}

Index destination_count(const ConvolutionGeometry& g) {
  return g.batch * g.destination_height * g.destination_width * g.destination_channels;
}

// Calls visit(source index, weight index, destination index) for every product of the sum; `clamp`
// moves positions outside onto the edge, otherwise they are left out.
template <class Visit>
void for_each_product(const ConvolutionGeometry& g, bool clamp, const Visit& visit) {
  const Index in = g.depthwise ? 1 : g.source_channels / g.groups;
  const Index out = g.destination_channels / g.groups;
  for (Index n = 0; n < g.batch; ++n) {
    for (Index j = 0; j < g.destination_height; ++j) {
      for (Index i = 0; i < g.destination_width; ++i) {
        for (Index q = 0; q < g.kernel_height; ++q) {
          for (Index p = 0; p < g.kernel_width; ++p) {
            Index y = g.stride_y * j + g.first_y + g.dilation_y * q;
            Index x = g.stride_x * i + g.first_x + g.dilation_x * p;
            if (clamp) {
              y = std::min(std::max<Index>(y, 0), g.source_height - 1);
              x = std::min(std::max<Index>(x, 0), g.source_width - 1);
            } else if (y < 0 || y >= g.source_height || x < 0 || x >= g.source_width) {
              continue;
            }
            for (Index o = 0; o < g.destination_channels; ++o) {
              for (Index c = 0; c < in; ++c) {
                const Index from = g.depthwise ? o : o / out * in + c;
                visit(((n * g.source_height + y) * g.source_width + x) * g.source_channels + from,
                      weight_index(g, o, q, p, c),
                      ((n * g.destination_height + j) * g.destination_width + i) *
                              g.destination_channels +
                          o);
              }
            }
          }
        }
      }
    }
  }
}

std::string describe(const ConvolutionGeometry& g, const std::string& what) {
  std::string s = what + ": batch " + std::to_string(g.batch) + " source " +
                  std::to_string(g.source_height) + "x" + std::to_string(g.source_width) + "x" +
                  std::to_string(g.source_channels) + " destination " +
                  std::to_string(g.destination_height) + "x" + std::to_string(g.destination_width) +
                  "x" + std::to_string(g.destination_channels) + " groups " +
                  std::to_string(g.groups) + " kernel " + std::to_string(g.kernel_height) + "x" +
                  std::to_string(g.kernel_width) + " stride " + std::to_string(g.stride_y) + "x" +
                  std::to_string(g.stride_x) + " dilation " + std::to_string(g.dilation_y) + "x" +
                  std::to_string(g.dilation_x) + " first " + std::to_string(g.first_y) + "," +
                  std::to_string(g.first_x);
  return s + (g.edge == EdgeMode::Clamp ? " clamp" : "") + (g.depthwise ? " depthwise" : "") +
         (g.transposed_weights ? " transposed" : "");
}

// Half the distance between neighbouring values of a format near `value`.
double rounding(ChannelFormat format, double value) {
  switch (format) {
    case ChannelFormat::Float16:
      return std::max(std::abs(value) * 0x1p-11, 0x1p-25);
    case ChannelFormat::Unorm8:
      return 0.5 / 255;
    case ChannelFormat::Unorm16:
      return 0.5 / 65535;
    default:
      return 0;
  }
}

void expect_close(Checks& checks, const std::string& what, const Doubles& actual,
                  const Sums& expected, Index terms, ChannelFormat format) {
  // Random roundings of a sum of `terms` products, with much room; systematic errors are far
  // larger.
  const double relative = 4 * 0x1p-24 * (2 + std::sqrt(static_cast<double>(terms)));
  double worst = 0;
  std::size_t worst_at = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    double exact = expected.values[i];
    if (format == ChannelFormat::Unorm8 || format == ChannelFormat::Unorm16) {
      exact = std::min(std::max(exact, 0.0), 1.0);
    }
    const double allowed =
        relative * expected.magnitudes[i] + rounding(format, exact) * 1.0001 + 1e-37;
    const double excess = std::abs(actual[i] - exact) / allowed;
    if (!(excess <= worst)) {
      worst = excess;
      worst_at = i;
    }
  }
  checks.expect(worst <= 1,
                what + ": element " + std::to_string(worst_at) + " is " +
                    std::to_string(actual.empty() ? 0 : actual[worst_at]) + ", expected " +
                    std::to_string(expected.values.empty() ? 0 : expected.values[worst_at]) + " (" +
                    std::to_string(worst) + " times the tolerance)");
}

template <class T>
Doubles to_doubles(const std::vector<T>& values) {
  return Doubles(values.begin(), values.end());
}

struct HookCount {
  const ConvolutionGeometry* g;
  bool of_source;
  std::vector<int> seen;
  std::mutex mutex;
};

// Doubles every value, and notes that each is seen once.
void doubling_hook(void* context, const ConvolutionTile& tile) {
  auto& count = *static_cast<HookCount*>(context);
  const ConvolutionGeometry& g = *count.g;
  const Index height = count.of_source ? g.source_height : g.destination_height;
  const Index width = count.of_source ? g.source_width : g.destination_width;
  const Index channels = count.of_source ? g.source_channels : g.destination_channels;
  const std::lock_guard lock(count.mutex);
  for (Index i = 0; i < tile.pixels; ++i) {
    for (Index c = 0; c < tile.channels; ++c) {
      tile.values[i * tile.value_step + c] *= 2;
      const Index x = tile.x + i * tile.x_step;
      count.seen.at(
          at(((tile.sample * height + tile.y) * width + x) * channels + tile.channel + c)) += 1;
    }
  }
}

bool seen_once(const HookCount& count) {
  for (const int times : count.seen) {
    if (times != 1) {
      return false;
    }
  }
  return true;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  Index between(Index low, Index high) {
    return low + static_cast<Index>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(0, 99) < percent; }
  template <std::size_t n>
  Index pick(const Index (&values)[n]) {
    return values[between(0, static_cast<Index>(n) - 1)];
  }
  float value() { return static_cast<float>(between(-1000, 1000)) / 512.0F; }

 private:
  std::mt19937_64 engine_;
};

ConvolutionGeometry random_geometry(Random& random) {
  constexpr Index kChannels[] = {1,  2,  3,  4,  5,  7,  8,  9,  15, 16,
                                 17, 20, 31, 32, 33, 48, 64, 65, 72, 130};
  constexpr Index kGroupChannels[] = {4, 8, 12, 16, 20, 3, 1};
  ConvolutionGeometry g;
  const bool large = random.chance(10);
  g.batch = random.between(1, random.chance(20) ? 40 : 4);
  g.source_height = random.between(1, large ? 40 : 12);
  g.source_width = random.between(1, large ? 60 : 20);
  g.kernel_height = random.between(1, random.chance(10) ? 9 : 4);
  g.kernel_width = random.between(1, random.chance(10) ? 9 : 4);
  if (random.chance(20)) {
    g.kernel_height = g.kernel_width = 1;
  }
  g.stride_y = random.chance(50) ? 1 : random.between(1, 4);
  g.stride_x = random.chance(50) ? 1 : random.between(1, 4);
  g.dilation_y = random.chance(60) ? 1 : random.between(1, 4);
  g.dilation_x = random.chance(60) ? 1 : random.between(1, 4);
  const int kind = static_cast<int>(random.between(0, 9));
  if (kind == 0 || kind == 8) {
    g.groups = random.between(2, 4);
    g.source_channels = g.groups * random.pick(kGroupChannels);
    g.destination_channels = g.groups * random.pick(kGroupChannels);
    if (random.chance(60)) {  // a few channels each, as many as before
      constexpr Index kFew[] = {4, 8};
      g.groups = random.between(2, 20);
      g.source_channels = g.destination_channels = g.groups * random.pick(kFew);
    }
  } else {
    g.source_channels = random.pick(kChannels);
    g.destination_channels = random.pick(kChannels);
  }
  if (kind == 5 && random.chance(25)) {  // pixels of the gradient a page apart
    g.batch = std::min<Index>(g.batch, 2);
    g.source_height = std::min<Index>(g.source_height, 4);
    g.source_width = std::min<Index>(g.source_width, 8);
    g.kernel_height = std::min<Index>(g.kernel_height, 3);
    g.kernel_width = std::min<Index>(g.kernel_width, 3);
    g.source_channels = random.between(15, 17);
    g.destination_channels = 1024;
  }
  if (kind == 6 || kind == 7) {  // windows with fewer multiplications
    constexpr Index kEnough[] = {16, 17, 20, 31, 32, 33, 48, 64, 65, 72, 130, 150};
    g.kernel_height = g.kernel_width = 3;
    g.stride_y = g.stride_x = 1;
    g.source_height += 2;
    g.source_width += 4;
    g.source_channels = random.pick(kEnough);
    g.destination_channels = random.pick(kEnough);
  }
  if (kind == 9) {  // windows one row high, for which columns may take the place of rows
    constexpr Index kEnough[] = {16, 17, 20, 31, 32, 33, 48, 64, 65, 72};
    g.kernel_height = 1;
    g.kernel_width = random.between(2, 7);
    g.source_width = random.between(3, 16);
    g.source_height = g.source_width + (random.chance(30) ? random.between(-2, 2) : 0);
    g.source_channels = random.pick(kEnough);
    g.destination_channels = random.pick(kEnough);
    if (random.chance(35)) {  // pixels of a column a page apart
      g.source_width = g.source_height = 16;
      g.source_channels = 64;
    }
  }
  if (kind == 1 || kind == 2) {
    g.depthwise = true;
    g.destination_channels = g.source_channels;
  }
  g.transposed_weights = random.chance(15);
  const Index reach_y = (g.kernel_height - 1) * g.dilation_y + 1;
  const Index reach_x = (g.kernel_width - 1) * g.dilation_x + 1;
  if (kind == 3) {  // fully connected
    g.kernel_height = g.source_height = std::min<Index>(g.source_height, 6);
    g.kernel_width = g.source_width = std::min<Index>(g.source_width, 6);
    g.stride_x = g.stride_y = g.dilation_x = g.dilation_y = 1;
    g.destination_height = g.destination_width = 1;
  } else if (kind == 4) {  // anything
    g.destination_height = random.between(1, 14);
    g.destination_width = random.between(1, 20);
    g.first_y = random.between(-reach_y - 12, g.source_height + 12);
    g.first_x = random.between(-reach_x - 12, g.source_width + 12);
  } else {  // a padding policy
    const Index style = random.between(-1, 1);
    const auto axis = [&](Index source, Index reach, Index stride, Index& destination,
                          Index& first) {
      destination = std::max<Index>(1, (source + style * (reach - 1) + stride - 1) / stride);
      const Index extra = (destination - 1) * stride + reach - source;
      const Index how = random.between(0, 3);
      first = how == 0 ? -extra : how == 1 ? 0 : -((extra + how - 2) / 2);
    };
    axis(g.source_height, reach_y, g.stride_y, g.destination_height, g.first_y);
    axis(g.source_width, reach_x, g.stride_x, g.destination_width, g.first_x);
  }
  g.edge = random.chance(20) ? EdgeMode::Clamp : EdgeMode::Zero;
  return g;
}

ChannelFormat random_format(Random& random) {
  constexpr Index kFormats[] = {1, 2, 3, 3, 4, 4, 4, 4, 4, 4};
  return static_cast<ChannelFormat>(random.pick(kFormats));
}

Storage random_storage(Random& random, ChannelFormat format, Index batch, Index height, Index width,
                       Index channels) {
  const bool dense = random.chance(60);
  return Storage(format, batch, height, width, channels, dense ? 0 : random.between(0, 5),
                 dense ? 0 : random.between(0, 3), random.chance(25));
}

std::vector<std::vector<std::byte>> run_and_copy(Storage& storage, int threads, const auto& run) {
  cpu::set_thread_count(threads);
  run();
  return storage.bytes();
}

// Sums over fewer products mix the nine taps from a source channel to a gradient channel, each of
// which is then judged by all of them: tests/convolution/test_convolution.py derives the shares.
void mix_taps(const ConvolutionGeometry& g, Sums& dw) {
  constexpr double kMost[3][3] = {{1, 1, 2}, {1, 1, 1}, {2, 1, 1}};
  if (g.kernel_height != 3 || g.kernel_width != 3 || g.stride_y != 1 || g.stride_x != 1 ||
      g.groups != 1 || g.depthwise || g.source_channels < 16 || g.destination_channels < 16) {
    return;
  }
  const Doubles own = dw.magnitudes;
  for (Index o = 0; o < g.destination_channels; ++o) {
    for (Index c = 0; c < g.source_channels; ++c) {
      for (int tap = 0; tap < 9; ++tap) {
        double sum = 0;
        for (int other = 0; other < 9; ++other) {
          sum += kMost[tap / 3][other / 3] * kMost[tap % 3][other % 3] *
                 own[at(weight_index(g, o, other / 3, other % 3, c))];
        }
        dw.magnitudes[at(weight_index(g, o, tap / 3, tap % 3, c))] = sum;
      }
    }
  }
}

void random_case(Checks& checks, std::uint64_t seed) {
  Random random(seed);
  const ConvolutionGeometry g = random_geometry(random);
  const std::string name = "seed " + std::to_string(seed) + " ";
  const ChannelFormat source_format = random_format(random);
  const ChannelFormat destination_format = random_format(random);
  Storage source = random_storage(random, source_format, g.batch, g.source_height, g.source_width,
                                  g.source_channels);
  Storage gradient = random_storage(random, random_format(random), g.batch, g.destination_height,
                                    g.destination_width, g.destination_channels);
  Storage destination = random_storage(random, destination_format, g.batch, g.destination_height,
                                       g.destination_width, g.destination_channels);
  Storage source_gradient = random_storage(random, random_format(random), g.batch, g.source_height,
                                           g.source_width, g.source_channels);
  destination.images.streamed = source_gradient.images.streamed = random.chance(50);
  const auto value = [&] { return random.value(); };
  source.fill(value);
  gradient.fill(value);
  std::vector<float> weights(at(weight_count(g)));
  for (float& w : weights) {
    w = random.value();
  }
  const bool source_bias = random.chance(50);
  std::vector<float> bias(at(g.destination_channels));
  std::vector<float> other_bias(at(g.source_channels));
  for (float& b : bias) {
    b = random.value();
  }
  for (float& b : other_bias) {
    b = random.value();
  }
  const bool hooked = random.chance(25);

  const Doubles x = source.values();
  const Doubles e = gradient.values();
  Sums y(destination_count(g));
  Sums dx(source_count(g));
  Sums dw(weight_count(g));
  Sums db(g.destination_channels);
  Sums sx(g.source_channels);
  for_each_product(g, g.edge == EdgeMode::Clamp, [&](Index s, Index w, Index d) {
    y.add(d, x[at(s)] * static_cast<double>(weights[at(w)]));
    dw.add(w, x[at(s)] * e[at(d)]);
  });
  for_each_product(g, false, [&](Index s, Index w, Index d) {
    dx.add(s, e[at(d)] * static_cast<double>(weights[at(w)]));
  });
  for (Index i = 0; i < destination_count(g); ++i) {
    y.add(i, static_cast<double>(bias[at(i % g.destination_channels)]));
    db.add(i % g.destination_channels, e[at(i)]);
  }
  for (Index i = 0; i < source_count(g); ++i) {
    sx.add(i % g.source_channels, x[at(i)]);
    if (source_bias) {
      dx.add(i, static_cast<double>(other_bias[at(i % g.source_channels)]));
    }
  }
  mix_taps(g, dw);
  if (hooked) {
    for (Sums* sums : {&y, &dx}) {
      for (std::size_t i = 0; i < sums->values.size(); ++i) {
        sums->values[i] *= 2;
        sums->magnitudes[i] *= 2;
      }
    }
  }

  const ConvolutionWeights packed(weights.data(), nullptr);
  const Index taps = g.kernel_height * g.kernel_width;
  HookCount count{&g, false, {}, {}};
  const ConvolutionHook hook{hooked ? doubling_hook : nullptr, &count, true};

  const auto forward = [&] {
    count.of_source = false;
    count.seen.assign(y.values.size(), 0);
    cpu::convolve(g, source.images, packed, bias.data(), destination.images, hook);
  };
  const auto first_bytes = run_and_copy(destination, 1, forward);
  expect_close(checks, describe(g, name + "forward"), destination.values(), y,
               taps * (g.depthwise ? 1 : g.source_channels / g.groups), destination_format);
  checks.expect(destination.guarded(), describe(g, name + "forward wrote beside the destination"));
  checks.expect(!hooked || seen_once(count),
                describe(g, name + "forward did not show each result once"));
  checks.expect(first_bytes == run_and_copy(destination, 3, forward),
                describe(g, name + "forward depends on threads"));

  const auto data = [&] {
    count.of_source = true;
    count.seen.assign(dx.values.size(), 0);
    cpu::convolution_data_gradient(g, gradient.images, packed,
                                   source_bias ? other_bias.data() : nullptr,
                                   source_gradient.images, hook);
  };
  const auto first_data = run_and_copy(source_gradient, 1, data);
  expect_close(checks, describe(g, name + "data gradient"), source_gradient.values(), dx,
               taps * (g.depthwise ? 1 : g.destination_channels / g.groups),
               source_gradient.images.format);
  checks.expect(source_gradient.guarded(),
                describe(g, name + "data gradient wrote beside its result"));
  checks.expect(!hooked || seen_once(count),
                describe(g, name + "data gradient did not show each result once"));
  checks.expect(first_data == run_and_copy(source_gradient, 3, data),
                describe(g, name + "data gradient depends on threads"));

  std::vector<float> weight_gradient(weights.size() + 2, 77.0F);
  std::vector<float> bias_gradient(bias.size() + 2, 77.0F);
  const Index positions = g.batch * g.destination_height * g.destination_width;
  cpu::set_thread_count(1);
  cpu::convolution_weight_gradient(g, source.images, gradient.images, weight_gradient.data() + 1,
                                   bias_gradient.data() + 1, false);
  const auto inner = [](const std::vector<float>& v) {
    return std::vector<float>(v.begin() + 1, v.end() - 1);
  };
  expect_close(checks, describe(g, name + "weight gradient"), to_doubles(inner(weight_gradient)),
               dw, positions, ChannelFormat::Float32);
  expect_close(checks, describe(g, name + "bias gradient"), to_doubles(inner(bias_gradient)), db,
               positions, ChannelFormat::Float32);
  checks.expect(weight_gradient.front() == 77.0F && weight_gradient.back() == 77.0F &&
                    bias_gradient.front() == 77.0F && bias_gradient.back() == 77.0F,
                describe(g, name + "weight gradient wrote beside its result"));
  std::vector<float> threaded(weights.size());
  std::vector<float> threaded_bias(bias.size());
  cpu::set_thread_count(3);
  cpu::convolution_weight_gradient(g, source.images, gradient.images, threaded.data(),
                                   threaded_bias.data(), false);
  checks.expect(threaded == inner(weight_gradient) && threaded_bias == inner(bias_gradient),
                describe(g, name + "weight gradient depends on threads"));
  // A second encode into the same state adds.
  cpu::convolution_weight_gradient(g, source.images, gradient.images, threaded.data(), nullptr,
                                   true);
  for (std::size_t i = 0; i < dw.values.size(); ++i) {
    dw.values[i] *= 2;
    dw.magnitudes[i] *= 2;
  }
  expect_close(checks, describe(g, name + "accumulated weight gradient"), to_doubles(threaded), dw,
               positions, ChannelFormat::Float32);

  std::vector<float> sums(at(g.source_channels), 5.0F);
  cpu::convolution_channel_sums(g.batch, g.source_height, g.source_width, g.source_channels,
                                source.images, sums.data(), false);
  expect_close(checks, describe(g, name + "channel sums"), to_doubles(sums), sx,
               g.batch * g.source_height * g.source_width, ChannelFormat::Float32);
}

struct Example {  // one row
  const char* name;
  Index channels;
  std::vector<float> source, weights, gradient;
  float bias;
  Index stride, dilation, first;
  std::vector<float> result, source_gradient, weight_gradient, bias_gradient;
};

void examples(Checks& checks) {
  const std::vector<Example> all{
      {"A",
       1,
       {1, 2, 3, 4, 5},
       {1, 2, 3},
       {1, 10, 100},
       0.5F,
       2,
       1,
       -1,
       {8.5F, 20.5F, 14.5F},
       {2, 13, 20, 130, 200},
       {420, 531, 42},
       {111}},
      {"B", 1, {1, 2, 3}, {1, 10}, {1, 2}, 0, 1, 1, 0, {21, 32}, {1, 12, 20}, {5, 8}, {3}},
      {"B shifted",
       1,
       {1, 2, 3},
       {1, 10},
       {1, 2, 0},
       0,
       1,
       1,
       -1,
       {10, 21, 32},
       {12, 20, 0},
       {2, 5},
       {3}},
      {"C",
       1,
       {1, 2, 3, 4, 5},
       {1, 10, 100},
       {1, 0, 0, 0, 0},
       0,
       1,
       2,
       -2,
       {310, 420, 531, 42, 53},
       {10, 0, 100, 0, 0},
       {0, 1, 3},
       {1}},
      {"C even",
       1,
       {1, 2, 3, 4, 5},
       {1, 10},
       {0, 0, 1, 0, 0},
       0,
       1,
       3,
       -1,
       {30, 41, 52, 3, 4},
       {0, 1, 0, 0, 10},
       {2, 5},
       {1}},
      {"D",
       2,
       {1, 10, 2, 20, 3, 30},
       {1, 2, 3, 4},
       {1, 1, 1, 1},
       0,
       1,
       1,
       0,
       {5, 110, 8, 180},
       {1, 3, 3, 7, 2, 4},
       {3, 5, 30, 50},
       {2, 2}},
  };
  for (const Example& example : all) {
    ConvolutionGeometry g;
    g.source_channels = g.destination_channels = example.channels;
    g.depthwise = example.channels > 1;
    g.source_width = static_cast<Index>(example.source.size()) / example.channels;
    g.destination_width = static_cast<Index>(example.result.size()) / example.channels;
    g.kernel_width = static_cast<Index>(example.weights.size()) / example.channels;
    g.stride_x = example.stride;
    g.dilation_x = example.dilation;
    g.first_x = example.first;
    std::vector<float> source = example.source;
    std::vector<float> gradient = example.gradient;
    std::vector<float> result(example.result.size());
    std::vector<float> source_gradient(source.size());
    std::vector<float> weight_gradient(example.weights.size());
    std::vector<float> bias_gradient(at(example.channels));
    const std::vector<float> bias(at(example.channels), example.bias);
    const auto images = [&](std::vector<float>& values, std::byte*& sample) {
      sample = reinterpret_cast<std::byte*>(values.data());
      return ConvolutionImages{ChannelFormat::Float32, 0, example.channels, &sample};
    };
    std::byte* samples[4];
    const ConvolutionImages x = images(source, samples[0]);
    const ConvolutionImages e = images(gradient, samples[1]);
    const ConvolutionWeights weights(example.weights.data(), nullptr);
    cpu::convolve(g, x, weights, bias.data(), images(result, samples[2]));
    cpu::convolution_data_gradient(g, e, weights, nullptr, images(source_gradient, samples[3]));
    cpu::convolution_weight_gradient(g, x, e, weight_gradient.data(), bias_gradient.data(), false);
    const std::string name = "example ";
    checks.expect(result == example.result, name + example.name + ": forward");
    checks.expect(source_gradient == example.source_gradient,
                  name + example.name + ": data gradient");
    checks.expect(weight_gradient == example.weight_gradient,
                  name + example.name + ": weight gradient");
    checks.expect(bias_gradient == example.bias_gradient, name + example.name + ": bias gradient");
  }
}

// Weight gradients of depthwise windows in the order of memory, which only some processors use, are
// those of walks down the rows: of integers, whose sums are exact in any order.
void in_order(Checks& checks, std::uint64_t seed) {
  const DepthwiseGradientLoops& loops = depthwise_gradient_loops();
  if (!loops.walks_down(3, 3, 1)) {
    return;  // neither is there for this instruction set
  }
  Random random(seed);
  const Index stride = random.between(1, 2);
  const Index channels = random.chance(10) ? random.between(500, 600) : random.between(1, 70);
  const Index width = random.between(1, 40);
  const Index rows = random.between(1, 6);
  const Index first_x = random.between(-2, 1);
  const Index source_width = std::max<Index>(1, (width - 1) * stride + random.between(-2, 4));
  const Index source_rows = (rows - 1) * stride + 3;
  const auto integers = [&](Index count) {
    std::vector<float> values(at(count));
    for (float& value : values) {
      value = static_cast<float>(random.between(-9, 9));
    }
    return values;
  };
  const std::vector<float> source = integers(source_rows * source_width * channels);
  const std::vector<float> gradient = integers(rows * width * channels);
  std::vector<const float*> source_at;
  std::vector<const float*> gradient_at;
  const Index above = random.between(0, 1);  // rows that lie outside of the image
  const Index below = random.between(0, 1);
  for (Index row = 0; row < rows; ++row) {
    gradient_at.push_back(gradient.data() + row * width * channels);
    for (Index q = 0; q < 3; ++q) {
      const Index y = row * stride + q;
      const bool outside = y < above || y >= source_rows - below;
      source_at.push_back(outside ? nullptr : source.data() + y * source_width * channels);
    }
  }
  Index begin[3];
  Index end[3];
  for (Index p = 0; p < 3; ++p) {
    const auto inside = [&](Index i) {
      const Index x = first_x + p + i * stride;
      return x >= 0 && x < source_width;
    };
    begin[p] = 0;
    while (begin[p] < width && !inside(begin[p])) {
      ++begin[p];
    }
    end[p] = begin[p];
    while (end[p] < width && inside(end[p])) {
      ++end[p];
    }
  }
  WeightGradientTask task{};
  task.gradient = gradient_at.data();
  task.source = source_at.data();
  task.rows = rows;
  task.width = width;
  task.taps_y = task.taps_x = 3;
  task.gradient_step = task.source_tap_step = channels;
  task.source_step = stride * channels;
  task.source_offset = first_x * channels;
  task.begin = begin;
  task.end = end;
  task.walks = true;
  task.first_element = -first_x * channels;
  task.last_element = (source_width - first_x) * channels;
  task.groups = task.mixed = 1;
  task.group_sources = task.group_gradients = task.last_gradient = channels;
  std::vector<float> expected = integers(9 * channels);
  std::vector<float> expected_bias = integers(channels);
  std::vector<float> actual = expected;
  std::vector<float> actual_bias = expected_bias;
  task.out = expected.data();
  task.bias = expected_bias.data();
  loops.weights(task);
  task.out = actual.data();
  task.bias = actual_bias.data();
  task.in_order = true;
  task.asks = random.chance(50);
  loops.weights(task);
  const std::string name = "in order, seed " + std::to_string(seed);
  checks.expect(actual == expected, name + ": weight gradient");
  checks.expect(actual_bias == expected_bias, name + ": bias gradient");
}

}  // namespace
}  // namespace mpsgrad::test

int main(int argc, char** argv) {
  try {
    std::printf("selected: %s\n", mpsgrad::isa_name(mpsgrad::selected_isa()));
  } catch (const std::invalid_argument& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
  mpsgrad::test::Checks checks;
  mpsgrad::test::examples(checks);
  const long cases = argc > 1 ? std::atol(argv[1]) : 2000;
  const long first = argc > 2 ? std::atol(argv[2]) : 1;
  for (long i = 0; i < cases; ++i) {
    mpsgrad::test::random_case(checks, static_cast<std::uint64_t>(first + i));
    mpsgrad::test::in_order(checks, static_cast<std::uint64_t>(first + i));
  }
  return checks.verdict("convolution_test");
}
