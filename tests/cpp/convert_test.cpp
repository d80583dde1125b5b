// Every built and supported instruction set's conversion loops against the definition of each
// format, computed in double; and the choice of the instruction set. `--exhaustive` stores all 2^32
// float32 values instead of a sample.
#include "cpu/simd/convert.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "check.hpp"
#include "cpu/isa.hpp"

namespace mpsgrad::test {
namespace {

constexpr auto kUnorm8 = ChannelFormat::Unorm8;
constexpr auto kUnorm16 = ChannelFormat::Unorm16;
constexpr auto kFloat16 = ChannelFormat::Float16;
constexpr auto kFloat32 = ChannelFormat::Float32;
constexpr unsigned char kGuard = 0xa5;

std::size_t bytes_of(ChannelFormat format) { return static_cast<std::size_t>(item_size(format)); }

struct Set {
  Isa isa;
  const ConvertLoops* loops;
};

std::vector<Set> supported_sets() {
  const std::vector<Set> built{
#if defined(MPSGRAD_HAVE_NEON)
      {Isa::Neon, &neon::convert_loops},
#else
      {Isa::Scalar, &scalar::convert_loops},
#endif
#if defined(MPSGRAD_HAVE_AVX2)
      {Isa::Avx2, &avx2::convert_loops},
#endif
#if defined(MPSGRAD_HAVE_AVX512)
      {Isa::Avx512, &avx512::convert_loops},
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

double half_value(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) {
    return fraction == 0 ? sign * HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  }
  return exponent == 0 ? sign * std::ldexp(fraction, -24)
                       : sign * std::ldexp(1024 + fraction, exponent - 25);
}

// The float16 nearest to x, ties to even, found by rounding to a multiple of the unit in the last
// place.
std::uint16_t half_bits(float x) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) {  // quiet, upper payload bits kept
    const auto payload =
        static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(x) >> 13) & 0x3ff);
    return static_cast<std::uint16_t>(sign | 0x7e00 | payload);
  }
  const double magnitude = std::fabs(static_cast<double>(x));
  if (magnitude >= 65520.0) {
    return sign | 0x7c00;
  }
  const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
  const double units = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  // A carry into the next binade falls out of the addition.
  const int bits = static_cast<int>(units) + (exponent + 14) * 1024;
  return static_cast<std::uint16_t>(sign | bits);
}

std::uint16_t unorm_bits(float x, double scale) {
  const double value = static_cast<double>(x);
  if (!(value > 0.0)) {
    return 0;
  }
  return static_cast<std::uint16_t>(std::nearbyint(std::fmin(value, 1.0) * scale));
}

std::uint16_t stored(const std::vector<unsigned char>& bytes, ChannelFormat format,
                     std::size_t index) {
  if (format == kUnorm8) {
    return bytes[index];
  }
  std::uint16_t value = 0;
  std::memcpy(&value, bytes.data() + 2 * index, 2);
  return value;
}

std::uint16_t expected_bits(float x, ChannelFormat format) {
  return format == kFloat16 ? half_bits(x) : unorm_bits(x, format == kUnorm8 ? 255.0 : 65535.0);
}

std::string text(float x) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%a", static_cast<double>(x));
  return buffer;
}

// Every stored number of a format, loaded.
void check_loads(Checks& checks, const Set& set) {
  for (const ChannelFormat format : {kUnorm8, kUnorm16, kFloat16}) {
    const std::size_t count = format == kUnorm8 ? 256 : 65536;
    std::vector<unsigned char> data(count * bytes_of(format));
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<std::uint16_t>(i);
      if (format == kUnorm8) {
        data[i] = static_cast<unsigned char>(i);
      } else {
        std::memcpy(data.data() + 2 * i, &value, 2);
      }
    }
    std::vector<float> out(count);
    const auto pixels = static_cast<std::int64_t>(count);
    set.loops->load_row(data.data(), format, pixels, 1, 1, out.data());
    for (std::size_t i = 0; i < count; ++i) {
      const double u = static_cast<double>(i);
      const double exact = format == kFloat16 ? half_value(static_cast<std::uint16_t>(i))
                                              : u / (format == kUnorm8 ? 255.0 : 65535.0);
      const auto wanted = static_cast<float>(exact);
      const bool same = std::isnan(wanted) ? std::isnan(out[i])
                                           : std::bit_cast<std::uint32_t>(wanted) ==
                                                 std::bit_cast<std::uint32_t>(out[i]);
      checks.expect(same, std::string(isa_name(set.isa)) + " loads format " + dtype_name(format) +
                              ", number " + std::to_string(i) + ", as " + text(out[i]));
    }
  }
}

