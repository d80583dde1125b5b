// Pooling loops: windows outside, channels inside, a block of channels in registers while the taps
// of a window go by.
#include "kernels/pooling/pooling_simd.hpp"

#include "cpu/simd/lanes.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// Calls body(offset in the row of pixels, offset in the row of windows, elements) for every window
// of a run. Windows one pixel apart make one long window: they are contiguous on both sides.
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

// Calls visit(run, taps), where the usual numbers of taps are constants.
template <Index kTaps>
struct Exactly {
  constexpr operator Index() const { return kTaps; }
};
template <class Visit>
MPSGRAD_INLINE void for_runs(const PoolingRow& row, const Visit& visit) {
  for (Index r = 0; r < row.run_count; ++r) {
    const PoolingRun& run = row.runs[r];
    switch (run.taps) {
      case 1:
        visit(run, Exactly<1>{});
        break;
      case 2:
        visit(run, Exactly<2>{});
        break;
      case 3:
        visit(run, Exactly<3>{});
        break;
      default:
        visit(run, run.taps);
    }
  }
}

// Folds the taps of each window in registers, then once into `pooled`.
template <class Taps, class Fold>
struct Reduce {
  const float* x;
  float* pooled;
  Index step;  // elements from tap to tap
  Taps taps;
  Fold fold;

  template <int kLanes>
  MPSGRAD_INLINE void at(Index c) const {
    using V = Floats<kLanes>;
    V value = fold.first(load<V>(x + c));
    for (Index t = 1; t < taps; ++t) {
      value = fold.next(value, load<V>(x + c + t * step));
    }
    store(pooled + c, fold.into(load<V>(pooled + c), value));
  }
};

template <class Fold>
MPSGRAD_INLINE void reduce(const PoolingRow& row, const float* x, float* pooled,
                           const Fold& fold_of_row) {
  const Index step = row.dilation * row.channels;
  for_runs(row, [&](const PoolingRun& run, auto taps) {
    const auto fold = fold_of_row.of(run);
    for_windows(row, run, [&](Index from, Index to, Index count) {
      for_blocks(count, Reduce<decltype(taps), decltype(fold_of_row.of(run))>{x + from, pooled + to,
                                                                              step, taps, fold});
    });
  });
}

struct Maximum {
  MPSGRAD_INLINE Maximum of(const PoolingRun&) const { return *this; }
  template <class V>
  MPSGRAD_INLINE V first(V x) const {
    return x;
  }
  template <class V>
  MPSGRAD_INLINE V next(V best, V x) const {
    return best > x ? best : x;
  }
  template <class V>
  MPSGRAD_INLINE V into(V before, V best) const {
    return before > best ? before : best;
  }
};

struct Sum {
  MPSGRAD_INLINE Sum of(const PoolingRun&) const { return *this; }
  template <class V>
  MPSGRAD_INLINE V first(V x) const {
    return x;
  }
  template <class V>
  MPSGRAD_INLINE V next(V total, V x) const {
    return total + x;
  }
  template <class V>
  MPSGRAD_INLINE V into(V before, V total) const {
    return before + total;
  }
};

struct Squares {
  float weight;
  MPSGRAD_INLINE Squares of(const PoolingRun& run) const { return {weight * run.weight}; }
  template <class V>
  MPSGRAD_INLINE V first(V x) const {
    return x * x;
  }
  template <class V>
  MPSGRAD_INLINE V next(V total, V x) const {
    return total + x * x;
  }
  template <class V>
  MPSGRAD_INLINE V into(V before, V total) const {
    return before + weight * total;
  }
};

void maximum(const PoolingRow& row, const float* x, float* pooled) {
  reduce(row, x, pooled, Maximum{});
}

void sum(const PoolingRow& row, const float* x, float* pooled) { reduce(row, x, pooled, Sum{}); }

void squares(const PoolingRow& row, const float* x, float weight, float* pooled) {
  reduce(row, x, pooled, Squares{weight});
}

void fill(float* MPSGRAD_RESTRICT out, Index count, float value) {
  for (Index i = 0; i < count; ++i) {
    out[i] = value;
  }
}

void raise_to_zero(float* MPSGRAD_RESTRICT pooled, Index count) {
  for (Index i = 0; i < count; ++i) {
    pooled[i] = pooled[i] > 0.0F ? pooled[i] : 0.0F;
  }
}

void root(float* MPSGRAD_RESTRICT pooled, Index count) {
  for (Index i = 0; i < count; ++i) {
    pooled[i] = __builtin_sqrtf(pooled[i]);
  }
}

void divide(float* MPSGRAD_RESTRICT pooled, const float* MPSGRAD_RESTRICT divisors, Index windows,
            Index channels) {
  for (Index w = 0; w < windows; ++w, pooled += channels) {
    const float divisor = divisors[w];
    for (Index c = 0; c < channels; ++c) {
      pooled[c] /= divisor;
    }
  }
}

void begin_winners(const std::int32_t* MPSGRAD_RESTRICT columns, std::int32_t base, Index windows,
                   Index channels, float* MPSGRAD_RESTRICT best,
                   std::int32_t* MPSGRAD_RESTRICT index) {
  for (Index w = 0; w < windows; ++w, best += channels, index += channels) {
    const std::int32_t first = columns[w] < 0 || base < 0 ? -1 : base + columns[w];
    for (Index c = 0; c < channels; ++c) {
      best[c] = -__builtin_inff();
      index[c] = first;
    }
  }
}

