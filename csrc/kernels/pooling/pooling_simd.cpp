// Pooling loops: windows outside, channels inside, a block of channels in registers while the taps
// of a window go by.
#include "kernels/pooling/pooling_simd.hpp"

#include <type_traits>

#include "cpu/simd/lanes.hpp"
#include "cpu/simd/streaming.hpp"
#include "kernels/pooling/pooling_runs_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

// Where results are streamed there are no blocks but whole vectors.
template <bool kStream, class Block, class Out, class V>
MPSGRAD_INLINE void put_result(Block block, Out* to, V result) {
  if constexpr (kStream && !std::is_same_v<Block, OneElement>) {
    stream(to, result);
  } else {
    block.put(to, result);
  }
}

// ---- Forward

// What the three reductions differ in. `start` is what a window without taps holds.

struct Maximum {
  float start;

  Maximum(const PoolingRow& row, const PoolingRun& run)
      : start(row.meets_padding || run.meets_padding ? 0.0F : -__builtin_inff()) {}
  template <class V>
  MPSGRAD_INLINE V tap(V best, V x, float /*weight*/) const {
    return x > best ? x : best;  // NaN is no maximum, wherever in the window it lies
  }
  template <class V>
  MPSGRAD_INLINE V finish(V best) const {
    return best;
  }
};

struct Average {
  static constexpr float start = 0.0F;
  float divisor;

  Average(const PoolingRow& row, const PoolingRun& run, float row_divisor)
      : divisor(row.ends ? row_divisor * run.divisor : 1.0F) {
    divisor = divisor > 0.0F ? divisor : 1.0F;  // nothing counts, and the sum is 0
  }
  template <class V>
  MPSGRAD_INLINE V tap(V total, V x, float /*weight*/) const {
    return total + x;
  }
  template <class V>
  MPSGRAD_INLINE V finish(V total) const {
    return total / divisor;
  }
};

struct Squares {
  static constexpr float start = 0.0F;
  float run_weight;

  Squares(const PoolingRow& /*row*/, const PoolingRun& run) : run_weight(run.weight) {}
  template <class V>
  MPSGRAD_INLINE V tap(V total, V x, float weight) const {
    return total + x * x * (weight * run_weight);
  }
  template <class V>
  MPSGRAD_INLINE V finish(V total) const {
    return total;
  }
};

template <Index kVectors, class Body>
MPSGRAD_INLINE void for_each_vector(const Body& body) {
#pragma GCC unroll 8
  for (Index v = 0; v < kVectors; ++v) {
    body(v);
  }
}

// Vectors of a stretch: one of the usual windows, of others eight, whose taps lie far apart, and
// whole stretches of each are read faster than one line of one after the other.
template <class Taps>
inline constexpr Index kStretch = std::is_same_v<Taps, Index> ? 8 : 1;

// Asks for the lines of a stretch, which may lie outside its array.
template <Index kElements, class Element>
MPSGRAD_INLINE void request_stretch(const Element* array, Index first) {
  for (Index e = 0; e < kElements; e += kLine / static_cast<Index>(sizeof(Element))) {
    request_later(array, first + e);
  }
}

template <bool kStream, class Element, class Make>
MPSGRAD_INLINE void reduce(const PoolingRow& row, const PoolingSource<Element>* sources,
                           Index count, float* pooled, const Make& make) {
  for_runs(row, count, [&](const PoolingRun& run, auto taps, auto rows) {
    // Copies, which nothing that is written can change.
    const Index step = row.dilation * row.channels;
    const auto fold = make(run);
    const bool begins = row.begins && run.begins;
    PoolingSource<Element> from_row[kMostPoolingRows];
    for (Index r = 0; r < rows; ++r) {
      from_row[r] = sources[r];
    }
    const auto pool = [&](auto vectors, auto block, Index from, Index to) MPSGRAD_MELT {
      using V = typename decltype(block)::Floats;
      constexpr Index kVectors = decltype(vectors){};
      constexpr Index kLanes = sizeof(V) / sizeof(float);
      V values[kVectors];
      for_each_vector<kVectors>([&](Index v) MPSGRAD_MELT {
        values[v] = begins ? V{} + fold.start : block.floats(pooled + to + v * kLanes);
      });
      for (Index r = 0; r < rows; ++r) {
        const Element* x = from_row[r].x + from;
        for (Index t = 0; t < taps; ++t) {
          for_each_vector<kVectors>([&](Index v) MPSGRAD_MELT {
            values[v] =
                fold.tap(values[v], block.floats(x + t * step + v * kLanes), from_row[r].weight);
          });
        }
      }
      for_each_vector<kVectors>([&](Index v) MPSGRAD_MELT {
        put_result<kStream>(block, pooled + to + v * kLanes, fold.finish(values[v]));
      });
    };
    for_windows_in_stretches<kStretch<decltype(taps)>>(row, run, begins, pool);
  });
}

