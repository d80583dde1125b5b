// Every function of vector_math.hpp against the C library's double version: the largest error in
// units in the last place stays below the documented one, and special cases are right. The default
// takes a sample of bit patterns from the whole range; `--exhaustive` takes all of them,
// `--exhaustive NAME` for one function, and prints the maxima.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "cpu/isa.hpp"
#include "vector_math_loops.hpp"

namespace mpsgrad::test {
namespace {

struct Set {
  Isa isa;
  const VectorMathLoops* loops;
};

std::vector<Set> supported_sets() {
  const std::vector<Set> built{
#if defined(MPSGRAD_HAVE_NEON)
      {Isa::Neon, &neon::vector_math_loops},
#else
      {Isa::Scalar, &scalar::vector_math_loops},
#endif
#if defined(MPSGRAD_HAVE_AVX2)
      {Isa::Avx2, &avx2::vector_math_loops},
#endif
#if defined(MPSGRAD_HAVE_AVX512)
      {Isa::Avx512, &avx512::vector_math_loops},
#endif
  };
  std::vector<Set> sets;
  for (const Set& set : built) {
    if (isa_supported(set.isa)) {
      sets.push_back(set);
    } else {
      std::printf("this processor cannot run %s\n", isa_name(set.isa));
    }
  }
  return sets;
}

// What a float32 result should be, and the magnitude whose unit in the last place its error counts
// in.
struct Exact {
  double value;
  double scale;
};

Exact exactly(double value) { return {value, std::fabs(value)}; }

const double kRootHalf = std::sqrt(0.5);

double density(double x) { return std::exp(-0.5 * x * x) * 0.3989422804014326779; }
double cdf(double x) { return 0.5 * std::erfc(-x * kRootHalf); }
double logistic_slope(double x) {
  const double e = std::exp(-std::fabs(x));
  return e / ((1.0 + e) * (1.0 + e));
}

Exact exact_gelu(double x) {
  return exactly(x < -40.0 ? -0.0 : x * cdf(x));  // the limit where 0 * infinity would be
}

Exact exact_gelu_slope(double x) {
  if (std::fabs(x) > 30.0) {
    return exactly(x > 0.0 ? 1.0 : -0.0);
  }
  return {cdf(x) + x * density(x), cdf(x) + std::fabs(x) * density(x)};
}

struct Function {
  const char* name;
  VectorMathLoops::Unary VectorMathLoops::* loop;
  Exact (*exact)(double);
  double limit;  // units in the last place
};

const Function kFunctions[] = {
    {"exp", &VectorMathLoops::exp, [](double x) { return exactly(std::exp(x)); }, 2.0},
    {"exp_of_minus_abs", &VectorMathLoops::exp_of_minus_abs,
     [](double x) { return exactly(std::exp(-std::fabs(x))); }, 2.0},
    {"expm1", &VectorMathLoops::expm1, [](double x) { return exactly(std::expm1(x)); }, 2.0},
    {"log", &VectorMathLoops::log, [](double x) { return exactly(std::log(x)); }, 2.0},
    {"log1p", &VectorMathLoops::log1p, [](double x) { return exactly(std::log1p(x)); }, 2.0},
    {"tanh", &VectorMathLoops::tanh, [](double x) { return exactly(std::tanh(x)); }, 4.0},
    {"sigmoid", &VectorMathLoops::sigmoid,
     [](double x) { return exactly(1.0 / (1.0 + std::exp(-x))); }, 3.0},
    {"sigmoid_slope", &VectorMathLoops::sigmoid_slope,
     [](double x) { return exactly(logistic_slope(x)); }, 5.0},
    {"softplus", &VectorMathLoops::softplus,
     [](double x) { return exactly(std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))); },
     2.0},
    {"gelu", &VectorMathLoops::gelu, exact_gelu, 6.0},
    {"gelu_slope", &VectorMathLoops::gelu_slope, exact_gelu_slope, 4.0},
    {"sqrt", &VectorMathLoops::sqrt, [](double x) { return exactly(std::sqrt(x)); }, 0.5},
    {"sign", &VectorMathLoops::sign,
     [](double x) { return exactly(x > 0.0   ? 1.0
                                   : x < 0.0 ? -1.0
                                             : x); }, 0.0},
};

