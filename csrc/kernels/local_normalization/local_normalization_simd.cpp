// Local normalization loops. Windows are summed again for every element, in a fixed order: nothing
// is subtracted, so sums of squares keep their precision, and a NaN stays within its windows.
#include "kernels/local_normalization/local_normalization_simd.hpp"

#include "cpu/simd/column_sums.hpp"
#include "cpu/simd/elements.hpp"
#include "cpu/simd/lanes.hpp"
#include "cpu/simd/vector_math.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;
using Formula = LocalNormalizationFormula;

// A full register of numbers, read from float32.
template <class Number>
struct Full;
template <>
struct Full<float> {
  static constexpr Index kCount = kWidest;
  using Vector = Floats<kWidest>;
  static MPSGRAD_INLINE Vector widen(const float* from) { return load<Vector>(from); }
};
template <>
struct Full<double> {
  using Several = SeveralDoubles<kWidest / 2>;
  static constexpr Index kCount = Several::kPlaces;
  using Vector = Several::Numbers;
  static MPSGRAD_INLINE Vector widen(const float* from) { return Several{}.widened(from); }
};
// One number.
template <class Number>
struct Single {
  using Vector = Number;
  static MPSGRAD_INLINE Number widen(const float* from) { return static_cast<Number>(*from); }
};

// Calls body(block, first) for blocks that cover `elements`.
template <class Number, class Body>
MPSGRAD_INLINE void for_numbers(Index elements, const Body& body) {
  Index e = 0;
  for (; e + Full<Number>::kCount <= elements; e += Full<Number>::kCount) {
    body(Full<Number>{}, e);
  }
  for (; e < elements; ++e) {
    body(Single<Number>{}, e);
  }
}

void add_rows(const float* const* rows, Index count, bool begins, Index elements, float* sums) {
  for_numbers<float>(elements, [&](auto block, Index e) {
    using Block = decltype(block);
    using V = typename Block::Vector;
    V total = begins ? V{} : load<V>(sums + e);
    for (Index r = 0; r < count; ++r) {
      total += Block::widen(rows[r] + e);
    }
    store(sums + e, total);
  });
}

void add_squares(const float* const* rows, Index count, float weight, bool begins, Index elements,
                 float* squares) {
  for_numbers<float>(elements, [&](auto block, Index e) {
    using Block = decltype(block);
    using V = typename Block::Vector;
    V total = begins ? V{} : load<V>(squares + e);
    for (Index r = 0; r < count; ++r) {
      const V x = Block::widen(rows[r] + e);
      total += x * x * weight;
    }
    store(squares + e, total);
  });
}

void add_moments(const float* const* rows, Index count, double weight, bool begins, Index elements,
                 double* sums, double* squares) {
  for_numbers<double>(elements, [&](auto block, Index e) {
    using Block = decltype(block);
    using V = typename Block::Vector;
    V sum = begins ? V{} : load<V>(sums + e);
    V square = begins ? V{} : load<V>(squares + e);
    for (Index r = 0; r < count; ++r) {
      const V x = Block::widen(rows[r] + e);
      sum += x * weight;
      square += x * x * weight;
    }
    store(sums + e, sum);
    store(squares + e, square);
  });
}

// Short windows are added up tap by tap. For long ones `values` become sums of 2, 4, 8 ... taps,
// of which every power of two that makes up the length gives one part.
template <class Number>
MPSGRAD_INLINE void sum_taps(Number* values, Index taps, Index step, Index elements, Number* out) {
  if (taps <= kShortWindow) {
    for_numbers<Number>(elements, [&](auto block, Index e) {
      using V = typename decltype(block)::Vector;
      V total = load<V>(values + e);
      for (Index t = 1; t < taps; ++t) {
        total += load<V>(values + e + t * step);
      }
      store(out + e, total);
    });
    return;
  }
  Index done = 0;
  for (Index length = 1;; length *= 2) {
    if ((taps & length) != 0) {
      const Number* part = values + done * step;
      for_numbers<Number>(elements, [&](auto block, Index e) {
        using V = typename decltype(block)::Vector;
        const V more = load<V>(part + e);
        store(out + e, done == 0 ? more : load<V>(out + e) + more);
      });
      done += length;
    }
    if (done == taps) {
      return;
    }
    const Index way = length * step;
    // Each element is read before it is written, and those ahead of it are still the old ones.
    for_numbers<Number>(elements + (taps - 2 * length) * step, [&](auto block, Index e) {
      using V = typename decltype(block)::Vector;
      store(values + e, load<V>(values + e) + load<V>(values + e + way));
    });
  }
}

