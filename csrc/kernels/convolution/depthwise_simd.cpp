// Convolutions whose result channels each read one operand channel, or a few that are neighbours:
// the forward pass and its data gradient. Channels lie along the lanes; pixels share what is
// loaded.
#include <utility>

#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/tile_sink_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

struct TapRow {
  const float* operand;
  Index weights;  // of its first tap, from those of the first channel on
};
static_assert(sizeof(TapRow) <= 24);  // CorrelationTask::runs has room for that

struct DepthwiseArguments {
  const TapRow* runs;  // one for each row of taps
  Index run_count;
  const TapRow* fresh;  // the first of those that no earlier row of results has read
  Index next_row;       // from there to what the next row of results reads
  Index offset, step, tap_step;
  // What is not zeros, from the first operand of the tile: in elements, and in taps.
  Index first_element, last_element;
  Index first_column, last_column;
  Index tap_count;
  const float* weights;
  Index weight_step;  // from one tap to the next
  const float* bias;
  float* out;
  Index out_step;
  bool streamed;
  Index channels;
};

template <int kPixels, class... Masks>
MPSGRAD_INLINE void put_pixels(const DepthwiseArguments& t, Index c, const Vec (&sums)[kPixels],
                               const Masks&... mask) {
  if (kStreams && t.streamed) {
#pragma GCC unroll 8
    for (int r = 0; r < kPixels; ++r) {
      stream(t.out + r * t.out_step + c, sums[r]);
    }
    return;
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
  const auto add = [&](int k, Vec value) MPSGRAD_LAMBDA_INLINE {
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
template <int kPixels, int kTaps, int kStride, int kMixed, class... Masks>
MPSGRAD_INLINE void depthwise_vector(const DepthwiseArguments& t, Index c, const Masks&... mask) {
  Vec sums[kPixels];
  const Vec bias = load(t.bias + c);
#pragma GCC unroll 8
  for (int r = 0; r < kPixels; ++r) {
    sums[r] = bias;
  }
  const Index tap_step = t.tap_step;
  const auto columns = static_cast<std::uint64_t>(t.last_column - t.first_column);
  const TapRow* const end = t.runs + t.run_count;
  for (const TapRow* run = t.runs; run != end; ++run) {
    const float* operand = run->operand + t.offset + c;
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
    for (const TapRow* run = t.fresh; run != end; ++run) {
      const float* next = run->operand + t.offset + c + t.next_row;
#pragma GCC unroll 16
      for (int column = 0; column < kPixels * kStride; ++column) {
        __builtin_prefetch(next + column * tap_step, 0, 2);
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
template <int kPixels, int kMixed, class... Masks>
MPSGRAD_INLINE void depthwise_any_vector(const DepthwiseArguments& t, Index c,
                                         const Masks&... mask) {
  Vec sums[kPixels];
#pragma GCC unroll 8
  for (int r = 0; r < kPixels; ++r) {
    sums[r] = load(t.bias + c);
  }
  const auto elements = static_cast<std::uint64_t>(t.last_element - t.first_element);
  for (Index i = 0; i < t.run_count; ++i) {
    const float* operand = t.runs[i].operand + t.offset + c;
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

template <int kPixels, int kTaps, int kStride, int kMixed>
void depthwise_tile(const DepthwiseArguments& arguments) {
  const DepthwiseArguments t = arguments;
  const auto one = [&](Index c, const auto&... mask) MPSGRAD_LAMBDA_INLINE {
    if constexpr (kTaps > 0) {
      depthwise_vector<kPixels, kTaps, kStride, kMixed>(t, c, mask...);
    } else {
      depthwise_any_vector<kPixels, kMixed>(t, c, mask...);
    }
  };
  Index c = 0;
  for (; c + kLanes <= t.channels; c += kLanes) {
    one(c);
  }
  if (c < t.channels) {
    one(c, first_lanes(t.channels - c));
  }
}

using DepthwiseFunction = void (*)(const DepthwiseArguments&);

constexpr int kDepthwisePixels = 8;  // of a tile, at most

// The tiles for so many taps at such a stride, in taps; 0: any.
template <int kTaps, int kStride, int kMixed = 1>
const DepthwiseFunction* depthwise_tiles() {
  static constexpr DepthwiseFunction kFunctions[kDepthwisePixels] = {
      depthwise_tile<1, kTaps, kStride, kMixed>, depthwise_tile<2, kTaps, kStride, kMixed>,
      depthwise_tile<3, kTaps, kStride, kMixed>, depthwise_tile<4, kTaps, kStride, kMixed>,
      depthwise_tile<5, kTaps, kStride, kMixed>, depthwise_tile<6, kTaps, kStride, kMixed>,
      depthwise_tile<7, kTaps, kStride, kMixed>, depthwise_tile<8, kTaps, kStride, kMixed>};
  return kFunctions;
}

// Larger groups fill a vector by themselves; smaller ones than of four channels there are not.
template <int kTaps, int kStride, int kMixed = 4>
const DepthwiseFunction* mixed_tiles(Index mixed) {
  if constexpr (kMixed <= kMostMixed) {
    return mixed == kMixed ? depthwise_tiles<kTaps, kStride, kMixed>()
                           : mixed_tiles<kTaps, kStride, 2 * kMixed>(mixed);
  } else {
    return nullptr;
  }
}

const DepthwiseFunction* choose_depthwise_tiles(const CorrelationTask& task) {
  const bool dense = task.operand_step == task.operand_tap_step;
  const bool halved = task.operand_step == 2 * task.operand_tap_step;
  if (task.mixed > 1) {
    if (kRegisters <= 16) {  // too few for the weights of all taps of a row
      return mixed_tiles<0, 0>(task.mixed);
    }
    return task.taps_x == 3 && dense    ? mixed_tiles<3, 1>(task.mixed)
           : task.taps_x == 3 && halved ? mixed_tiles<3, 2>(task.mixed)
                                        : mixed_tiles<0, 0>(task.mixed);
  }
  if (dense) {
    switch (task.taps_x) {
      case 1:
        return depthwise_tiles<1, 1>();
      case 2:
        return depthwise_tiles<2, 1>();
      case 3:
        return depthwise_tiles<3, 1>();
      case 5:
        return depthwise_tiles<5, 1>();
      default:
        break;
    }
  } else if (halved) {
    switch (task.taps_x) {
      case 3:
        return depthwise_tiles<3, 2>();
      case 5:
        return depthwise_tiles<5, 2>();
      default:
        break;
    }
  }
  return depthwise_tiles<0, 0>();
}

// Some neighbouring results of each of some rows, where each row reads again what the row before
// has read, but for its last operands.
struct DepthwiseWalk {
  const float* const* operand;  // as CorrelationTask's, from the first row on
  Index rows;
  Index offset, tap_step;
  Index first_column, last_column;  // as DepthwiseArguments's
  Index next;                       // from operands to those of the next results of the rows
  const float* weights;
  Index weight_row, weight_step;  // from one tap to the one below and to the next
  const float* bias;
  float* out;
  Index out_row, out_step;  // from row to row and from pixel to pixel
  bool streamed;
  Index channels;
};

constexpr Index kFloatsAhead = 64;  // of operands that are requested, in a pixel

// Windows of kSize * kSize taps, kStep taps apart both ways.
template <int kSize, int kStep>
struct WalkShape {
  static constexpr int kTaps = kSize;
  static constexpr int kStride = kStep;
  static constexpr int kSlots = (kTaps + kStride - 1) / kStride;  // rows of results begun at a time
  static constexpr int kFree = kRegisters - 1 - kSpare;
  static constexpr bool kKeeps = kTaps <= 3;  // all weights in registers, else of a row of taps
  static constexpr int kWidest = (kFree - (kKeeps ? kTaps * kTaps : kTaps)) / kSlots;
  static constexpr int kPixels = kWidest < kDepthwisePixels ? kWidest : kDepthwisePixels;
};

template <class Shape, int kPixels>
struct WalkState {
  Vec weights[Shape::kTaps][Shape::kTaps];  // if Shape::kKeeps
  Vec bias;
  Vec sums[Shape::kSlots][kPixels];  // of the row of results begun last, the one before, and so on
};

// One row of operands for those rows of results, kFirst to kLast of those begun, whose taps it lies
// under: kPhase of the last one's, kStride more of the one before and so on.
template <class Shape, int kPixels, int kPhase, int kFirst, int kLast, class... Masks>
MPSGRAD_INLINE void walk_operands(const DepthwiseWalk& t, const float* row, Index c, Index ahead,
                                  WalkState<Shape, kPixels>& state, const Masks&... mask) {
  constexpr int kTaps = Shape::kTaps;
  constexpr int kStride = Shape::kStride;
  constexpr int kColumns = (kPixels - 1) * kStride + kTaps;
  const Index tap_step = t.tap_step;
  const auto columns = static_cast<std::uint64_t>(t.last_column - t.first_column);
  row += t.offset + c;
  const auto add = [&](int slot, const Vec(&weights)[kTaps], int column, Vec x)
                       MPSGRAD_LAMBDA_INLINE {
#pragma GCC unroll 8
                         for (int r = 0; r < kPixels; ++r) {
                           if (column - r * kStride >= 0 && column - r * kStride < kTaps) {
                             state.sums[slot][r] += weights[column - r * kStride] * x;
                           }
                         }
                       };
  if constexpr (Shape::kKeeps) {
    const float* operand = row;
#pragma GCC unroll 32
    for (int column = 0; column < kColumns; ++column) {
      if (static_cast<std::uint64_t>(column - t.first_column) < columns) {
        const Vec x = load(operand, mask...);
        if (column < kPixels * kStride) {
          __builtin_prefetch(operand + ahead, 0, 2);
        }
#pragma GCC unroll 8
        for (int slot = kFirst; slot <= kLast; ++slot) {
          if (kPhase + kStride * slot < kTaps) {
            add(slot, state.weights[kPhase + kStride * slot], column, x);
          }
        }
      }
      operand += tap_step;
    }
  } else {
#pragma GCC unroll 8
    for (int slot = kFirst; slot <= kLast; ++slot) {
      if (kPhase + kStride * slot < kTaps) {
        const float* weights = t.weights + (kPhase + kStride * slot) * t.weight_row + c;
        Vec w[kTaps];
#pragma GCC unroll 8
        for (int p = 0; p < kTaps; ++p) {
          w[p] = load(weights + p * t.weight_step, mask...);
        }
        const float* operand = row;
#pragma GCC unroll 32
        for (int column = 0; column < kColumns; ++column) {
          if (static_cast<std::uint64_t>(column - t.first_column) < columns) {
            if (slot == kFirst && column < kPixels * kStride) {
              __builtin_prefetch(operand + ahead, 0, 2);
            }
            add(slot, w, column, load(operand, mask...));
          }
          operand += tap_step;
        }
      }
    }
  }
}

// Down all rows, in one vector of channels: what rows share is loaded once. A row of operands takes
// part in every row of results at once, whose sums are kept in registers until they are whole.
template <class Shape, int kPixels, class... Masks>
MPSGRAD_INLINE void walk_vector(const DepthwiseWalk& t, Index c, const Masks&... mask) {
  constexpr int kTaps = Shape::kTaps;
  constexpr int kStride = Shape::kStride;
  constexpr int kSlots = Shape::kSlots;
  WalkState<Shape, kPixels> state;
  state.bias = load(t.bias + c);
  if constexpr (Shape::kKeeps) {
#pragma GCC unroll 8
    for (int q = 0; q < kTaps; ++q) {
#pragma GCC unroll 8
      for (int p = 0; p < kTaps; ++p) {
        state.weights[q][p] = load(t.weights + q * t.weight_row + p * t.weight_step + c, mask...);
      }
    }
  }
  // Columns that the tile to the left has not read: of later channels, or of the first ones of the
  // next tile.
  const Index later = c + kFloatsAhead < t.channels
                          ? kFloatsAhead
                          : t.next + kFloatsAhead - larger(t.channels, kFloatsAhead);
  const Index ahead = later + (kTaps - kStride) * t.tap_step;
  float* out = t.out + c;
  // The rows of operands where a row of results begins, or would begin.
  const auto step = [&](const float* const* rows, auto first, auto last) MPSGRAD_LAMBDA_INLINE {
    constexpr int kFirst = decltype(first)::value;
    constexpr int kLast = decltype(last)::value;
    if constexpr (kFirst == 0) {
#pragma GCC unroll 8
      for (int r = 0; r < kPixels; ++r) {
        state.sums[0][r] = state.bias;
      }
    }
    const auto phase = [&](auto number) MPSGRAD_LAMBDA_INLINE {
      constexpr int kPhase = decltype(number)::value;
      if constexpr (kPhase + kStride * kFirst < kTaps) {
        if (rows[kPhase] != nullptr) {
          walk_operands<Shape, kPixels, kPhase, kFirst, kLast>(t, rows[kPhase], c, ahead, state,
                                                               mask...);
        }
      }
    };
    phase(std::integral_constant<int, 0>{});
    if constexpr (kStride == 2) {
      phase(std::integral_constant<int, 1>{});
    }
    if constexpr (kLast == kSlots - 1) {
#pragma GCC unroll 8
      for (int r = 0; r < kPixels; ++r) {
        const Vec value = state.sums[kSlots - 1][r];
        if constexpr (kStreams && sizeof...(Masks) == 0) {
          if (t.streamed) {
            stream(out + r * t.out_step, value);
            continue;
          }
        }
        store(out + r * t.out_step, value, mask...);
      }
      out += t.out_row;
    }
#pragma GCC unroll 8
    for (int slot = kSlots - 1; slot > 0; --slot) {
#pragma GCC unroll 8
      for (int r = 0; r < kPixels; ++r) {
        state.sums[slot][r] = state.sums[slot - 1][r];
      }
    }
  };
  constexpr std::make_integer_sequence<int, kSlots - 1> kEnds;
  const float* const* rows = t.operand;
  const auto begin = [&]<int... kBegun>(std::integer_sequence<int, kBegun...>)
                         MPSGRAD_LAMBDA_INLINE {
                           (step(rows + kBegun * kTaps, std::integral_constant<int, 0>{},
                                 std::integral_constant<int, kBegun>{}),
                            ...);
                         };
  begin(kEnds);
  const float* const* const last = rows + (t.rows - 1) * kTaps;
  for (rows += (kSlots - 1) * kTaps; rows <= last; rows += kTaps) {
    step(rows, std::integral_constant<int, 0>{}, std::integral_constant<int, kSlots - 1>{});
  }
  const auto end = [&]<int... kEnded>(std::integer_sequence<int, kEnded...>) MPSGRAD_LAMBDA_INLINE {
    (step(last + kStride * (kEnded + 1), std::integral_constant<int, kEnded + 1>{},
          std::integral_constant<int, kSlots - 1>{}),
     ...);
  };
  end(kEnds);
}

template <class Shape, int kPixels>
void walk_down(const DepthwiseWalk& walk) {
  const DepthwiseWalk t = walk;
  Index c = 0;
  for (; c + kLanes <= t.channels; c += kLanes) {
    walk_vector<Shape, kPixels>(t, c);
  }
  if (c < t.channels) {
    walk_vector<Shape, kPixels>(t, c, first_lanes(t.channels - c));
  }
}

using WalkFunction = void (*)(const DepthwiseWalk&);

struct WalkFunctions {
  Index pixels = 0;                            // of a tile, at most
  Index least_rows = 0;                        // that can be done at once
  WalkFunction of[kDepthwisePixels + 1] = {};  // by pixels of the tile
};

template <class Shape, int kPixels>
constexpr void fill_walks(WalkFunctions& functions) {
  if constexpr (kPixels >= 1) {
    functions.of[kPixels] = walk_down<Shape, kPixels>;
    fill_walks<Shape, kPixels - 1>(functions);
  }
}

template <class Shape>
constexpr WalkFunctions make_walks() {
  WalkFunctions functions;
  functions.pixels = Shape::kPixels;
  functions.least_rows = Shape::kSlots - 1;
  fill_walks<Shape, Shape::kPixels>(functions);
  return functions;
}

template <class Shape>
const WalkFunctions* walks_of() {
  // Vectors shorter than a line would load each line several times, and with 16 registers too few
  // pixels are side by side: no gain over row by row.
  if constexpr (!kStreams || kRegisters <= 16) {
    return nullptr;
  } else {
    static constexpr WalkFunctions kFunctions = make_walks<Shape>();
    return &kFunctions;
  }
}

// Null: rows are done one by one.
const WalkFunctions* choose_walks(Index mixed, Index taps_y, Index taps_x, Index stride) {
  if (mixed > 1 || taps_x != taps_y) {
    return nullptr;
  }
  if (taps_x == 3 && stride == 1) {
    return walks_of<WalkShape<3, 1>>();
  }
  if (taps_x == 3 && stride == 2) {
    return walks_of<WalkShape<3, 2>>();
  }
  if (taps_x == 5 && stride == 2) {
    return walks_of<WalkShape<5, 2>>();
  }
  return nullptr;
}

bool walks_down(Index mixed, Index taps_y, Index taps_x, Index stride) {
  return choose_walks(mixed, taps_y, taps_x, stride) != nullptr;
}

// How many rows from `row` on read again what the row before has read, but for its last operands.
Index rows_that_follow(const CorrelationTask& task, Index row, Index stride) {
  const auto follows = [&](Index r) {
    if (task.result[r].sample != task.result[r - 1].sample) {
      return false;
    }
    const float* const* operand = task.operand + r * task.taps_y;
    for (Index q = 0; q + stride < task.taps_y; ++q) {
      if (operand[q] != operand[q - task.taps_y + stride]) {
        return false;
      }
    }
    return true;
  };
  Index count = 1;
  while (row + count < task.rows && follows(row + count)) {
    ++count;
  }
  return count;
}

constexpr Index kHookChannels = 256;  // handed over at once

// `rows` rows from `row` on, at least two, each of which follows the one before.
void walk_rows(const CorrelationTask& task, const WalkFunctions& functions, Index row, Index rows) {
  const Index channels = task.group_results;
  const bool direct = task.format == kFloat32 && task.hook.store;
  const Index tiles = ceil_div(task.width, functions.pixels);
  const Index widest = ceil_div(task.width, tiles);
  Index part = channels;
  if (!direct) {
    part = larger(kSinkValues / (rows * widest) / kLanes, 1) * kLanes;
  } else if (task.hook.apply != nullptr) {
    part = kHookChannels;
  }
  TileSink sink(task);
  DepthwiseWalk t{};
  t.operand = task.operand + row * task.taps_y;
  t.rows = rows;
  t.tap_step = task.operand_tap_step;
  t.weight_row = task.kernel_width * task.weight_channels;
  t.weight_step = task.weight_channels;
  const auto columns_before = [&](Index element) {
    return element <= 0 ? 0 : ceil_div(element, task.operand_tap_step);
  };
  const Index tap = task.first_tap_y * task.kernel_width + task.first_tap_x;
  for (Index i = 0; i < tiles; ++i) {
    const Index x = i * task.width / tiles;
    const Index pixels = (i + 1) * task.width / tiles - x;
    t.first_column = columns_before(task.first_operand - x * task.operand_step);
    t.last_column = columns_before(task.last_operand - x * task.operand_step);
    t.next = pixels * task.operand_step;
    for (Index c = 0; c < channels; c += part) {
      t.channels = smaller(part, channels - c);
      t.offset = x * task.operand_step + c;
      t.weights = task.weights + tap * task.weight_channels + c;
      t.bias = task.bias + c;
      t.out = sink.begin(row, x, c, t.channels);
      t.out_row = sink.begin(row + 1, x, c, t.channels, pixels * t.channels) - t.out;
      t.out_step = sink.step();
      t.streamed = sink.streams(t.out, t.channels) && t.out_row % kLanes == 0;
      functions.of[pixels](t);
      for (Index r = 0; r < rows; ++r) {
        sink.finish(t.out + r * t.out_row, row + r, x, pixels, c, t.channels);
      }
    }
  }
}

// Row by row.
void depthwise_rows(const CorrelationTask& task, Index first_row, Index last_row) {
  const DepthwiseFunction* functions = choose_depthwise_tiles(task);
  // So many channels at a time that the sink's values have room for them.
  constexpr Index kChannels = kMaxRows * kMaxVecs / kDepthwisePixels * kLanes;
  const bool direct = task.format == kFloat32 && task.hook.store;
  const Index channels = task.group_results;
  const Index part =
      smaller(ceil_div(task.channels_at_once, kLanes) * kLanes, direct ? channels : kChannels);
  auto* runs = static_cast<TapRow*>(task.runs);
  TileSink sink(task);
  DepthwiseArguments t{};
  t.runs = runs;
  t.next_row = task.next_row;
  t.step = task.operand_step;
  t.tap_step = task.operand_tap_step;
  t.tap_count = task.taps_x;
  t.weight_step = task.weight_channels;
  const Index tiles = ceil_div(task.width, Index{kDepthwisePixels});
  const auto columns_before = [&](Index element) {
    return element <= 0 ? 0 : ceil_div(element, task.operand_tap_step);
  };
  for (Index c = 0; c < channels; c += part) {
    t.channels = smaller(part, channels - c);
    t.weights = task.weights + c;
    t.bias = task.bias + c;
    for (Index row = first_row; row < last_row; ++row) {
      t.run_count = 0;
      for (Index q = 0; q < task.taps_y && task.taps_x > 0; ++q) {
        const float* operand = task.operand[row * task.taps_y + q];
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
        t.first_column = columns_before(t.first_element);
        t.last_column = columns_before(t.last_element);
        t.out = sink.begin(row, x, c, t.channels);
        t.out_step = sink.step();
        t.streamed = sink.streams(t.out, t.channels);
        functions[pixels - 1](t);
        sink.finish(t.out, row, x, pixels, c, t.channels);
      }
    }
  }
}

void correlate_depthwise(const CorrelationTask& task) {
  const Index stride = task.operand_step == task.operand_tap_step       ? 1
                       : task.operand_step == 2 * task.operand_tap_step ? 2
                                                                        : 0;
  const WalkFunctions* walks = choose_walks(task.mixed, task.taps_y, task.taps_x, stride);
  if (walks == nullptr) {
    depthwise_rows(task, 0, task.rows);
    return;
  }
  // What does not go straight to its place has to fit where it waits.
  const bool direct = task.format == kFloat32 && task.hook.store;
  const Index most = direct ? task.rows : kSinkValues / (walks->pixels * kLanes);
  for (Index row = 0; row < task.rows;) {
    const Index following = rows_that_follow(task, row, stride);
    const Index parts = ceil_div(following, most);
    for (Index i = 0; i < parts; ++i) {
      const Index first = i * following / parts;
      const Index rows = (i + 1) * following / parts - first;
      if (rows > 1 && rows >= walks->least_rows) {
        walk_rows(task, *walks, row + first, rows);
      } else {
        depthwise_rows(task, row + first, row + first + rows);
      }
    }
    row += following;
  }
}

}  // namespace

const DepthwiseLoops depthwise_loops{kMostMixed, correlate_depthwise, walks_down};

}  // namespace mpsgrad::MPSGRAD_ISA
