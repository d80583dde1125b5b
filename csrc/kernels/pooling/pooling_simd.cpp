// Pooling loops: windows outside, channels inside, a block of channels in registers while the taps
// of a window go by.
#include "kernels/pooling/pooling_simd.hpp"

#include "cpu/simd/lanes.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// Calls body(offset in a row of pixels, offset in the row of windows, elements) for every window of
// a run. Windows one pixel apart make one long window: they are contiguous on both sides.
template <class Body>
MPSGRAD_INLINE void for_windows(const PoolingRow& row, const PoolingRun& run, const Body& body) {
  const Index channels = row.channels;
  if (row.stride == 1) {
    body(run.pixel * channels, run.window * channels, run.windows * channels);
    return;
  }
  for (Index w = 0; w < run.windows; ++w) {
    body((run.pixel + w * row.stride) * channels, (run.window + w) * channels, channels);
  }
}

// A number of taps or rows that is a constant.
template <Index kCount>
struct Exactly {
  constexpr operator Index() const { return kCount; }
};

// Calls visit(run, taps, rows) for every run; the usual windows have constants.
template <class Visit>
MPSGRAD_INLINE void for_runs(const PoolingRow& row, Index rows, const Visit& visit) {
  for (Index r = 0; r < row.run_count; ++r) {
    const PoolingRun& run = row.runs[r];
    if (run.taps == 2 && rows == 1) {
      visit(run, Exactly<2>{}, Exactly<1>{});
    } else if (run.taps == 2 && rows == 2) {
      visit(run, Exactly<2>{}, Exactly<2>{});
    } else if (run.taps == 3 && rows == 1) {
      visit(run, Exactly<3>{}, Exactly<1>{});
    } else if (run.taps == 3 && rows == 2) {
      visit(run, Exactly<3>{}, Exactly<2>{});
    } else if (run.taps == 3 && rows == 3) {
      visit(run, Exactly<3>{}, Exactly<3>{});
    } else {
      visit(run, run.taps, rows);
    }
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
    return best > x ? best : x;
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

template <class Element, class Make>
MPSGRAD_INLINE void reduce(const PoolingRow& row, const PoolingSource<Element>* sources,
                           Index count, float* pooled, const Make& make) {
  const Index step = row.dilation * row.channels;
  for_runs(row, count, [&](const PoolingRun& run, auto taps, auto rows) {
    const auto fold = make(run);
    const bool begins = row.begins && run.begins;
    for_windows(row, run, [&](Index from, Index to, Index elements) {
      for_blocks(elements, [&](auto block, Index c) {
        using V = typename decltype(block)::Floats;
        V value = begins ? V{} + fold.start : block.floats(pooled + to + c);
        for (Index r = 0; r < rows; ++r) {
          const Element* x = sources[r].x + from + c;
          for (Index t = 0; t < taps; ++t) {
            value = fold.tap(value, block.floats(x + t * step), sources[r].weight);
          }
        }
        block.put(pooled + to + c, fold.finish(value));
      });
    });
  });
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
  reduce(row, sources, count, pooled, [&](const PoolingRun& run) { return Squares(row, run); });
}

void root(float* MPSGRAD_RESTRICT pooled, Index count) {
  for (Index i = 0; i < count; ++i) {
    pooled[i] = __builtin_sqrtf(pooled[i]);
  }
}

// ---- Gradient: what each window gives

template <class Element>
void winners(const PoolingRow& row, const PoolingSource<Element>* sources, Index count, float* best,
             std::int32_t* index) {
  const Index step = row.dilation * row.channels;
  for_runs(row, count, [&](const PoolingRun& run, auto taps, auto rows) {
    const bool begins = row.begins && run.begins;
    const bool hides = row.ends && (row.meets_padding || run.meets_padding);
    // The first pixel wins even if all are minus infinity.
    const std::int32_t start = taps > 0 && rows > 0 ? sources[0].first_number + run.first_tap : -1;
    for_windows(row, run, [&](Index from, Index to, Index elements) {
      for_blocks(elements, [&](auto block, Index c) {
        using V = typename decltype(block)::Floats;
        using I = typename decltype(block)::Ints;
        V top = begins ? V{} - __builtin_inff() : block.floats(best + to + c);
        I winner = begins ? I{} + start : block.ints(index + to + c);
        for (Index r = 0; r < rows; ++r) {
          const Element* x = sources[r].x + from + c;
          const std::int32_t first = sources[r].first_number + run.first_tap;
          for (Index t = 0; t < taps; ++t) {
            const V value = block.floats(x + t * step);
            winner = value > top ? I{} + (first + static_cast<std::int32_t>(t)) : winner;
            top = value > top ? value : top;
          }
        }
        if (hides) {
          winner = top < V{} ? I{} - 1 : winner;
        }
        block.put(index + to + c, winner);
        if (best != nullptr) {
          block.put(best + to + c, top);
        }
      });
    });
  });
}

void per_root(const float* MPSGRAD_RESTRICT gradient, const float* MPSGRAD_RESTRICT total,
              Index count, float* MPSGRAD_RESTRICT share) {
  for (Index i = 0; i < count; ++i) {
    const float quotient = gradient[i] / __builtin_sqrtf(total[i]);
    share[i] = total[i] > 0.0F ? quotient : 0.0F;
  }
}

// ---- Gradient: what each pixel gets

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
    const float first_factor = factor(shares[0]);
    for_windows(row, run, [&](Index to, Index from, Index elements) {
      for_blocks(elements, [&](auto block, Index c) {
        auto given = block.floats(shares[0].share + from + c) * first_factor;
        for (Index r = 1; r < rows; ++r) {
          given += block.floats(shares[r].share + from + c) * factor(shares[r]);
        }
        for (Index t = taps - 1; t >= 0; --t) {
          float* pixel = out + to + c + t * step;
          block.put(pixel, t < added ? block.floats(pixel) + given : given);
        }
      });
    });
  });
}

