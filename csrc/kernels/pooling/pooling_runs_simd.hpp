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

// Calls body(Exactly) with as many lanes as the narrowest vector that has `count`, which the widest
// has.
template <class Body>
MPSGRAD_INLINE void with_lanes_above(Index count, const Body& body) {
  if constexpr (kWidest >= 16) {
    if (count > 8) {
      return body(Exactly<16>{});
    }
  }
  if constexpr (kWidest >= 8) {
    if (count > 4) {
      return body(Exactly<8>{});
    }
  }
  body(Exactly<4>{});
}

// Calls body(vectors, block, offset in a row of pixels, offset in the row of windows) for stretches
// of so many vectors of every window of a run. `spills`: what is written behind a window's elements
// is written again with the windows that follow, so pixels of fewer channels than a vector has
// lanes may go as one vector each, as long as that ends within the run.
template <Index kTogether, class Body>
MPSGRAD_INLINE void for_windows_in_stretches(const PoolingRow& row, const PoolingRun& run,
                                             bool spills, const Body& body) {
  const Index channels = row.channels;
  PoolingRun rest = run;
  if (spills && row.stride > 1 && channels < kWidest) {
    with_lanes_above(channels, [&](auto lanes) MPSGRAD_MELT {
      const Index reached = (lanes - 1) / channels;  // windows behind one
      for (; rest.windows > reached; --rest.windows) {
        body(Exactly<1>{}, WholeBlock<decltype(lanes){}>{}, rest.pixel * channels,
             rest.window * channels);
        rest.pixel += row.stride;
        ++rest.window;
      }
    });
  }
  for_windows(row, rest, [&](Index from, Index to, Index elements) MPSGRAD_MELT {
    for_stretches<kTogether>(elements, [&](auto vectors, auto block, Index c) MPSGRAD_MELT {
      body(vectors, block, from + c, to + c);
    });
  });
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