template <class Element, class Make>
MPSGRAD_INLINE void reduce(const PoolingRow& row, const PoolingSource<Element>* sources,
                           Index count, float* pooled, const Make& make) {
  row.streamed ? reduce<true>(row, sources, count, pooled, make)
               : reduce<false>(row, sources, count, pooled, make);
}

template <class Element>
void maximum(const PoolingRow& row, const PoolingSource<Element>* sources, Index count,
             float* pooled) {
  reduce(row, sources, count, pooled, [&](const PoolingRun& run) { return Maximum(row, run); });
}

template <class Element>
void average(const PoolingRow& row, const PoolingSource<Element>* sources, Index count,
             float divisor, float* pooled) {
  reduce(row, sources, count, pooled,
         [&](const PoolingRun& run) { return Average(row, run, divisor); });
}

template <class Element>
void squares(const PoolingRow& row, const PoolingSource<Element>* sources, Index count,
             float* pooled) {
  reduce<false>(row, sources, count, pooled,
                [&](const PoolingRun& run) { return Squares(row, run); });
}

void root(float* MPSGRAD_RESTRICT pooled, Index count) {
  for (Index i = 0; i < count; ++i) {
    pooled[i] = __builtin_sqrtf(pooled[i]);
  }
}

// ---- Gradient of the maximum: all of a window's rows at once

// A value that the compiler does not know: GCC makes a maximum of ?: only between variables.
MPSGRAD_INLINE float minus_infinity() {
  float value = -__builtin_inff();
  asm("" : "+m"(value));
  return value;
}

// NaN, which is no maximum, as minus infinity, which is one only of its like.
template <class V>
MPSGRAD_INLINE V number_or(V value, float lowest) {
  const V floor = V{} + lowest;
  return value > floor ? value : floor;
}

// How windows give to pixels: several may read the same one, or none, and then what is given may go
// past the caches.
enum class Give { kAdd, kWrite, kStream };

template <Give kHow, class Block, class Out, class V>
MPSGRAD_INLINE void give(Block block, Out* to, V given) {
  if constexpr (kHow == Give::kAdd) {
    block.put(to, block.floats(to) + given);
  } else {
    put_result<kHow == Give::kStream>(block, to, given);
  }
}

// Vectors of a pixel that windows give to at a time.
template <Give kHow, class Out>
inline constexpr Index kGivenVectors = kHow == Give::kStream ? kLineVectors<Out> : 1;

// What a pixel takes of a window's share: all if it equals the maximum, so the first of equal ones.
// None does if a padding zero is larger.
template <class Block, class V>
MPSGRAD_INLINE V take(Block /*block*/, V value, V best, V& share) {
  using Bits = typename Block::Ints;
  const V taken = value == best ? share : V{};
  share = __builtin_bit_cast(V, __builtin_bit_cast(Bits, share) ^ __builtin_bit_cast(Bits, taken));
  return taken;
}

// The pixels that a row of windows reads, from the first one's first on, and what they are given.
template <class Element, class Out, Index kRows>
struct Windows {
  Index windows, channels;
  Index column;  // elements from a tap to the next
  Index apart;   // and from a window's gradient to the next
  const Element* x[kRows];
  Out* out[kRows];
  const Element* gradient;
  float start, lowest;
};