std::string text(double x) {
  char buffer[60];
  std::snprintf(buffer, sizeof buffer, "%a (%.9g)", x, x);
  return buffer;
}

// The error of `actual` in units in the last place of exact.scale; infinite for a wrong kind or
// sign of result.
double error_in_ulps(float actual, Exact exact) {
  const double got = static_cast<double>(actual);
  if (std::isnan(exact.value) || std::isnan(got)) {
    return std::isnan(exact.value) && std::isnan(got) ? 0.0 : HUGE_VAL;
  }
  if (std::signbit(exact.value) != std::signbit(got) && exact.scale <= std::fabs(exact.value)) {
    return HUGE_VAL;
  }
  if (exact.value == 0.0 || std::isinf(exact.value)) {
    return got == exact.value ? 0.0 : HUGE_VAL;
  }
  // Infinity stands for the number after the largest finite one.
  const auto within = [](double x) { return std::fmax(-0x1p128, std::fmin(x, 0x1p128)); };
  const auto biased = static_cast<int>((std::bit_cast<std::uint64_t>(exact.scale) >> 52U) & 0x7ffU);
  const int exponent = biased - 1023 < -126 ? -126 : biased - 1023 > 127 ? 127 : biased - 1023;
  const double ulp = std::bit_cast<double>(static_cast<std::uint64_t>(exponent - 23 + 1023) << 52U);
  return std::fabs(within(got) - within(exact.value)) / ulp;
}

constexpr std::size_t kBlock = 1U << 14U;

struct Worst {
  double ulps = 0.0;
  float at = 0.0F;
};

void report(Checks& checks, const std::string& name, Isa isa, const Worst& worst, double limit) {
  std::printf("%-16s %-7s %8.4f ulp at %s\n", name.c_str(), isa_name(isa), worst.ulps,
              text(static_cast<double>(worst.at)).c_str());
  checks.expect(worst.ulps <= limit, name + ", " + isa_name(isa) + ": " +
                                         std::to_string(worst.ulps) + " ulp, more than " +
                                         std::to_string(limit) + ", at " +
                                         text(static_cast<double>(worst.at)));
}

// The arguments with bit patterns 0, step, 2 step, ...
template <class Exactly, class Loop>
void check_patterns(Checks& checks, const std::vector<Set>& sets, std::uint64_t step,
                    const std::string& name, double limit, Exactly exactly_at, Loop loop) {
  std::vector<float> in(kBlock);
  std::vector<float> out(kBlock);
  std::vector<float> before(kBlock);
  std::vector<Exact> exact(kBlock);
  Worst block;
  std::vector<std::uint32_t> nearest(kBlock);
  std::vector<Worst> worst(sets.size());
  for (std::uint64_t pattern = 0; pattern < (1ULL << 32U);) {
    std::size_t count = 0;
    for (; count < kBlock && pattern < (1ULL << 32U); ++count, pattern += step) {
      in[count] = std::bit_cast<float>(static_cast<std::uint32_t>(pattern));
      exact[count] = exactly_at(static_cast<double>(in[count]));
      nearest[count] = std::bit_cast<std::uint32_t>(static_cast<float>(exact[count].value));
    }
    for (std::size_t s = 0; s < sets.size(); ++s) {
      before.swap(out);  // most blocks have the same bits in the next wider set
      loop(*sets[s].loops, in.data(), out.data(), static_cast<std::int64_t>(count));
      const bool same = s > 0 && std::memcmp(before.data(), out.data(), count * sizeof(float)) == 0;
      if (!same) {
        block = {};
        for (std::size_t i = 0; i < count; ++i) {
          if (std::bit_cast<std::uint32_t>(out[i]) == nearest[i] && block.ulps >= 0.5) {
            continue;  // the nearest float: at most half a unit away
          }
          const double ulps = error_in_ulps(out[i], exact[i]);
          if (ulps > block.ulps) {
            block = {ulps, in[i]};
          }
        }
      }
      worst[s] = block.ulps > worst[s].ulps ? block : worst[s];
    }
  }
  for (std::size_t s = 0; s < sets.size(); ++s) {
    report(checks, name, sets[s].isa, worst[s], limit);
  }
}

