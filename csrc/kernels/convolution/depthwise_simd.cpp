// Convolutions whose result channels each read one operand channel, or a few that are neighbours:
// the forward pass and its data gradient. Channels lie along the lanes; pixels share what is
// loaded.
#include <type_traits>
#include <utility>

#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/depthwise_late_simd.hpp"
#include "kernels/convolution/depthwise_walk_simd.hpp"
#include "kernels/convolution/tile_sink_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

// Operands and results of a task: float32, or float16 where loops convert it.
template <class Element>
using Sink = std::conditional_t<std::is_same_v<Element, Half>, HalfSink, TileSink>;

template <class Element>
struct TapRow {
  const Element* operand;
  Index weights;  // of its first tap, from those of the first channel on
};
static_assert(sizeof(TapRow<Half>) <= 24);  // CorrelationTask::runs has room for that

template <class Element>
struct DepthwiseArguments {
  const TapRow<Element>* runs;  // one for each row of taps
  Index run_count;
  const TapRow<Element>* fresh;  // the first of those that no earlier row of results has read
  Index next_row;                // from there to what the next row of results reads
  bool in_sequence;              // ask for that line after line, instead of as it is read
  Index offset, step, tap_step;
  // What is not zeros, from the first operand of the tile: in elements, and in taps.
  Index first_element, last_element;
  Index first_column, last_column;
  Index tap_count;
  const float* weights;
  Index weight_step;  // from one tap to the next
  const float* bias;
  Element* out;
  Index out_step;
  bool streamed;
  OpenLine* lines;  // if so: one for each pixel
  Index channels;
};