// Bit patterns first, first + step, ... through every sign, exponent and kind of NaN.
void check_stores(Checks& checks, const std::vector<Set>& sets, std::uint64_t step) {
  constexpr std::size_t kBlock = 1U << 16U;
  std::vector<float> in(kBlock);
  std::vector<unsigned char> out(2 * kBlock);
  std::uint64_t pattern = 0;
  while (pattern < (1ULL << 32U)) {
    std::size_t count = 0;
    for (; count < kBlock && pattern < (1ULL << 32U); ++count, pattern += step) {
      in[count] = std::bit_cast<float>(static_cast<std::uint32_t>(pattern));
    }
    for (const ChannelFormat format : {kUnorm8, kUnorm16, kFloat16}) {
      std::vector<std::uint16_t> wanted(count);
      for (std::size_t i = 0; i < count; ++i) {
        wanted[i] = expected_bits(in[i], format);
      }
      for (const Set& set : sets) {
        set.loops->store_row(in.data(), out.data(), format, static_cast<std::int64_t>(count), 1, 1);
        for (std::size_t i = 0; i < count; ++i) {
          if (stored(out, format, i) != wanted[i]) {
            checks.expect(false, std::string(isa_name(set.isa)) + " stores " + text(in[i]) +
                                     " in format " + dtype_name(format) + " as " +
                                     std::to_string(stored(out, format, i)) + ", not " +
                                     std::to_string(wanted[i]));
          }
        }
        checks.expect(true, "");
      }
    }
  }
}

// The float32 values round which a stored number changes: midpoints of neighbours and their own
// neighbours.
void check_ties(Checks& checks, const std::vector<Set>& sets) {
  for (const ChannelFormat format : {kUnorm8, kUnorm16, kFloat16}) {
    std::vector<float> in;
    const int last = format == kUnorm8 ? 255 : format == kUnorm16 ? 65535 : 0x7bff;
    for (int i = 0; i < last; ++i) {
      const double low = format == kFloat16 ? half_value(static_cast<std::uint16_t>(i))
                                            : static_cast<double>(i) / last;
      const double high = format == kFloat16 ? half_value(static_cast<std::uint16_t>(i + 1))
                                             : static_cast<double>(i + 1) / last;
      const auto middle = static_cast<float>((low + high) / 2);
      for (const float x : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 1e9F)}) {
        in.push_back(x);
        in.push_back(-x);
      }
    }
    std::vector<unsigned char> out(in.size() * 2);
    for (const Set& set : sets) {
      set.loops->store_row(in.data(), out.data(), format, static_cast<std::int64_t>(in.size()), 1,
                           1);
      for (std::size_t i = 0; i < in.size(); ++i) {
        checks.expect(stored(out, format, i) == expected_bits(in[i], format),
                      std::string(isa_name(set.isa)) + " rounds " + text(in[i]) + " in format " +
                          dtype_name(format));
      }
    }
  }
}

// Windows of every small and some large widths: what lies between the windows must stay as it was.
void check_windows(Checks& checks, const Set& set) {
  for (const ChannelFormat format : {kUnorm8, kUnorm16, kFloat16, kFloat32}) {
    const std::size_t size = bytes_of(format);
    for (const std::int64_t channels :
         {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 64, 67, 511, 512, 513}) {
      for (const std::int64_t gap : {0, 1, 5}) {
        for (const std::int64_t pixels : {0, 1, 3, 37, 1100}) {
          const std::string name = std::string(isa_name(set.isa)) + ", format " +
                                   dtype_name(format) + ", " + std::to_string(pixels) + " x " +
                                   std::to_string(channels) + " + " + std::to_string(gap);
          const std::int64_t stride = channels + gap;
          const auto dense = static_cast<std::size_t>(pixels * channels);
          const auto wide = static_cast<std::size_t>(pixels * stride + 3);
          std::vector<float> values(dense + 1, -1.0F);
          for (std::size_t i = 0; i < dense; ++i) {
            values[i] = static_cast<float>((i * 37) % 256) / 255.0F;
          }
          std::vector<unsigned char> data(wide * size, kGuard);
          set.loops->store_row(values.data(), data.data(), format, pixels, channels, stride);
          bool untouched = true;
          bool right = true;
          for (std::size_t i = 0; i < wide; ++i) {
            const auto pixel = static_cast<std::int64_t>(i) / stride;
            const auto channel = static_cast<std::int64_t>(i) % stride;
            if (pixel >= pixels || channel >= channels) {
              for (std::size_t b = 0; b < size; ++b) {
                untouched = untouched && data[i * size + b] == kGuard;
              }
            } else {
              const float x = values[static_cast<std::size_t>(pixel * channels + channel)];
              if (format == kFloat32) {
                right = right && std::memcmp(&x, data.data() + 4 * i, 4) == 0;
              } else {
                right = right && stored(data, format, i) == expected_bits(x, format);
              }
            }
          }
          checks.expect(untouched, name + ": store_row wrote outside the windows");
          checks.expect(right, name + ": store_row wrote wrong values");

          std::vector<float> loaded(dense + 1, -2.0F);
          set.loops->load_row(data.data(), format, pixels, channels, stride, loaded.data());
          checks.expect(loaded[dense] == -2.0F, name + ": load_row wrote too much");
          // Loading through a dense copy must give the same numbers as loading the windows.
          std::vector<unsigned char> packed((dense + 1) * size, kGuard);
          set.loops->copy_row(data.data(), stride, packed.data(), channels, format, pixels,
                              channels);
          checks.expect(packed[dense * size] == kGuard, name + ": copy_row wrote too much");
          std::vector<float> again(dense + 1, -2.0F);
          set.loops->load_row(packed.data(), format, 1, pixels * channels, pixels * channels,
                              again.data());
          checks.expect(loaded == again, name + ": load_row of windows and of their copy differ");
          const double tolerance = format == kFloat32   ? 0.0
                                   : format == kFloat16 ? 0x1p-12
                                   : format == kUnorm16 ? 0.5001 / 65535
                                                        : 0x1p-24;
          bool close = true;
          for (std::size_t i = 0; i < dense; ++i) {
            close = close && std::fabs(static_cast<double>(loaded[i] - values[i])) <= tolerance;
          }
          checks.expect(close, name + ": load_row does not undo store_row");

          std::vector<unsigned char> scattered(wide * size, kGuard);
          set.loops->copy_row(packed.data(), channels, scattered.data(), stride, format, pixels,
                              channels);
          checks.expect(scattered == data, name + ": copy_row into windows");
          set.loops->zero_row(scattered.data(), format, pixels, channels, stride);
          bool zeroed = true;
          for (std::size_t i = 0; i < wide * size; ++i) {
            const auto pixel = static_cast<std::int64_t>(i / size) / stride;
            const auto channel = static_cast<std::int64_t>(i / size) % stride;
            const bool inside = pixel < pixels && channel < channels;
            zeroed = zeroed && scattered[i] == (inside ? 0 : kGuard);
          }
          checks.expect(zeroed, name + ": zero_row");
        }
      }
    }
  }
}