const std::vector<float>& special_values() {
  static const std::vector<float> values = [] {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::vector<float> list{0.0F,
                            0x1p-149F,
                            0x1p-127F,
                            0x1p-126F,
                            1e-20F,
                            0.25F,
                            0.5F,
                            0.9999F,
                            1.0F,
                            1.0000001F,
                            1.5F,
                            2.0F,
                            2.5F,
                            3.0F,
                            4.0F,
                            17.0F,
                            88.0F,
                            89.0F,
                            104.0F,
                            127.0F,
                            128.0F,
                            150.0F,
                            8388607.0F,
                            8388608.0F,
                            8388609.0F,
                            16777215.0F,
                            16777216.0F,
                            1e20F,
                            std::numeric_limits<float>::max(),
                            kInfinity};
    const std::size_t positive = list.size();
    for (std::size_t i = 0; i < positive; ++i) {
      list.push_back(-list[i]);
    }
    list.push_back(std::numeric_limits<float>::quiet_NaN());
    list.push_back(std::numeric_limits<float>::signaling_NaN());
    return list;
  }();
  return values;
}

constexpr double kPowLimit = 4.0;

// Every pair of special values; random pairs over all bit patterns; and pairs whose power is of
// moderate size, where errors show.
void check_pow(Checks& checks, const std::vector<Set>& sets, std::size_t random_pairs) {
  std::vector<float> x;
  std::vector<float> y;
  for (const float base : special_values()) {
    for (const float exponent : special_values()) {
      x.push_back(base);
      y.push_back(exponent);
    }
  }
  const std::size_t specials = x.size();
  std::mt19937 random(20260101);
  std::uniform_real_distribution<float> log2_of_power(-152.0F, 130.0F);
  while (x.size() < specials + random_pairs) {
    const float base = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    const float exponent = log2_of_power(random) / std::log2(std::fabs(base));
    x.push_back(base);
    y.push_back(x.size() % 4 == 0   ? std::bit_cast<float>(static_cast<std::uint32_t>(random()))
                : x.size() % 4 == 1 ? std::rint(exponent)
                                    : exponent);
  }
  std::vector<float> out(x.size());
  for (const Set& set : sets) {
    set.loops->pow(x.data(), y.data(), out.data(), static_cast<std::int64_t>(x.size()));
    Worst worst;
    for (std::size_t i = 0; i < x.size(); ++i) {
      // The C library gives NaN for signalling arguments even where quiet ones give 1: so does no
      // caller's data.
      const double base =
          std::isnan(x[i]) ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(x[i]);
      const double exponent =
          std::isnan(y[i]) ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(y[i]);
      const double ulps = error_in_ulps(out[i], exactly(std::pow(base, exponent)));
      checks.expect(ulps <= kPowLimit, std::string(isa_name(set.isa)) + ": pow(" + text(base) +
                                           ", " + text(exponent) + ") gives " +
                                           text(static_cast<double>(out[i])));
      if (ulps > worst.ulps) {
        worst = {ulps, x[i]};
      }
    }
    report(checks, "pow, pairs", set.isa, worst, kPowLimit);
  }
}