// Windows of three rows and taps of which each shares all but kShift columns with the next one, one
// block of channels after the other: pixels and what they have been given stay in registers as long
// as windows read them. The rows that follow are asked for in the order of their elements, which
// differs from this one; `position`: where to go on with that.
template <Index kShift, class Element>
MPSGRAD_INLINE void slide(const PoolingRow& row, const Windows<Element, float, 3>& given,
                          Index position) {
  constexpr Index kTaps = 3, kRows = 3;
  const Windows<Element, float, 3> w = given;
  const Index ahead = row.advance, fresh = row.fresh, gradient_ahead = row.gradient_advance;
  for_blocks(w.channels, [=](auto block, Index c) MPSGRAD_MELT {
    using V = typename decltype(block)::Floats;
    constexpr Index kLanes = sizeof(V) / sizeof(float);
    V values[kRows][kTaps], sums[kRows][kTaps], tops[kTaps];
    const auto take_up = [&](Index first, Index begin, Index end) MPSGRAD_MELT {
      for (Index t = begin; t < end; ++t) {
        const Index at = first + t * w.column;
        for (Index r = 0; r < kRows; ++r) {
          values[r][t] = number_or(block.floats(w.x[r] + at), w.lowest);
          sums[r][t] = block.floats(w.out[r] + at);
          tops[t] = r > 0 && tops[t] > values[r][t] ? tops[t] : values[r][t];
        }
      }
    };
    const auto put_down = [&](Index first, Index count) MPSGRAD_MELT {
      for (Index t = 0; t < count; ++t) {
        for (Index r = 0; r < kRows; ++r) {
          block.put(w.out[r] + first + t * w.column, sums[r][t]);
        }
      }
    };
    Index at = c;
    Index request_at = position + c * w.windows;
    take_up(at, 0, kTaps - kShift);
    for (Index i = 0; i < w.windows; ++i) {
      take_up(at, kTaps - kShift, kTaps);
      for (Index r = kRows - fresh; r < kRows; ++r) {
        for (Index s = 0; s < kShift; ++s) {
          request_later(w.x[r], ahead + request_at * kShift + s * kLanes);
        }
      }
      request_later(w.gradient, gradient_ahead + request_at);
      request_at += kLanes;

      V best = V{} + w.start;
      for (Index t = 0; t < kTaps; ++t) {
        best = tops[t] > best ? tops[t] : best;
      }
      V share = block.floats(w.gradient + i * w.apart + c);
      for (Index r = 0; r < kRows; ++r) {
        for (Index t = 0; t < kTaps; ++t) {
          sums[r][t] += take(block, values[r][t], best, share);
        }
      }
      put_down(at, kShift);
      for (Index t = 0; t + kShift < kTaps; ++t) {
        tops[t] = tops[t + kShift];
        for (Index r = 0; r < kRows; ++r) {
          values[r][t] = values[r][t + kShift];
          sums[r][t] = sums[r][t + kShift];
        }
      }
      at += kShift * w.column;
    }
    put_down(at, kTaps - kShift);
  });
}

// Every `dilation`-th window of a run shares columns with the one before.
template <class Element>
MPSGRAD_INLINE void slide_all(const PoolingRow& row, const PoolingRun& run,
                              const Windows<Element, float, kMostPoolingRows>& w) {
  const Index sequences = row.dilation < run.windows ? row.dilation : run.windows;
  Index position = 0;
  for (Index s = 0; s < sequences; ++s) {
    const Index from = (run.pixel + s) * w.channels;
    const Windows<Element, float, 3> next{(run.windows - s - 1) / row.dilation + 1,
                                          w.channels,
                                          w.column,
                                          row.dilation * w.channels,
                                          {w.x[0] + from, w.x[1] + from, w.x[2] + from},
                                          {w.out[0] + from, w.out[1] + from, w.out[2] + from},
                                          w.gradient + (run.window + s) * w.channels,
                                          w.start,
                                          w.lowest};
    row.stride == 1 ? slide<1>(row, next, position) : slide<2>(row, next, position);
    position += next.windows * w.channels;
  }
}