void add_taps(float* values, Index taps, Index step, Index elements, float* out) {
  sum_taps(values, taps, step, elements, out);
}

void add_taps_wide(double* values, Index taps, Index step, Index elements, double* out) {
  sum_taps(values, taps, step, elements, out);
}

// Sums over windows of the channels of pixels: out[c] = value(x[c - before]) + ..., `taps` of them,
// of those that there are. Most are read where they lie; windows that reach beyond a pixel are few.
template <class Value>
MPSGRAD_INLINE void sum_short_windows(const float* x, Index pixels, Index channels, Index before,
                                      Index taps, float* MPSGRAD_RESTRICT out, const Value& value) {
  using V = Floats<kWidest>;
  const Index whole_end = channels - (taps - 1 - before);
  const auto clipped = [&](const float* pixel, Index c) {
    const Index end = c - before + taps < channels ? c - before + taps : channels;
    float total = 0.0F;
    for (Index i = c < before ? 0 : c - before; i < end; ++i) {
      total += value(pixel[i]);
    }
    return total;
  };
  const auto whole = [&](const float* pixel, Index c) {
    const float* const first = pixel + c - before;
    V total = value(load<V>(first));
    for (Index t = 1; t < taps; ++t) {
      total += value(load<V>(first + t));
    }
    store(out + c, total);
  };
  for (Index p = 0; p < pixels; ++p, x += channels, out += channels) {
    Index c = 0;
    if (before + kWidest <= whole_end) {
      for (; c < before; ++c) {
        out[c] = clipped(x, c);
      }
      for (; c + kWidest <= whole_end; c += kWidest) {
        whole(x, c);
      }
      whole(x, whole_end - kWidest);  // some of them a second time
      c = whole_end;
    }
    for (; c < channels; ++c) {
      out[c] = clipped(x, c);
    }
  }
}

// The same by way of pixels with gaps of zeros before and after each, as wide as a window reaches:
// the first channel of pixel p lies at gap + p * (channels + gap).
template <class Value>
MPSGRAD_INLINE void sum_long_windows(const float* x, Index pixels, Index channels, Index before,
                                     Index taps, float* MPSGRAD_RESTRICT opened,
                                     float* MPSGRAD_RESTRICT out, const Value& value) {
  const Index gap = gap_across(before, taps);
  const Index step = channels + gap;
  float* MPSGRAD_RESTRICT sums = opened + gap + pixels * step + taps;
  const auto clear = [&](Index from, Index count) {
    for (Index i = from; i < from + count; ++i) {
      opened[i] = 0.0F;
    }
  };
  clear(0, gap);
  for (Index p = 0; p < pixels; ++p) {
    const Index pixel = gap + p * step;
    for (Index c = 0; c < channels; ++c) {
      opened[pixel + c] = value(x[p * channels + c]);
    }
    clear(pixel + channels, gap);
  }
  clear(gap + pixels * step, taps);
  sum_taps(opened + gap - before, taps, 1, pixels * step, sums);
  for (Index p = 0; p < pixels; ++p) {
    for (Index c = 0; c < channels; ++c) {
      out[p * channels + c] = sums[p * step + c];
    }
  }
}

template <class Value>
MPSGRAD_INLINE void sum_across(const float* x, Index pixels, Index channels, Index before,
                               Index taps, float* scratch, float* out, const Value& value) {
  taps <= kShortWindow ? sum_short_windows(x, pixels, channels, before, taps, out, value)
                       : sum_long_windows(x, pixels, channels, before, taps, scratch, out, value);
}

void squares_across(const float* x, Index pixels, Index channels, Index before, Index taps,
                    float* scratch, float* out) {
  sum_across(x, pixels, channels, before, taps, scratch, out,
             [](auto value) { return value * value; });
}

void values_across(const float* x, Index pixels, Index channels, Index before, Index taps,
                   float* scratch, float* out) {
  sum_across(x, pixels, channels, before, taps, scratch, out, [](auto value) { return value; });
}

// Bases, and in their place what a power makes of them.
constexpr Index kAtOnce = 64;
struct Powers {
  alignas(64) float at[kAtOnce];
};

