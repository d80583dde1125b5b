// Which compilation of the arithmetic loops runs: every *_simd.cpp exists once per instruction set,
// and this decides, once per process, whose tables of loops are used.
#pragma once

namespace mpsgrad {

// Whether this processor does what an AVX-512 instruction asks for in two halves (Zen 4): a vector
// of 512 bits then gains nothing over two of 256, and costs where it is made of something shorter.
bool splits_wide_vectors();

// Whether this processor's hardware prefetcher (Intel's) follows several rows better than prefetch
// instructions do, presumably because a core has few of those under way at once. Loops that pass
// over several rows at a time are then faster without them, and depthwise windows over images past
// the caches, row by row, if they prefetch one line after the other.
bool foresees_rows();

// Whether that prefetcher (Intel's) stops at the end of a page and begins late in the next: loops
// that add up what they read are then faster with prefetch instructions. AMD's are slower with
// them.
bool pauses_at_pages();

}  // namespace mpsgrad

#if defined(MPSGRAD_ISA)

// A *_simd.cpp file: it defines the table of its own instruction set and must not choose one, so
// there is no accessor, and with it no inline function whose wide-vector copy the linker could hand
// to the rest of the library.
#define MPSGRAD_LOOPS(Type, name) \
  namespace MPSGRAD_ISA {         \
  extern const Type name;         \
  }

#else

namespace mpsgrad {

// Scalar is the portable baseline (x86-64-v2 on x86); Avx2 is x86-64-v3, Avx512 is x86-64-v4. On
// arm64 Neon is the only set.
enum class Isa { Scalar, Avx2, Avx512, Neon };

// "scalar", "avx2", "avx512" or "neon": the words of MPSGRAD_CPU.
const char* isa_name(Isa isa);

// Whether this build contains the set.
bool isa_built(Isa isa);

// Whether this build contains the set and this processor and operating system can run it.
bool isa_supported(Isa isa);

// The widest supported set; std::runtime_error if the processor is older than all of them.
Isa best_isa();

// The set whose name is given, the best one for an empty name. std::invalid_argument for a name
// that is unknown or not supported here; its text lists what is.
Isa parse_isa(const char* name);

// What the process uses: MPSGRAD_CPU where it is set, else the best. Decided at the first call; a
// call that throws decides nothing. The module calls it on import, so that a wrong MPSGRAD_CPU
// shows there.
Isa selected_isa();

}  // namespace mpsgrad

#if defined(MPSGRAD_HAVE_NEON)
#define MPSGRAD_BASELINE_ISA neon
#else
#define MPSGRAD_BASELINE_ISA scalar
#endif
#define MPSGRAD_DECLARE_LOOPS(isa, Type, name) \
  namespace isa {                              \
  extern const Type name;                      \
  }
#if defined(MPSGRAD_HAVE_AVX2)
#define MPSGRAD_DECLARE_AVX2(Type, name) MPSGRAD_DECLARE_LOOPS(avx2, Type, name)
#define MPSGRAD_PICK_AVX2(name) \
  case Isa::Avx2:               \
    return avx2::name;
#else
#define MPSGRAD_DECLARE_AVX2(Type, name)
#define MPSGRAD_PICK_AVX2(name)
#endif
#if defined(MPSGRAD_HAVE_AVX512)
#define MPSGRAD_DECLARE_AVX512(Type, name) MPSGRAD_DECLARE_LOOPS(avx512, Type, name)
#define MPSGRAD_PICK_AVX512(name) \
  case Isa::Avx512:               \
    return avx512::name;
#else
#define MPSGRAD_DECLARE_AVX512(Type, name)
#define MPSGRAD_PICK_AVX512(name)
#endif

// Used inside namespace mpsgrad, in <family>_simd.hpp, after the table's struct:
//   MPSGRAD_LOOPS(NeuronLoops, neuron_loops)
// <family>_simd.cpp then defines `const NeuronLoops neuron_loops{...};` in namespace
// mpsgrad::MPSGRAD_ISA, and all other code calls mpsgrad::neuron_loops(), which returns the table
// of selected_isa().
#define MPSGRAD_LOOPS(Type, name)                         \
  MPSGRAD_DECLARE_LOOPS(MPSGRAD_BASELINE_ISA, Type, name) \
  MPSGRAD_DECLARE_AVX2(Type, name)                        \
  MPSGRAD_DECLARE_AVX512(Type, name)                      \
  inline const Type& name() {                             \
    switch (selected_isa()) {                             \
      MPSGRAD_PICK_AVX512(name)                           \
      MPSGRAD_PICK_AVX2(name)                             \
      default:                                            \
        return MPSGRAD_BASELINE_ISA::name;                \
    }                                                     \
  }

#endif