template <Give kHow, class Element, class Out>
MPSGRAD_INLINE void award(const PoolingRow& row, const PoolingSource<Element>* sources, Index count,
                          const Element* gradient, Out* const* out) {
  const float lowest = minus_infinity();
  for_runs(row, count, [&](const PoolingRun& run, auto taps, auto rows) {
    // Copies, which nothing that is written can change.
    Windows<Element, Out, kMostPoolingRows> w{};
    w.windows = run.windows;
    w.channels = row.channels;
    w.column = row.dilation * row.channels;
    w.apart = row.channels;
    w.gradient = gradient;
    w.start = Maximum(row, run).start;
    w.lowest = lowest;
    for (Index r = 0; r < rows; ++r) {
      w.x[r] = sources[r].x;
      w.out[r] = out[r];
    }
    if constexpr (kHow == Give::kAdd) {
      if constexpr (std::is_same_v<decltype(taps), Exactly<3>> &&
                    std::is_same_v<decltype(rows), Exactly<3>>) {
        if (row.channels >= kWidest &&
            (row.stride == 1 || (row.stride == 2 && row.dilation == 1))) {
          return slide_all(row, run, w);
        }
      }
    }
    const auto award_window = [=](auto vectors, auto block, Index from, Index window) MPSGRAD_MELT {
      using V = typename decltype(block)::Floats;
      constexpr bool kKept = !std::is_same_v<decltype(taps), Index>;
      constexpr Index kVectors = decltype(vectors){};
      constexpr Index kLanes = sizeof(V) / sizeof(float);
      V kept[kKept ? 9 : 1][kVectors];
      V best[kVectors], share[kVectors];
      for_each_vector<kVectors>([&](Index v) MPSGRAD_MELT {
        best[v] = V{} + w.start;
        share[v] = block.floats(w.gradient + window + v * kLanes);
      });
      for (Index r = 0; r < rows; ++r) {
        for (Index t = 0; t < taps; ++t) {
          const Element* x = w.x[r] + from + t * w.column;
          for_each_vector<kVectors>([&](Index v) MPSGRAD_MELT {
            const V value = number_or(block.floats(x + v * kLanes), lowest);
            best[v] = value > best[v] ? value : best[v];
            if constexpr (kKept) {
              kept[r * taps + t][v] = value;
            }
          });
        }
      }
      for (Index r = 0; r < rows; ++r) {
        for (Index t = 0; t < taps; ++t) {
          const Index at = from + t * w.column;
          for_each_vector<kVectors>([&](Index v) MPSGRAD_MELT {
            V value;
            if constexpr (kKept) {
              value = kept[r * taps + t][v];
            } else {
              value = number_or(block.floats(w.x[r] + at + v * kLanes), lowest);
            }
            give<kHow>(block, w.out[r] + at + v * kLanes, take(block, value, best[v], share[v]));
          });
        }
      }
    };
    const bool spills = kHow == Give::kWrite && row.stride == run.taps;
    for_windows_in_stretches<kGivenVectors<kHow, Out>>(row, run, spills, award_window);
  });
}

template <class Element>
void award_added(const PoolingRow& row, const PoolingSource<Element>* sources, Index count,
                 const Element* gradient, float* const* out) {
  award<Give::kAdd>(row, sources, count, gradient, out);
}

template <class Element>
void award_alone(const PoolingRow& row, const PoolingSource<Element>* sources, Index count,
                 const Element* gradient, Element* const* out) {
  row.streamed ? award<Give::kStream>(row, sources, count, gradient, out)
               : award<Give::kWrite>(row, sources, count, gradient, out);
}

// ---- Gradient of the maximum: row by row

// Calls visit(run, taps, number) for every run, with the number of its first tap in a row of the
// window: where edges are clamped, a window's runs follow each other.
template <class Visit>
MPSGRAD_INLINE void for_numbered_runs(const PoolingRow& row, const Visit& visit) {
  Index number = 0;
  for_runs(row, 1, [&](const PoolingRun& run, auto taps, auto /*rows*/) MPSGRAD_MELT {
    number = run.begins ? 0 : number;
    visit(run, taps, static_cast<std::int32_t>(number));
    number += taps;
  });
}

