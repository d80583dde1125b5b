// Images between the pixels of others, row by row: a row of results is made of at most two source
// rows. Which pixels a result lies between is worked out once for each column and each row.
#pragma once

#include <span>
#include <vector>

#include "cpu/cpu_images.hpp"
#include "cpu/simd/interpolate.hpp"

namespace mpsgrad::cpu {

// A place between two pixels, counted from the first one.
struct Position {
  Index pixel = 0;
  double beyond = 0.0;  // of the way to the next pixel, below 1
};

// Where result i of an axis lies whose `length` pixels become `results`. Apple does not say it for
// corners that are not aligned: this is the one place that decides.
Position position_of(Index i, Index length, Index results, bool align_corners);

// An axis of the source, and how it is read.
struct InterpolationAxis {
  Index length = 0;
  Index offset = 0;  // of the pixel that positions count from
  EdgeMode edge = EdgeMode::Zero;
};

// Behind the last pixel of the source there is nothing to go to, in any edge mode.
InterpolationTaps taps_between(const InterpolationAxis& axis, const Position& position);
InterpolationTaps taps_on(const InterpolationAxis& axis, Index pixel);

struct InterpolationGrid {
  std::vector<InterpolationTaps> columns, rows;  // of the clip rectangle
};

struct Interpolation {
  CpuImages source, destination;
  Region clip;
  bool copies = false;      // no result lies between pixels
  Index rows_together = 1;  // of the result, about as many as are made of one source row
};

// Result i is made of source i, by the grid `(first + i) % grids.size()`. Runs at once.
void interpolate(const Interpolation& work, std::span<const InterpolationGrid> grids,
                 Index first = 0);

}  // namespace mpsgrad::cpu
