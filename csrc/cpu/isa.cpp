// Finds out what this processor can run and what the user asked for with MPSGRAD_CPU.
#include "cpu/isa.hpp"

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace mpsgrad {
namespace {

constexpr Isa kWidestFirst[] = {Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Scalar};

#if defined(__x86_64__)

// __builtin_cpu_supports also asks whether the operating system saves the wide registers, but not
// every compiler knows the names of the three small extensions of x86-64-v3 that are read from
// CPUID here.
bool has_v3_extras() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned kMovbe = 1U << 22U;
  constexpr unsigned kF16c = 1U << 29U;
  constexpr unsigned kLzcnt = 1U << 5U;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kMovbe) == 0 || (c & kF16c) == 0) {
    return false;
  }
  return __get_cpuid(0x80000001U, &a, &b, &c, &d) != 0 && (c & kLzcnt) != 0;
}

// Whose processor this is, in three parts of four letters, as CPUID orders them.
constexpr std::array<unsigned, 3> kIntel{0x756e6547U, 0x49656e69U, 0x6c65746eU};
constexpr std::array<unsigned, 3> kAmd{0x68747541U, 0x69746e65U, 0x444d4163U};

bool is_made_by(const std::array<unsigned, 3>& maker) {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(0, &a, &b, &c, &d) != 0 && maker == std::array<unsigned, 3>{b, d, c};
}

bool is_intel() { return is_made_by(kIntel); }

// Zen 3, which has no AVX-512, and Zen 4.
bool is_family_19h() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (!is_made_by(kAmd) || __get_cpuid(1, &a, &b, &c, &d) == 0) {
    return false;
  }
  const unsigned family = (a >> 8U & 0xfU) + (a >> 20U & 0xffU);
  return family == 0x19U;
}

bool has_v2() {
  return __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("ssse3") != 0 &&
         __builtin_cpu_supports("popcnt") != 0;
}

bool has_v3() {
  return has_v2() && __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0 &&
         has_v3_extras();
}

bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

bool processor_has(Isa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case Isa::Scalar:
      return has_v2();
    case Isa::Avx2:
      return has_v3();
    case Isa::Avx512:
      return has_v4();
    case Isa::Neon:
      return false;
  }
  return false;
}

#else

bool is_intel() { return false; }
bool is_family_19h() { return false; }

// Elsewhere a build has one set, the one its compiler targets, and NEON is part of every arm64
// processor.
bool processor_has(Isa isa) { return isa_built(isa); }

#endif

std::string supported_names() {
  std::string names;
  for (const Isa isa : kWidestFirst) {
    if (isa_supported(isa)) {
      names += names.empty() ? "" : ", ";
      names += isa_name(isa);
    }
  }
  return names.empty() ? "none" : names;
}

}  // namespace

bool splits_wide_vectors() {
  static const bool splits = is_family_19h();
  return splits;
}

bool foresees_rows() {
  static const bool foresees = is_intel();
  return foresees;
}

bool pauses_at_pages() {
  static const bool pauses = is_intel();
  return pauses;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::Scalar:
      return "scalar";
    case Isa::Avx2:
      return "avx2";
    case Isa::Avx512:
      return "avx512";
    case Isa::Neon:
      return "neon";
  }
  throw std::invalid_argument("isa_name: not an instruction set: " +
                              std::to_string(static_cast<int>(isa)));
}

bool isa_built(Isa isa) {
  switch (isa) {
#if defined(MPSGRAD_HAVE_NEON)
    case Isa::Neon:
      return true;
#else
    case Isa::Scalar:
      return true;
#endif
#if defined(MPSGRAD_HAVE_AVX2)
    case Isa::Avx2:
      return true;
#endif
#if defined(MPSGRAD_HAVE_AVX512)
    case Isa::Avx512:
      return true;
#endif
    default:
      return false;
  }
}

bool isa_supported(Isa isa) { return isa_built(isa) && processor_has(isa); }

Isa best_isa() {
  for (const Isa isa : kWidestFirst) {
    if (isa_supported(isa)) {
      return isa;
    }
  }
  throw std::runtime_error("mpsgrad needs an x86-64-v2 processor (SSE4.2, SSSE3, POPCNT)");
}

Isa parse_isa(const char* name) {
  const std::string wanted(name);
  if (wanted.empty()) {
    return best_isa();
  }
  for (const Isa isa : kWidestFirst) {
    if (wanted != isa_name(isa)) {
      continue;
    }
    if (!isa_supported(isa)) {
      throw std::invalid_argument(
          "MPSGRAD_CPU: this " + std::string(isa_built(isa) ? "processor" : "build") +
          " does not support '" + wanted + "'; possible here: " + supported_names());
    }
    return isa;
  }
  throw std::invalid_argument("MPSGRAD_CPU: unknown instruction set '" + wanted +
                              "'; possible here: " + supported_names());
}

Isa selected_isa() {
  static const Isa selected = [] {
    const char* forced = std::getenv("MPSGRAD_CPU");
    return parse_isa(forced == nullptr ? "" : forced);
  }();
  return selected;
}

}  // namespace mpsgrad