template <class Function>
MPSGRAD_INLINE void replace(Powers& powers, const Function& function) {
  for (float& one : powers.at) {
    one = function(one);
  }
}

// base^exponent. The exponents of published networks are made of roots, several times as fast as
// logarithms and no less precise; infinities, zeros and NaN come out as those of pow.
struct AnyPower {
  float exponent;
  MPSGRAD_INLINE void raise(Powers& bases) const {
    replace(bases, [this](float base) MPSGRAD_MELT { return pow(base, exponent); });
  }
};
struct InverseRoot {  // -0.5
  MPSGRAD_INLINE void raise(Powers& bases) const {
    replace(bases, [](float base) MPSGRAD_MELT { return 1.0F / sqrt(base); });
  }
};
struct Inverse {  // -1
  MPSGRAD_INLINE void raise(Powers& bases) const {
    replace(bases, [](float base) MPSGRAD_MELT { return 1.0F / base; });
  }
};
struct InverseThreeQuarters {  // -0.75, the exponent of published networks
#if defined(__AVX512F__)
  // From r, about base^-0.25: r^3 (1 - e)^-0.75 where base * r^4 = 1 - e, and e is so small that
  // three terms of the series are enough. At zeros and infinity any negative power is the same, but
  // for the sign.
  MPSGRAD_INLINE void raise(Powers& bases) const {
    constexpr __mmask16 kAll = 0xffff;
    constexpr int kZerosAndInfinities = 0x02 | 0x04 | 0x08 | 0x10;
    for (Index i = 0; i < kAtOnce; i += kWidest) {
      const Floats<16> base = load<Floats<16>>(bases.at + i);
      const Floats<16> root = _mm512_maskz_rsqrt14_ps(kAll, base);
      const Floats<16> r = _mm512_maskz_rsqrt14_ps(kAll, base * root);
      const Floats<16> square = r * r;
      const Floats<16> near = square * r;
      const Floats<16> e = 1.0F - base * square * square;
      const Floats<16> power = near + near * e * (0.75F + 0.65625F * e);
      const __mmask16 limits = _mm512_fpclass_ps_mask(base, kZerosAndInfinities);
      store(bases.at + i, Floats<16>(_mm512_mask_abs_ps(power, limits, root)));
    }
  }
#else
  MPSGRAD_INLINE void raise(Powers& bases) const {
    replace(bases, [](float base) MPSGRAD_MELT {
      const float root = sqrt(base);
      return 1.0F / (root * sqrt(root));
    });
  }
#endif
};

template <class Visit>
MPSGRAD_INLINE void with_power(float exponent, const Visit& visit) {
  if (exponent == -0.5F) {
    visit(InverseRoot{});
  } else if (exponent == -0.75F) {
    visit(InverseThreeQuarters{});
  } else if (exponent == -1.0F) {
    visit(Inverse{});
  } else {
    visit(AnyPower{exponent});
  }
}

// For some elements after the other: base(e, i) of each, its power, and body(e, i, power), where i
// counts those that are taken together.
template <class Base, class Body>
MPSGRAD_INLINE void with_powers(float exponent, Index elements, const Base& base,
                                const Body& body) {
  with_power(exponent, [&](auto power) MPSGRAD_MELT {
    Powers powers;
    const auto some = [&](Index first, Index count) MPSGRAD_MELT {
      for (Index i = 0; i < count; ++i) {
        powers.at[i] = base(first + i, i);
      }
      power.raise(powers);
      MPSGRAD_VECTOR_LOOP
      for (Index i = 0; i < count; ++i) {
        body(first + i, i, powers.at[i]);
      }
    };
    Index first = 0;
    for (; first + kAtOnce <= elements; first += kAtOnce) {
      some(first, kAtOnce);
    }
    if (first < elements) {
      for (float& one : powers.at) {
        one = 1.0F;
      }
      some(first, elements - first);
    }
  });
}

void normalize(const Formula& f, const float* x, const float* squares, Index elements,
               Results<float> out) {
  const float delta = f.delta, scale = f.scale;
  put_blocks(0, elements, out, [&](Index first, Index last, float* MPSGRAD_RESTRICT to) {
    with_powers(
        f.exponent, last - first,
        [&](Index e, Index) MPSGRAD_MELT { return delta + scale * squares[first + e]; },
        [&](Index e, Index, float power) MPSGRAD_MELT { to[e] = x[first + e] * power; });
  });
}

