// How pooling loops go over a row of windows. Only for *_simd.cpp files.
#pragma once

#include "cpu/simd/lanes.hpp"
#include "kernels/pooling/pooling_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {

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

// Calls body(vectors, block, first) for stretches of so many vectors of a window's elements, and
// for what is left of these, vector by vector.
template <Index kTogether, class Body>
MPSGRAD_INLINE void for_stretches(Index elements, const Body& body) {
  constexpr Index kWide = kTogether * kWidest;
  Index wide = 0;
  if constexpr (kTogether > 1) {
    for (; wide + kWide <= elements; wide += kWide) {
      body(Exactly<kTogether>{}, WholeBlock<kWidest>{}, wide);
    }
  }
  for_blocks(elements - wide,
             [&](auto block, Index c) MPSGRAD_MELT { body(Exactly<1>{}, block, wide + c); });
}

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

}  // namespace mpsgrad::MPSGRAD_ISA