void award(const PoolingRow& row, const PoolingShares* shares, Index count,
           std::int32_t first_number, bool assign, float* out) {
  const Index step = row.dilation * row.channels;
  for_runs(row, count, [&](const PoolingRun& run, auto taps, auto rows) {
    const Index added = assign ? run.taken : Index{taps};
    const std::int32_t first = first_number + run.first_tap;
    for_windows(row, run, [&](Index to, Index from, Index elements) {
      for_blocks(elements, [&](auto block, Index c) {
        using V = typename decltype(block)::Floats;
        using I = typename decltype(block)::Ints;
        for (Index t = taps - 1; t >= 0; --t) {
          float* pixel = out + to + c + t * step;
          const I here = I{} + (first + static_cast<std::int32_t>(t));
          V total = t < added ? block.floats(pixel) : V{};
          for (Index r = 0; r < rows; ++r) {
            const V sum = total + block.floats(shares[r].share + from + c);
            total = block.ints(shares[r].index + from + c) == here ? sum : total;
          }
          block.put(pixel, total);
        }
      });
    });
  });
}

template <class Element>
void award_once(const PoolingRow& row, const PoolingSource<Element>* sources, Index count,
                const Element* gradient, Element* const* out) {
  const Index step = row.dilation * row.channels;
  for_runs(row, count, [&](const PoolingRun& run, auto taps, auto rows) {
    const bool hides = row.meets_padding || run.meets_padding;
    for_windows(row, run, [&](Index from, Index window, Index elements) {
      for_blocks(elements, [&](auto block, Index c) {
        using V = typename decltype(block)::Floats;
        using I = typename decltype(block)::Ints;
        V top = V{} - __builtin_inff();
        I winner = {};
        std::int32_t number = 0;
        for (Index r = 0; r < rows; ++r) {
          const Element* x = sources[r].x + from + c;
          for (Index t = 0; t < taps; ++t, ++number) {
            const V value = block.floats(x + t * step);
            winner = value > top ? I{} + number : winner;
            top = value > top ? value : top;
          }
        }
        V given = block.floats(gradient + window + c);
        if (hides) {
          given = top < V{} ? V{} : given;
        }
        number = 0;
        for (Index r = 0; r < rows; ++r) {
          Element* to = out[r] + from + c;
          for (Index t = 0; t < taps; ++t, ++number) {
            block.put(to + t * step, winner == I{} + number ? given : V{});
          }
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
constexpr PoolingSourceLoops<Element> kLoops{&maximum<Element>, &average<Element>,
                                             &squares<Element>, &winners<Element>,
                                             &award_once<Element>};

}  // namespace

const PoolingLoops pooling_loops{
    {kLoops<float>, kLoops<Half>}, &root, &per_root, &spread, &award, &multiply};

}  // namespace mpsgrad::MPSGRAD_ISA