// Threads cut rows where they like: an element's bits must not depend on whether a pack or the rest
// of a loop computed it, nor on whether a loop is one of packs or of floats.
void check_positions(Checks& checks, const Set& set) {
  constexpr std::int64_t kLong = 4096;
  std::vector<float> x(kLong);
  std::vector<float> y(kLong);
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-12.0F, 12.0F);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] =
        i % 5 == 0 ? std::bit_cast<float>(static_cast<std::uint32_t>(random())) : uniform(random);
    y[i] = uniform(random);
  }
  std::vector<float> whole(kLong);
  std::vector<float> cut(kLong);
  const auto expect_same = [&](const std::string& what) {
    bool same = true;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      same = same && (std::memcmp(&whole[i], &cut[i], sizeof(float)) == 0 ||
                      (std::isnan(whole[i]) && std::isnan(cut[i])));
    }
    checks.expect(same, what + " give other bits with " + isa_name(set.isa));
  };
  const auto compare = [&](const std::string& name, auto loop) {
    loop(0, kLong, whole.data());
    for (const std::int64_t piece : {1, 3, 17, 63, 65, 130}) {
      for (std::int64_t begin = 0; begin < kLong; begin += piece) {
        const std::int64_t count = std::min(piece, kLong - begin);
        loop(begin, count, cut.data() + begin);
      }
      expect_same(name + ": pieces of " + std::to_string(piece));
    }
  };
  for (const Function& function : kFunctions) {
    const VectorMathLoops::Unary& loops = set.loops->*function.loop;
    compare(function.name, [&](std::int64_t begin, std::int64_t count, float* out) {
      loops.best()(x.data() + begin, out, count);
    });
    if (loops.packs) {
      loops.floats(x.data(), cut.data(), kLong);
      expect_same(std::string(function.name) + ": floats");
    }
  }
  compare("exp in place", [&](std::int64_t begin, std::int64_t count, float* out) {
    std::copy_n(x.data() + begin, count, out);
    set.loops->exp.packs(out, out, count);
  });
  compare("pow", [&](std::int64_t begin, std::int64_t count, float* out) {
    set.loops->pow(x.data() + begin, y.data() + begin, out, count);
  });
  compare("pow_scalar", [&](std::int64_t begin, std::int64_t count, float* out) {
    set.loops->pow_scalar(x.data() + begin, -0.75F, out, count);
  });
}

int run(bool exhaustive, const std::string& only) {
  std::setvbuf(stdout, nullptr, _IOLBF, 1024);  // an exhaustive run takes minutes a function
  Checks checks;
  const std::vector<Set> sets = supported_sets();
  const std::uint64_t step = exhaustive ? 1 : 16381;
  for (const Function& function : kFunctions) {
    if (only.empty() || only == function.name) {
      check_patterns(checks, sets, step, function.name, function.limit, function.exact,
                     [&](const VectorMathLoops& loops, const float* in, float* out,
                         std::int64_t n) { (loops.*function.loop).best()(in, out, n); });
    }
  }
  if (only.empty() || only == "pow") {
    for (const float y :
         {-3.0F, -1.0F, -0.75F, -0.5F, 0.5F, 1.0F / 3.0F, 0.75F, 2.0F, 3.0F, 10.5F}) {
      check_patterns(
          checks, sets, exhaustive ? 61 : step, "pow " + std::to_string(y), kPowLimit,
          [=](double x) { return exactly(std::pow(x, static_cast<double>(y))); },
          [=](const VectorMathLoops& loops, const float* in, float* out, std::int64_t n) {
            loops.pow_scalar(in, y, out, n);
          });
    }
    check_pow(checks, sets, exhaustive ? 50'000'000 : 200'000);
  }
  for (const Set& set : sets) {
    check_positions(checks, set);
  }
  return checks.verdict("vector_math_test");
}

}  // namespace
}  // namespace mpsgrad::test

int main(int argc, char** argv) {
  try {
    return mpsgrad::test::run(argc > 1 && std::string(argv[1]) == "--exhaustive",
                              argc > 2 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
}
