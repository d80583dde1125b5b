// Local normalization loops. Windows are summed again for every element, in a fixed order: nothing
// is subtracted, so sums of squares keep their precision, and a NaN stays within its windows.
#include "kernels/local_normalization/local_normalization_simd.hpp"

#include "cpu/simd/column_sums.hpp"
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
  constexpr Index kShort = 12;
  if (taps <= kShort) {
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

template <class Value>
MPSGRAD_INLINE void open(const float* x, Index pixels, Index channels, Index gap, Index taps,
                         float* MPSGRAD_RESTRICT out, const Value& value) {
  for (Index i = 0; i < gap; ++i) {
    *out++ = 0.0F;
  }
  for (Index p = 0; p < pixels; ++p, x += channels) {
    for (Index c = 0; c < channels; ++c) {
      out[c] = value(x[c]);
    }
    out += channels;
    for (Index i = 0; i < gap; ++i) {
      *out++ = 0.0F;
    }
  }
  for (Index i = 0; i < taps; ++i) {
    *out++ = 0.0F;
  }
}

void open_squares(const float* x, Index pixels, Index channels, Index gap, Index taps, float* out) {
  open(x, pixels, channels, gap, taps, out, [](float value) { return value * value; });
}

void open_values(const float* x, Index pixels, Index channels, Index gap, Index taps, float* out) {
  open(x, pixels, channels, gap, taps, out, [](float value) { return value; });
}

void close(const float* opened, Index pixels, Index channels, Index gap,
           float* MPSGRAD_RESTRICT out) {
  for (Index p = 0; p < pixels; ++p, opened += channels + gap, out += channels) {
    for (Index c = 0; c < channels; ++c) {
      out[c] = opened[c];
    }
  }
}

// base^exponent. The exponents of published networks are quotients of roots, several times as fast
// as logarithms and no less precise; infinities, zeros and NaN come out as those of pow.
struct AnyPower {
  float exponent;
  MPSGRAD_INLINE float of(float base) const { return pow(base, exponent); }
};
struct InverseRoot {  // -0.5
  MPSGRAD_INLINE float of(float base) const { return 1.0F / sqrt(base); }
};
struct InverseThreeQuarters {  // -0.75
  MPSGRAD_INLINE float of(float base) const {
    const float root = sqrt(base);
    return 1.0F / (root * sqrt(root));
  }
};
struct Inverse {  // -1
  MPSGRAD_INLINE float of(float base) const { return 1.0F / base; }
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

void normalize(const Formula& f, const float* x, const float* squares, Index elements,
               float* MPSGRAD_RESTRICT out) {
  const float delta = f.delta, scale = f.scale;
  with_power(f.exponent, [=](auto power) {
    for (Index e = 0; e < elements; ++e) {
      out[e] = x[e] * power.of(delta + scale * squares[e]);
    }
  });
}

void share(const Formula& f, const float* gradient, const float* x, const float* squares,
           Index elements, float* MPSGRAD_RESTRICT scaled, float* MPSGRAD_RESTRICT shared) {
  const float delta = f.delta, scale = f.scale;
  with_power(f.exponent, [=](auto power) {
    for (Index e = 0; e < elements; ++e) {
      const float base = delta + scale * squares[e];
      const float product = gradient[e] * power.of(base);
      scaled[e] = product;
      shared[e] = product * x[e] / base;
    }
  });
}

void collect(const Formula& f, const float* x, const float* scaled, const float* shared,
             Index elements, float* MPSGRAD_RESTRICT out) {
  const float weight = f.weight;
  for (Index e = 0; e < elements; ++e) {
    out[e] = scaled[e] - weight * x[e] * shared[e];
  }
}

// What local contrast makes of the sums over a window.
struct Contrast {
  float base;
  double mean;
};

MPSGRAD_INLINE Contrast contrast_of(double sum, double square, double inverse, double alpha,
                                    double delta) {
  const double mean = sum * inverse;
  const double difference = square * inverse - mean * mean;
  const double variance = difference < 0.0 ? 0.0 : difference;  // rounding only; NaN stays
  return {static_cast<float>(delta + alpha * variance), mean};
}

void contrast(const Formula& f, const float* x, const double* sums, const double* squares,
              Index elements, float* MPSGRAD_RESTRICT out) {
  const double inverse = f.inverse, alpha = f.alpha, delta = static_cast<double>(f.delta);
  const auto p0 = static_cast<double>(f.p0);
  const float pm = f.pm, ps = f.ps;
  with_power(f.exponent, [=](auto power) {
    for (Index e = 0; e < elements; ++e) {
      const Contrast local = contrast_of(sums[e], squares[e], inverse, alpha, delta);
      const auto centred = static_cast<float>(static_cast<double>(x[e]) - p0 * local.mean);
      out[e] = pm + ps * (centred * power.of(local.base));
    }
  });
}

void share_contrast(const Formula& f, const float* gradient, const float* x, const double* sums,
                    const double* squares, Index elements, float* MPSGRAD_RESTRICT scaled,
                    float* MPSGRAD_RESTRICT by_value, float* MPSGRAD_RESTRICT by_mean) {
  const double inverse = f.inverse, alpha = f.alpha, delta = static_cast<double>(f.delta);
  const auto p0 = static_cast<double>(f.p0);
  const float weight = f.weight, mean_weight = f.mean_weight;
  with_power(f.exponent, [=](auto power) {
    for (Index e = 0; e < elements; ++e) {
      const Contrast local = contrast_of(sums[e], squares[e], inverse, alpha, delta);
      const auto centred = static_cast<float>(static_cast<double>(x[e]) - p0 * local.mean);
      const float product = gradient[e] * power.of(local.base);
      const float slope = weight * (product * centred / local.base);
      scaled[e] = product;
      by_value[e] = slope;
      by_mean[e] = mean_weight * product - slope * static_cast<float>(local.mean);
    }
  });
}

void collect_contrast(const Formula& f, const float* x, const float* scaled, const float* by_value,
                      const float* by_mean, Index elements, float* MPSGRAD_RESTRICT out) {
  const float ps = f.ps;
  for (Index e = 0; e < elements; ++e) {
    out[e] = ps * (scaled[e] - by_mean[e] - x[e] * by_value[e]);
  }
}

}  // namespace

const LocalNormalizationLoops local_normalization_loops{
    &add_rows,     &add_squares, &add_moments,    &add_taps,        &add_taps_wide,
    &open_squares, &open_values, &close,          &normalize,       &share,
    &collect,      &contrast,    &share_contrast, &collect_contrast};

}  // namespace mpsgrad::MPSGRAD_ISA