template <int kPixels, class Element, class... Masks>
MPSGRAD_INLINE void put_pixels(const DepthwiseArguments<Element>& t, Index c,
                               const Vec (&sums)[kPixels], const Masks&... mask) {
  if constexpr (kStreamsResults && std::is_same_v<Element, float>) {
    if (t.streamed) {
#pragma GCC unroll 8
      for (int r = 0; r < kPixels; ++r) {
        stream_by_lines(t.lines[r], t.out + r * t.out_step + c, sums[r]);
      }
      return;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kPixels; ++r) {
    store(t.out + r * t.out_step + c, sums[r], mask...);
  }
}

// sums[r] += the products of the weights of its tap of a column with the members of each group.
template <int kPixels, int kTaps, int kStride, int kMixed, int... kMember>
MPSGRAD_INLINE void add_column(Vec (&sums)[kPixels], const Vec (&weights)[kTaps][kMixed],
                               int column, Vec x, std::integer_sequence<int, kMember...>) {
  constexpr std::make_integer_sequence<int, kLanes> kAll;
  const auto add = [&](int k, Vec value) MPSGRAD_MELT {
#pragma GCC unroll 8
    for (int r = 0; r < kPixels; ++r) {
      if (column - r * kStride >= 0 && column - r * kStride < kTaps) {
        sums[r] += weights[column - r * kStride][k] * value;
      }
    }
  };
  if constexpr (kMixed == 1) {
    add(0, x);
  } else {
    (add(kMember, member<kMixed, kMember>(x, kAll)), ...);
  }
}

// kPixels neighbours from kTaps taps of each row, kStride taps apart: what neighbours share is
// loaded once, and for groups of kMixed neighbouring channels spread over their lanes once.
template <int kPixels, int kTaps, int kStride, int kMixed, class Element, class... Masks>
MPSGRAD_INLINE void depthwise_vector(const DepthwiseArguments<Element>& t, Index c,
                                     const Masks&... mask) {
  Vec sums[kPixels];
  const Vec bias = load(t.bias + c);
#pragma GCC unroll 8
  for (int r = 0; r < kPixels; ++r) {
    sums[r] = bias;
  }
  const Index tap_step = t.tap_step;
  const auto columns = static_cast<std::uint64_t>(t.last_column - t.first_column);
  const TapRow<Element>* const end = t.runs + t.run_count;
  for (const TapRow<Element>* run = t.runs; run != end; ++run) {
    const Element* operand = run->operand + t.offset + c;
    const float* weights = t.weights + run->weights + c;
    Vec w[kTaps][kMixed];
#pragma GCC unroll 8
    for (int p = 0; p < kTaps; ++p) {
#pragma GCC unroll 8
      for (int k = 0; k < kMixed; ++k) {
        w[p][k] = load(weights + (p * kMixed + k) * t.weight_step, mask...);
      }
    }
#pragma GCC unroll 32
    for (int column = 0; column < (kPixels - 1) * kStride + kTaps; ++column) {
      if (static_cast<std::uint64_t>(column - t.first_column) < columns) {
        add_column<kPixels, kTaps, kStride>(sums, w, column, load(operand, mask...),
                                            std::make_integer_sequence<int, kMixed>{});
      }
      operand += tap_step;
    }
  }
  if (t.next_row != 0) {
    const Index begin = t.in_sequence ? c * kPixels * kStride : c;
    const Index apart = t.in_sequence ? kLanes : tap_step;
    for (const TapRow<Element>* run = t.fresh; run != end; ++run) {
      const Element* next = run->operand + t.offset + t.next_row + begin;
#pragma GCC unroll 16
      for (int column = 0; column < kPixels * kStride; ++column) {
        __builtin_prefetch(next + column * apart, 0, 2);
      }
    }
  }
  put_pixels(t, c, sums, mask...);
}

// sum += the products of weights[k] with value k of each run.
template <int... kMember>
MPSGRAD_INLINE void add_mixed(Vec& sum, const Vec* weights, Vec x,
                              std::integer_sequence<int, kMember...>) {
  if constexpr (sizeof...(kMember) == 1) {
    sum += weights[0] * x;
  } else {
    constexpr std::make_integer_sequence<int, kLanes> kAll;
    ((sum += weights[kMember] * member<sizeof...(kMember), kMember>(x, kAll)), ...);
  }
}

// The same for any number of taps and any stride, and for groups of kMixed neighbouring channels.
template <int kPixels, int kMixed, class Element, class... Masks>
MPSGRAD_INLINE void depthwise_any_vector(const DepthwiseArguments<Element>& t, Index c,
                                         const Masks&... mask) {
  Vec sums[kPixels];
#pragma GCC unroll 8
  for (int r = 0; r < kPixels; ++r) {
    sums[r] = load(t.bias + c);
  }
  const auto elements = static_cast<std::uint64_t>(t.last_element - t.first_element);
  for (Index i = 0; i < t.run_count; ++i) {
    const Element* operand = t.runs[i].operand + t.offset + c;
    const float* weights = t.weights + t.runs[i].weights + c;
    for (Index p = 0; p < t.tap_count; ++p) {
      Vec w[kMixed];
#pragma GCC unroll 8
      for (int k = 0; k < kMixed; ++k) {
        w[k] = load(weights, mask...);
        weights += t.weight_step;
      }
#pragma GCC unroll 8
      for (int r = 0; r < kPixels; ++r) {
        const Index element = p * t.tap_step + r * t.step;
        if (static_cast<std::uint64_t>(element - t.first_element) < elements) {
          add_mixed(sums[r], w, load(operand + element, mask...),
                    std::make_integer_sequence<int, kMixed>{});
        }
      }
    }
  }
  put_pixels(t, c, sums, mask...);
}

template <class Element, int kPixels, int kTaps, int kStride, int kMixed>
void depthwise_tile(const DepthwiseArguments<Element>& arguments) {
  const DepthwiseArguments<Element> t = arguments;
  const auto one = [&](Index c, const auto&... mask) MPSGRAD_MELT {
    if constexpr (kTaps > 0) {
      depthwise_vector<kPixels, kTaps, kStride, kMixed>(t, c, mask...);
    } else {
      depthwise_any_vector<kPixels, kMixed>(t, c, mask...);
    }
  };
  each_vector<kAtOnce<Element>>(t.channels, one);
}

template <class Element>
using DepthwiseFunction = void (*)(const DepthwiseArguments<Element>&);

constexpr int kDepthwisePixels = 8;  // of a tile, at most

// The tiles for so many taps at such a stride, in taps; 0: any.
template <class Element, int kTaps, int kStride, int kMixed = 1>
const DepthwiseFunction<Element>* depthwise_tiles() {
  static constexpr DepthwiseFunction<Element> kFunctions[kDepthwisePixels] = {
      depthwise_tile<Element, 1, kTaps, kStride, kMixed>,
      depthwise_tile<Element, 2, kTaps, kStride, kMixed>,
      depthwise_tile<Element, 3, kTaps, kStride, kMixed>,
      depthwise_tile<Element, 4, kTaps, kStride, kMixed>,
      depthwise_tile<Element, 5, kTaps, kStride, kMixed>,
      depthwise_tile<Element, 6, kTaps, kStride, kMixed>,
      depthwise_tile<Element, 7, kTaps, kStride, kMixed>,
      depthwise_tile<Element, 8, kTaps, kStride, kMixed>};
  return kFunctions;
}

// Larger groups fill a vector by themselves; smaller ones than of four channels there are not.
template <class Element, int kTaps, int kStride, int kMixed = 4>
const DepthwiseFunction<Element>* mixed_tiles(Index mixed) {
  if constexpr (kMixed <= kMostMixed) {
    return mixed == kMixed ? depthwise_tiles<Element, kTaps, kStride, kMixed>()
                           : mixed_tiles<Element, kTaps, kStride, 2 * kMixed>(mixed);
  } else {
    return nullptr;
  }
}

template <class Element>
const DepthwiseFunction<Element>* choose_depthwise_tiles(const CorrelationTask& task) {
  const bool dense = task.operand_step == task.operand_tap_step;
  const bool halved = task.operand_step == 2 * task.operand_tap_step;
  if (task.mixed > 1) {
    if (kRegisters <= 16) {  // too few for the weights of all taps of a row
      return mixed_tiles<Element, 0, 0>(task.mixed);
    }
    return task.taps_x == 3 && dense    ? mixed_tiles<Element, 3, 1>(task.mixed)
           : task.taps_x == 3 && halved ? mixed_tiles<Element, 3, 2>(task.mixed)
                                        : mixed_tiles<Element, 0, 0>(task.mixed);
  }
  if (dense) {
    switch (task.taps_x) {
      case 1:
        return depthwise_tiles<Element, 1, 1>();
      case 2:
        return depthwise_tiles<Element, 2, 1>();
      case 3:
        return depthwise_tiles<Element, 3, 1>();
      case 5:
        return depthwise_tiles<Element, 5, 1>();
      case 7:
        return depthwise_tiles<Element, 7, 1>();
      default:
        break;
    }
  } else if (halved) {
    switch (task.taps_x) {
      case 3:
        return depthwise_tiles<Element, 3, 2>();
      case 5:
        return depthwise_tiles<Element, 5, 2>();
      default:
        break;
    }
  }
  return depthwise_tiles<Element, 0, 0>();
}

// Some neighbouring results of each of some rows.
template <class Element>
struct DepthwiseWalk {
  WalkOperandsOf<Element> operands;
  const float* weights;
  Index weight_row, weight_step;  // from one tap to the one below and to the next
  const float* bias;
  Element* out;
  Index out_row, out_step;  // from row to row and from pixel to pixel
  bool streamed;
  LateResults* late;  // null: results are stored when they are made
};

// Sums of the rows of results that have begun, in one vector of channels, and what they are made
// with.
template <class Element, class Shape, int kPixels, class... Masks>
struct WalkSums {
  static constexpr int kTaps = Shape::kTaps;
  static constexpr bool kKeeps = kTaps <= 3;  // all weights in registers, else of a row of taps

  const DepthwiseWalk<Element>& t;
  Index c;
  Element* out;
  Index ended = 0;            // rows
  Vec weights[kTaps][kTaps];  // if kKeeps
  Vec bias;
  Vec sums[Shape::kSlots][kPixels];

  MPSGRAD_INLINE WalkSums(const DepthwiseWalk<Element>& walk, Index channel, const Masks&... mask)
      : t(walk), c(channel), out(walk.out + channel), bias(load(walk.bias + channel)) {
    if constexpr (kKeeps) {
#pragma GCC unroll 8
      for (int q = 0; q < kTaps; ++q) {
#pragma GCC unroll 8
        for (int p = 0; p < kTaps; ++p) {
          weights[q][p] = load(t.weights + q * t.weight_row + p * t.weight_step + c, mask...);
        }
      }
    }
  }

  MPSGRAD_INLINE void begin(const Masks&...) {
#pragma GCC unroll 8
    for (int r = 0; r < kPixels; ++r) {
      sums[0][r] = bias;
    }
  }

  template <int kPhase, int kFirst, int kLast>
  MPSGRAD_INLINE void add(const Element* row, Index ahead, const Masks&... mask) {
    constexpr int kStride = Shape::kStride;
    const auto add_column = [&](int slot, const Vec(&w)[kTaps], int column, Vec x) MPSGRAD_MELT {
#pragma GCC unroll 8
      for (int r = 0; r < kPixels; ++r) {
        if (column - r * kStride >= 0 && column - r * kStride < kTaps) {
          sums[slot][r] += w[column - r * kStride] * x;
        }
      }
    };
    if constexpr (kKeeps) {
      each_column<Shape, kPixels, true>(
          t.operands, row, ahead,
          [&](int column, Vec x) MPSGRAD_MELT {
#pragma GCC unroll 8
            for (int slot = kFirst; slot <= kLast; ++slot) {
              if (kPhase + kStride * slot < kTaps) {
                add_column(slot, weights[kPhase + kStride * slot], column, x);
              }
            }
          },
          mask...);
    } else {
      const auto add_slot = [&](auto number) MPSGRAD_MELT {
        constexpr int kSlot = decltype(number)::value;
        if constexpr (kSlot <= kLast && kPhase + kStride * kSlot < kTaps) {
          const float* from = t.weights + (kPhase + kStride * kSlot) * t.weight_row + c;
          Vec w[kTaps];
#pragma GCC unroll 8
          for (int p = 0; p < kTaps; ++p) {
            w[p] = load(from + p * t.weight_step, mask...);
          }
          each_column<Shape, kPixels, kSlot == kFirst>(
              t.operands, row, ahead,
              [&](int column, Vec x) MPSGRAD_MELT { add_column(kSlot, w, column, x); }, mask...);
        }
      };
      const auto add_slots = [&]<int... kSlot>(std::integer_sequence<int, kSlot...>) MPSGRAD_MELT {
        (add_slot(std::integral_constant<int, kFirst + kSlot>{}), ...);
      };
      add_slots(std::make_integer_sequence<int, kLast - kFirst + 1>{});
    }
  }

  MPSGRAD_INLINE void end(const Masks&... mask) {
    if constexpr (sizeof...(Masks) == 0 && std::is_same_v<Element, float>) {
      if (t.late != nullptr) {
        return end_late();
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kPixels; ++r) {
      const Vec value = sums[Shape::kSlots - 1][r];
      if constexpr (kLineVecs == 1 && sizeof...(Masks) == 0) {
        if (t.streamed) {
          stream(out + r * t.out_step, value);
          continue;
        }
      }
      store(out + r * t.out_step, value, mask...);
    }
    out += t.out_row;
  }

  // From the last pixel to the first: a row waits where that of the vector before does, a pixel on.
  MPSGRAD_INLINE void end_late() {
    const Index vector = c / kLanes;
    float* const room = t.late->room(vector, t.out + c, ended);
    const float* const before =
        vector == 0 ? nullptr : t.late->room(vector - 1, t.out + c - kLanes, ended);
#pragma GCC unroll 8
    for (int r = kPixels - 1; r >= 0; --r) {
      if (before != nullptr) {
        store(out + r * t.out_step - kLanes, load(before + r * kLanes));
      }
      store(room + r * kLanes, sums[Shape::kSlots - 1][r]);
    }
    out += t.out_row;
    ++ended;
  }

  MPSGRAD_INLINE void shift() { shift_slots<Shape, kPixels>(sums); }
};

// Results of the last vector of channels, which no other one follows.
void put_last(const DepthwiseWalk<float>& t, Index pixels) {
  const Index c = t.operands.channels - kLanes;
  for (Index row = 0; row < t.operands.count; ++row) {
    const float* const room = t.late->room(c / kLanes, t.out + c, row);
    for (Index r = 0; r < pixels; ++r) {
      store(t.out + row * t.out_row + r * t.out_step + c, load(room + r * kLanes));
    }
  }
}

template <class Element>
struct WalkDown {
  using Task = DepthwiseWalk<Element>;
  [[maybe_unused]] static constexpr Index kWhole = kAtOnce<Element>;
  template <int kSize, int kStep>
  using Shape = WalkShape<kSize, kSize, kStep, 1 + kSpare + (kSize <= 3 ? kSize * kSize : kSize)>;

  template <class Shape, int kPixels, class... Masks>
  MPSGRAD_INLINE static void vector(const Task& t, Index c, const Masks&... mask) {
    WalkSums<Element, Shape, kPixels, Masks...> sums(t, c, mask...);
    walk_vector<Shape>(t.operands, c, sums, mask...);
  }
};

// Null: rows are done one by one.
template <class Element>
const WalkFunctions<DepthwiseWalk<Element>>* choose_walks(Index mixed, Index taps_y, Index taps_x,
                                                          Index stride) {
  if (mixed > 1 || taps_x != taps_y) {
    return nullptr;
  }
  if (taps_x == 3 && stride == 1) {
    return walks_of<WalkDown<Element>, 3, 1>();
  }
  if (taps_x == 3 && stride == 2) {
    return walks_of<WalkDown<Element>, 3, 2>();
  }
  if (taps_x == 5 && stride == 2) {
    return walks_of<WalkDown<Element>, 5, 2>();
  }
  return nullptr;
}

bool walks_down(Index mixed, Index taps_y, Index taps_x, Index stride) {
  return choose_walks<float>(mixed, taps_y, taps_x, stride) != nullptr;
}

constexpr Index kHookChannels = 256;  // handed over at once

// Whether results are better stored late, and can be. Not on Intel's processors at stride 1, where
// they gain nothing from it and take the longer way.
bool comes_late(const DepthwiseWalk<float>& t, bool dense) {
  if (dense && foresees_rows()) {
    return false;
  }
  // Not both of the first two tap rows can be above the image.
  const float* const* rows = t.operands.rows;
  const float* const operand = rows[0] != nullptr ? rows[0] : rows[t.operands.apart];
  return t.operands.count <= LateResults::kRows && t.operands.channels % kLanes == 0 &&
         t.operands.tap_step == t.out_step && operand != nullptr &&
         LateResults::help(operand + t.operands.offset, t.out, t.out_step);
}

// `rows` rows from `row` on, at least two, each of which follows the one before.
template <class Element>
void walk_rows(const CorrelationTask& task, const WalkFunctions<DepthwiseWalk<Element>>& functions,
               Index row, Index rows) {
  Sink<Element> sink(task);
  const Index channels = task.group_results;
  const Index tiles = ceil_div(task.width, functions.pixels);
  const Index widest = ceil_div(task.width, tiles);
  Index part = channels;
  if (!sink.direct()) {
    part = larger(kSinkValues / (rows * widest) / kLanes, 1) * kLanes;
  } else if (task.hook.apply != nullptr) {
    part = kHookChannels;
  }
  LateResults late;
  DepthwiseWalk<Element> t{};
  t.operands.rows = task.operand + row * task.taps_y;
  t.operands.count = rows;
  t.operands.apart = task.taps_y;
  t.operands.tap_step = task.operand_tap_step;
  t.weight_row = task.kernel_width * task.weight_channels;
  t.weight_step = task.weight_channels;
  const Index tap = task.first_tap_y * task.kernel_width + task.first_tap_x;
  for (Index i = 0; i < tiles; ++i) {
    const Index x = i * task.width / tiles;
    const Index pixels = (i + 1) * task.width / tiles - x;
    t.operands.first_column =
        columns_before(task.first_operand - x * task.operand_step, task.operand_tap_step);
    t.operands.last_column =
        columns_before(task.last_operand - x * task.operand_step, task.operand_tap_step);
    t.operands.next = pixels * task.operand_step;
    for (Index c = 0; c < channels; c += part) {
      const Index here = smaller(part, channels - c);
      t.operands.channels = here;
      t.operands.offset = x * task.operand_step + c;
      t.weights = task.weights + tap * task.weight_channels + c;
      t.bias = task.bias + c;
      t.out = sink.begin(row, x, c, here);
      t.out_row = sink.begin(row + 1, x, c, here, pixels * here) - t.out;
      t.out_step = sink.step();
      t.streamed = sink.streams(t.out, here) && t.out_row * Index{sizeof(Element)} % kLine == 0;
      if constexpr (std::is_same_v<Element, float>) {
        const bool dense = task.operand_step == task.operand_tap_step;
        t.late = sink.direct() && !t.streamed && comes_late(t, dense) ? &late : nullptr;
      }
      functions.of[pixels](t);
      if constexpr (std::is_same_v<Element, float>) {
        if (t.late != nullptr) {
          put_last(t, pixels);
        }
      }
      for (Index r = 0; r < rows; ++r) {
        sink.finish(t.out + r * t.out_row, row + r, x, pixels, c, here);
      }
    }
  }
}

// Row by row.
template <class Element>
void depthwise_rows(const CorrelationTask& task, Index first_row, Index last_row) {
  const DepthwiseFunction<Element>* functions = choose_depthwise_tiles<Element>(task);
  // So many channels at a time that the sink's values have room for them.
  constexpr Index kChannels = kMaxRows * kMaxVecs / kDepthwisePixels * kLanes;
  Sink<Element> sink(task);
  const Index channels = task.group_results;
  const Index part = smaller(ceil_div(task.channels_at_once, kLanes) * kLanes,
                             sink.direct() ? channels : kChannels);
  auto* runs = static_cast<TapRow<Element>*>(task.runs);
  OpenLine lines[kDepthwisePixels];
  DepthwiseArguments<Element> t{};
  t.runs = runs;
  t.lines = lines;
  t.next_row = task.next_row;
  t.step = task.operand_step;
  t.tap_step = task.operand_tap_step;
  t.tap_count = task.taps_x;
  t.weight_step = task.weight_channels;
  const Index tiles = ceil_div(task.width, Index{kDepthwisePixels});
  for (Index c = 0; c < channels; c += part) {
    t.channels = smaller(part, channels - c);
    t.weights = task.weights + c;
    t.bias = task.bias + c;
    t.in_sequence = foresees_rows() && t.channels == t.tap_step;
    for (Index row = first_row; row < last_row; ++row) {
      t.run_count = 0;
      for (Index q = 0; q < task.taps_y && task.taps_x > 0; ++q) {
        const auto* operand = row_of<Element>(task.operand[row * task.taps_y + q]);
        if (q == task.taps_y - task.fresh_rows) {
          t.fresh = runs + t.run_count;
        }
        if (operand != nullptr) {
          const Index tap = (task.first_tap_y + q) * task.kernel_width + task.first_tap_x;
          runs[t.run_count++] = {operand, tap * task.mixed * task.weight_channels};
        }
      }
      for (Index i = 0; i < tiles; ++i) {
        const Index x = i * task.width / tiles;
        const Index pixels = (i + 1) * task.width / tiles - x;
        t.offset = x * task.operand_step + c;
        t.first_element = task.first_operand - x * task.operand_step;
        t.last_element = task.last_operand - x * task.operand_step;
        t.first_column = columns_before(t.first_element, task.operand_tap_step);
        t.last_column = columns_before(t.last_element, task.operand_tap_step);
        t.out = sink.begin(row, x, c, t.channels);
        t.out_step = sink.step();
        t.streamed = sink.streams(t.out, t.channels);
        functions[pixels - 1](t);
        sink.finish(t.out, row, x, pixels, c, t.channels);
      }
    }
  }
}

template <class Element>
void correlate_elements(const CorrelationTask& task) {
  const Index stride = task.operand_step == task.operand_tap_step       ? 1
                       : task.operand_step == 2 * task.operand_tap_step ? 2
                                                                        : 0;
  const auto* const walks = choose_walks<Element>(task.mixed, task.taps_y, task.taps_x, stride);
  const bool streams = task.streamed && std::is_same_v<Element, float>;
  if (walks == nullptr || (streams && foresees_rows())) {
    depthwise_rows<Element>(task, 0, task.rows);
    return;
  }
  // What does not go straight to its place has to fit where it waits.
  const Index most =
      Sink<Element>(task).direct() ? task.rows : kSinkValues / (walks->pixels * kLanes);
  for (Index row = 0; row < task.rows;) {
    Index following = 1;
    while (row + following < task.rows &&
           task.result[row + following].sample == task.result[row].sample) {
      ++following;
    }
    following = rows_that_follow(task.operand, row, row + following, task.taps_y, stride);
    const Index parts = ceil_div(following, most);
    for (Index i = 0; i < parts; ++i) {
      const Index first = i * following / parts;
      const Index rows = (i + 1) * following / parts - first;
      if (rows > 1 && rows >= walks->least_rows) {
        walk_rows(task, *walks, row + first, rows);
      } else {
        depthwise_rows<Element>(task, row + first, row + first + rows);
      }
    }
    row += following;
  }
}

void correlate_depthwise(const CorrelationTask& task) {
  if constexpr (kHalvesAtOnce > 0) {
    if (task.halves) {
      return correlate_elements<Half>(task);
    }
  }
  correlate_elements<float>(task);
}

}  // namespace

const DepthwiseLoops depthwise_loops{kMostMixed, kHalvesAtOnce, correlate_depthwise, walks_down};

}  // namespace mpsgrad::MPSGRAD_ISA