// Calls body(vectors, block, offset, first tap, past the last) for all taps of a window in a row:
// for each stretch of channels all of them, or, where taps are far apart, one pixel after the
// other.
template <Index kTogether, class Taps, class Body>
MPSGRAD_INLINE void for_taps(Taps taps, Index step, Index elements, const Body& body) {
  constexpr Index kFarApart = 1024;
  if (step < kFarApart || elements > step) {
    return for_stretches<kTogether>(elements, [=](auto vectors, auto block, Index c) MPSGRAD_MELT {
      body(vectors, block, c, Index{0}, taps);
    });
  }
  for (Index t = 0; t < taps; ++t) {
    for_stretches<kTogether>(elements, [=](auto vectors, auto block, Index c)
                                           MPSGRAD_MELT { body(vectors, block, c, t, t + 1); });
  }
}

template <class Element>
void winners(const PoolingRow& row, const PoolingSource<Element>* sources, Index count,
             std::int32_t first_number, std::int32_t numbers, float* best, std::int32_t* winner) {
  const Index step = row.dilation * row.channels;
  const Element* from_row[kMostPoolingRows];
  for (Index r = 0; r < count; ++r) {
    from_row[r] = sources[r].x;
  }
  for_numbered_runs(row, [&](const PoolingRun& run, auto taps, std::int32_t number) MPSGRAD_MELT {
    const std::int32_t first = first_number + number;
    const bool begins = row.begins && run.begins;
    const bool hides = row.ends && (row.meets_padding || run.meets_padding);
    for_windows(row, run, [=](Index from, Index window, Index elements) MPSGRAD_MELT {
      for_stretches<kStretch<decltype(taps)>>(
          elements, [=](auto vectors, auto block, Index c) MPSGRAD_MELT {
            using V = typename decltype(block)::Floats;
            using I = typename decltype(block)::Ints;
            constexpr Index kVectors = decltype(vectors){};
            constexpr Index kLanes = sizeof(V) / sizeof(float);
            V top[kVectors];
            I here[kVectors];
            for_each_vector<kVectors>([&](Index v) MPSGRAD_MELT {
              const Index at = window + c + v * kLanes;
              top[v] = begins ? V{} - __builtin_inff() : block.floats(best + at);
              here[v] = begins ? I{} + first : block.ints(winner + at);
            });
            for (Index r = 0; r < count; ++r) {
              const std::int32_t row_first = first + static_cast<std::int32_t>(r) * numbers;
              for (Index t = 0; t < taps; ++t) {
                const Element* x = from_row[r] + from + c + t * step;
                const std::int32_t tap = row_first + static_cast<std::int32_t>(t);
                if constexpr (kVectors > 1) {
                  request_stretch<kVectors * kLanes>(x, kVectors * kLanes);
                }
                for_each_vector<kVectors>([&](Index v) MPSGRAD_MELT {
                  const V value = block.floats(x + v * kLanes);
                  here[v] = value > top[v] ? I{} + tap : here[v];
                  top[v] = value > top[v] ? value : top[v];
                });
              }
            }
            for_each_vector<kVectors>([&](Index v) MPSGRAD_MELT {
              const Index at = window + c + v * kLanes;
              const I hidden = top[v] < V{} ? I{} - 1 : here[v];
              block.put(winner + at, hides ? hidden : here[v]);
              block.put(best + at, top[v]);
            });
          });
    });
  });
}