template <class Taps>
struct Winners {
  const float* x;
  float* best;
  std::int32_t* index;
  Index step;
  Taps taps;
  std::int32_t pixel;  // of the first tap
  std::int32_t dilation;

  template <int kLanes>
  MPSGRAD_INLINE void at(Index c) const {
    using V = Floats<kLanes>;
    using I = Ints<kLanes>;
    V top = load<V>(best + c);
    I winner = load<I>(index + c);
    std::int32_t here = pixel;
    for (Index t = 0; t < taps; ++t, here += dilation) {
      const V value = load<V>(x + c + t * step);
      const auto better = value > top;
      winner = better ? I{} + here : winner;
      top = better ? value : top;
    }
    store(best + c, top);
    store(index + c, winner);
  }
};

void winners(const PoolingRow& row, const float* x, std::int32_t base, float* best,
             std::int32_t* index) {
  const Index channels = row.channels;
  const Index step = row.dilation * channels;
  for_runs(row, [&](const PoolingRun& run, auto taps) {
    for (Index w = 0; w < run.windows; ++w) {
      const Index pixel = run.pixel + w * row.stride;
      const Index window = run.window + w;
      for_blocks(channels, Winners<decltype(taps)>{x + pixel * channels, best + window * channels,
                                                   index + window * channels, step, taps,
                                                   base + static_cast<std::int32_t>(pixel),
                                                   static_cast<std::int32_t>(row.dilation)});
    }
  });
}

void forget_negative(const float* MPSGRAD_RESTRICT best, std::int32_t* MPSGRAD_RESTRICT index,
                     Index count) {
  for (Index i = 0; i < count; ++i) {
    index[i] = best[i] < 0.0F ? -1 : index[i];
  }
}

void scale(const float* MPSGRAD_RESTRICT gradient, const float* MPSGRAD_RESTRICT factors,
           Index windows, Index channels, float* MPSGRAD_RESTRICT share) {
  for (Index w = 0; w < windows; ++w, gradient += channels, share += channels) {
    const float factor = factors[w];
    for (Index c = 0; c < channels; ++c) {
      share[c] = gradient[c] * factor;
    }
  }
}

void per_root(const float* MPSGRAD_RESTRICT gradient, const float* MPSGRAD_RESTRICT total,
              Index count, float* MPSGRAD_RESTRICT share) {
  for (Index i = 0; i < count; ++i) {
    const float quotient = gradient[i] / __builtin_sqrtf(total[i]);
    share[i] = total[i] > 0.0F ? quotient : 0.0F;
  }
}

template <class Taps>
struct Spread {
  const float* share;
  float* out;
  Index step;
  Taps taps;
  float weight;

  template <int kLanes>
  MPSGRAD_INLINE void at(Index c) const {
    using V = Floats<kLanes>;
    const V value = weight * load<V>(share + c);
    for (Index t = 0; t < taps; ++t) {
      float* to = out + c + t * step;
      store(to, load<V>(to) + value);
    }
  }
};

void spread(const PoolingRow& row, const float* share, float weight, float* out) {
  const Index step = row.dilation * row.channels;
  for_runs(row, [&](const PoolingRun& run, auto taps) {
    const float factor = weight * run.weight;
    for_windows(row, run, [&](Index to, Index from, Index count) {
      for_blocks(count, Spread<decltype(taps)>{share + from, out + to, step, taps, factor});
    });
  });
}

template <class Taps>
struct Award {
  const float* gradient;
  const std::int32_t* index;
  float* out;
  Index step;
  Taps taps;
  std::int32_t pixel;
  std::int32_t dilation;

  template <int kLanes>
  MPSGRAD_INLINE void at(Index c) const {
    using V = Floats<kLanes>;
    using I = Ints<kLanes>;
    const V value = load<V>(gradient + c);
    const I winner = load<I>(index + c);
    std::int32_t here = pixel;
    for (Index t = 0; t < taps; ++t, here += dilation) {
      float* to = out + c + t * step;
      store(to, load<V>(to) + (winner == I{} + here ? value : V{}));
    }
  }
};

void award(const PoolingRow& row, const float* gradient, const std::int32_t* index,
           std::int32_t base, float* out) {
  const Index channels = row.channels;
  const Index step = row.dilation * channels;
  for_runs(row, [&](const PoolingRun& run, auto taps) {
    for (Index w = 0; w < run.windows; ++w) {
      const Index pixel = run.pixel + w * row.stride;
      const Index window = run.window + w;
      for_blocks(channels,
                 Award<decltype(taps)>{gradient + window * channels, index + window * channels,
                                       out + pixel * channels, step, taps,
                                       base + static_cast<std::int32_t>(pixel),
                                       static_cast<std::int32_t>(row.dilation)});
    }
  });
}

void multiply(float* MPSGRAD_RESTRICT out, const float* MPSGRAD_RESTRICT x, Index count) {
  for (Index i = 0; i < count; ++i) {
    out[i] *= x[i];
  }
}

}  // namespace

const PoolingLoops pooling_loops{&fill,  &maximum,  &sum,           &squares, &raise_to_zero,
                                 &root,  &divide,   &begin_winners, &winners, &forget_negative,
                                 &scale, &per_root, &spread,        &award,   &multiply};

}  // namespace mpsgrad::MPSGRAD_ISA