void share(const Formula& f, const float* gradient, const float* x, const float* squares,
           Index elements, float* MPSGRAD_RESTRICT scaled, float* MPSGRAD_RESTRICT shared) {
  const float delta = f.delta, scale = f.scale;
  Powers bases;
  with_powers(
      f.exponent, elements,
      [&](Index e, Index i) MPSGRAD_MELT { return bases.at[i] = delta + scale * squares[e]; },
      [&](Index e, Index i, float power) MPSGRAD_MELT {
        const float product = gradient[e] * power;
        scaled[e] = product;
        shared[e] = product * x[e] / bases.at[i];
      });
}

void collect(const Formula& f, const float* x, const float* scaled, const float* shared,
             Index elements, Results<float> out) {
  const float weight = f.weight;
  put_blocks(0, elements, out, [&](Index first, Index last, float* MPSGRAD_RESTRICT to) {
    for (Index e = first; e < last; ++e) {
      to[e - first] = scaled[e] - weight * x[e] * shared[e];
    }
  });
}

// What local contrast makes of the sums over windows, of elements taken together.
struct Contrasts {
  double inverse, alpha, delta;  // as in the formula
  double means[kAtOnce];
  float bases[kAtOnce];

  MPSGRAD_INLINE float find(double sum, double square, Index i) {
    const double mean = sum * inverse;
    const double difference = square * inverse - mean * mean;
    const double variance = difference < 0.0 ? 0.0 : difference;  // rounding only; NaN stays
    means[i] = mean;
    return bases[i] = static_cast<float>(delta + alpha * variance);
  }
};

void contrast(const Formula& f, const float* x, const double* sums, const double* squares,
              Index elements, Results<float> out) {
  Contrasts local{f.inverse, f.alpha, static_cast<double>(f.delta), {}, {}};
  const auto p0 = static_cast<double>(f.p0);
  const float pm = f.pm, ps = f.ps;
  put_blocks(0, elements, out, [&](Index first, Index last, float* MPSGRAD_RESTRICT to) {
    with_powers(
        f.exponent, last - first,
        [&](Index e, Index i)
            MPSGRAD_MELT { return local.find(sums[first + e], squares[first + e], i); },
        [&](Index e, Index i, float power) MPSGRAD_MELT {
          const auto value = static_cast<double>(x[first + e]);
          const auto centred = static_cast<float>(value - p0 * local.means[i]);
          to[e] = pm + ps * (centred * power);
        });
  });
}

void share_contrast(const Formula& f, const float* gradient, const float* x, const double* sums,
                    const double* squares, Index elements, float* MPSGRAD_RESTRICT scaled,
                    float* MPSGRAD_RESTRICT by_value, float* MPSGRAD_RESTRICT by_mean) {
  Contrasts local{f.inverse, f.alpha, static_cast<double>(f.delta), {}, {}};
  const auto p0 = static_cast<double>(f.p0);
  const float weight = f.weight, mean_weight = f.mean_weight;
  with_powers(
      f.exponent, elements,
      [&](Index e, Index i) MPSGRAD_MELT { return local.find(sums[e], squares[e], i); },
      [&](Index e, Index i, float power) MPSGRAD_MELT {
        const double mean = local.means[i];
        const auto centred = static_cast<float>(static_cast<double>(x[e]) - p0 * mean);
        const float product = gradient[e] * power;
        const float slope = weight * (product * centred / local.bases[i]);
        scaled[e] = product;
        by_value[e] = slope;
        by_mean[e] = mean_weight * product - slope * static_cast<float>(mean);
      });
}

void collect_contrast(const Formula& f, const float* x, const float* scaled, const float* by_value,
                      const float* by_mean, Index elements, Results<float> out) {
  const float ps = f.ps;
  put_blocks(0, elements, out, [&](Index first, Index last, float* MPSGRAD_RESTRICT to) {
    for (Index e = first; e < last; ++e) {
      to[e - first] = ps * (scaled[e] - by_mean[e] - x[e] * by_value[e]);
    }
  });
}

}  // namespace

const LocalNormalizationLoops local_normalization_loops{
    &add_rows,       &add_squares,    &add_moments,     &add_taps, &add_taps_wide,
    &squares_across, &values_across,  &normalize,       &share,    &collect,
    &contrast,       &share_contrast, &collect_contrast};

}  // namespace mpsgrad::MPSGRAD_ISA