template <Give kHow, class Element, class Out>
MPSGRAD_INLINE void award_row(const PoolingRow& row, const std::int32_t* winner,
                              std::int32_t first_number, const Element* gradient, Out* out) {
  const Index step = row.dilation * row.channels;
  for_numbered_runs(row, [&](const PoolingRun& run, auto taps, std::int32_t number) MPSGRAD_MELT {
    const std::int32_t first = first_number + number;
    for_windows(row, run, [=](Index to, Index window, Index elements) MPSGRAD_MELT {
      for_taps<kGivenVectors<kHow, Out>>(
          taps, step, elements,
          [=](auto vectors, auto block, Index c, Index tap, auto past) MPSGRAD_MELT {
            using V = typename decltype(block)::Floats;
            using I = typename decltype(block)::Ints;
            constexpr Index kVectors = decltype(vectors){};
            constexpr Index kLanes = sizeof(V) / sizeof(float);
            V share[kVectors];
            I here[kVectors];
            for_each_vector<kVectors>([&](Index v) MPSGRAD_MELT {
              share[v] = block.floats(gradient + window + c + v * kLanes);
              here[v] = block.ints(winner + window + c + v * kLanes);
            });
            for (Index t = tap; t < past; ++t) {
              Out* pixel = out + to + c + t * step;
              const I number = I{} + (first + static_cast<std::int32_t>(t));
              for_each_vector<kVectors>([&](Index v) MPSGRAD_MELT {
                const V given = here[v] == number ? share[v] : V{};
                give<kHow>(block, pixel + v * kLanes, given);
              });
            }
          });
    });
  });
}

template <class Element>
void award_row_added(const PoolingRow& row, const std::int32_t* winner, std::int32_t first_number,
                     const Element* gradient, float* out) {
  award_row<Give::kAdd>(row, winner, first_number, gradient, out);
}

template <class Element>
void award_row_alone(const PoolingRow& row, const std::int32_t* winner, std::int32_t first_number,
                     const Element* gradient, Element* out) {
  row.streamed ? award_row<Give::kStream>(row, winner, first_number, gradient, out)
               : award_row<Give::kWrite>(row, winner, first_number, gradient, out);
}

// ---- Gradients of the average and the L2 norm: what each window gives

void per_root(const float* MPSGRAD_RESTRICT gradient, const float* MPSGRAD_RESTRICT total,
              Index count, float* MPSGRAD_RESTRICT share) {
  for (Index i = 0; i < count; ++i) {
    const float quotient = gradient[i] / __builtin_sqrtf(total[i]);
    share[i] = total[i] > 0.0F ? quotient : 0.0F;
  }
}

// ---- What each pixel gets

// Taps from the last to the first: in a long window a block of elements reaches over several
// windows, and has to write pixels before it adds to them.

void spread(const PoolingRow& row, const PoolingShares* shares, Index count, bool assign,
            float* out) {
  const Index step = row.dilation * row.channels;
  for_runs(row, count, [&](const PoolingRun& run, auto taps, auto rows) {
    const Index added = assign ? run.taken : Index{taps};
    const auto factor = [&](const PoolingShares& from) {
      const float divisor = from.divisor * run.divisor;
      return divisor > 0.0F ? from.weight * run.weight / divisor : 0.0F;
    };
    const float* given_by[kMostPoolingRows];
    float factors[kMostPoolingRows];
    for (Index r = 0; r < rows; ++r) {
      given_by[r] = shares[r].share;
      factors[r] = factor(shares[r]);
    }
    for_windows(row, run, [&](Index to, Index from, Index elements) {
      for_blocks(elements, [&](auto block, Index c) {
        auto given = block.floats(given_by[0] + from + c) * factors[0];
        for (Index r = 1; r < rows; ++r) {
          given += block.floats(given_by[r] + from + c) * factors[r];
        }
        for (Index t = taps - 1; t >= 0; --t) {
          float* pixel = out + to + c + t * step;
          block.put(pixel, t < added ? block.floats(pixel) + given : given);
        }
      });
    });
  });
}

void multiply(float* MPSGRAD_RESTRICT out, const float* MPSGRAD_RESTRICT x, Index count) {
  for (Index i = 0; i < count; ++i) {
    out[i] *= x[i];
  }
}

template <class Element>
constexpr PoolingSourceLoops<Element> kLoops{
    &maximum<Element>,     &average<Element>, &squares<Element>,         &award_added<Element>,
    &award_alone<Element>, &winners<Element>, &award_row_added<Element>, &award_row_alone<Element>};

}  // namespace

const PoolingLoops pooling_loops{
    {kLoops<float>, kLoops<Half>}, &root, &per_root, &spread, &multiply, kRegisters > 16};

}  // namespace mpsgrad::MPSGRAD_ISA