void check_stream(Checks& checks, const Set& set) {
  std::vector<unsigned char> from(1024);
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<unsigned char>(i * 7 + 3);
  }
  bool exact = true;
  bool untouched = true;
  for (std::size_t start = 0; start <= 65; ++start) {
    for (const std::size_t bytes : {0, 1, 2, 63, 64, 65, 127, 128, 130, 640}) {
      std::vector<unsigned char> to(1024, kGuard);
      set.loops->stream(from.data() + start / 2, to.data() + start,
                        static_cast<std::int64_t>(bytes));
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool inside = i >= start && i < start + bytes;
        untouched = untouched && (inside || to[i] == kGuard);
        exact = exact && (!inside || to[i] == from[i - start + start / 2]);
      }
    }
  }
  checks.expect(exact, std::string(isa_name(set.isa)) + ": stream copies every byte");
  checks.expect(untouched, std::string(isa_name(set.isa)) + ": stream writes nothing else");
}

void check_isa(Checks& checks) {
  checks.expect(isa_supported(best_isa()), "the best instruction set is supported");
  checks.expect(parse_isa("") == best_isa(), "no name means the best instruction set");
  checks.expect(isa_supported(selected_isa()), "the selected instruction set is supported");
  std::printf("selected: %s, best: %s\n", isa_name(selected_isa()), isa_name(best_isa()));
  for (const Isa isa : {Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon}) {
    const std::string name = isa_name(isa);
    std::string words;
    try {
      checks.expect(parse_isa(name.c_str()) == isa && isa_supported(isa), name + " is chosen");
    } catch (const std::invalid_argument& error) {
      words = error.what();
      checks.expect(!isa_supported(isa), name + " is refused only where it is not supported");
    }
    const bool names_reason = words.find("does not support '" + name + "'") != std::string::npos;
    checks.expect(isa_supported(isa) == words.empty() && (words.empty() || names_reason),
                  name + ": " + words);
  }
  for (const char* wrong : {"AVX2", "sse", "avx512 ", "native"}) {
    std::string words;
    try {
      parse_isa(wrong);
    } catch (const std::invalid_argument& error) {
      words = error.what();
    }
    const bool lists = words.find(isa_name(best_isa())) != std::string::npos;
    checks.expect(lists && words.find("unknown instruction set '" + std::string(wrong) + "'") !=
                               std::string::npos,
                  std::string(wrong) + ": " + words);
  }
}

int run(bool exhaustive) {
  Checks checks;
  check_isa(checks);
  const std::vector<Set> sets = supported_sets();
  for (const Set& set : sets) {
    check_loads(checks, set);
    check_windows(checks, set);
    check_stream(checks, set);
  }
  check_ties(checks, sets);
  check_stores(checks, sets, exhaustive ? 1 : 4099);
  return checks.verdict("convert_test");
}

}  // namespace
}  // namespace mpsgrad::test

int main(int argc, char** argv) {
  try {
    return mpsgrad::test::run(argc > 1 && std::string(argv[1]) == "--exhaustive");
  } catch (const std::exception& error) {  // a wrong MPSGRAD_CPU
    std::printf("%s\n", error.what());
    return 2;
  }
}
