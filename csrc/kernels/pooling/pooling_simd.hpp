// Loops of the pooling kernels: a row of windows against the source rows that it reads, a row of
// the source's gradient against the rows of windows that read it.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"

namespace mpsgrad {

// Consecutive windows that read a row alike: each reads `taps` pixels, the first window from
// `pixel` on, the others a stride further each.
struct PoolingRun {
  std::int64_t window;   // the first one, counted from the start of the row of windows
  std::int64_t windows;  // how many
  std::int64_t pixel;
  std::int64_t taps;   // 0: nothing is read
  std::int64_t taken;  // of them, those whose pixels an earlier window has read
  float weight;        // how often every tap counts: more than once where edges are clamped
  float divisor;       // averages: the columns' part of what they divide by
  bool begins;         // the windows' first run: what they held before does not count
  bool meets_padding;  // a padding zero takes part in the maximum
};

struct PoolingRow {
  const PoolingRun* runs;
  std::int64_t run_count;
  std::int64_t stride, dilation;  // pixels
  std::int64_t channels;
  bool begins;         // these source rows are the windows' first
  bool ends;           // and these their last
  bool meets_padding;  // as in a run, for all windows of the row
  // Elements from a source row to the one that the next row of windows reads in its place, how many
  // of the rows that one reads no window has read before, and elements to its gradients.
  std::int64_t advance = 0, fresh = 0, gradient_advance = 0;
  bool streamed = false;  // results go past the caches; pixels are whole lines
};

inline constexpr int kMostPoolingRows = 8;  // that one loop reads together

// One source row.
template <class Element>
struct PoolingSource {
  const Element* x;
  std::int64_t y;
  float weight;
};

// What a row of windows gives to the pixels that it read: `share` * weight / (divisor times the
// run's) to each of them, nothing if the divisor is 0.
struct PoolingShares {
  const float* share;
  float weight;
  float divisor;
};

// Rows of windows (`pooled`, `best`, gradients, shares) are dense, with one pixel a window.

// Loops that read source rows.
template <class Element>
struct PoolingSourceLoops {
  using Source = PoolingSource<Element>;
  void (*maximum)(const PoolingRow& row, const Source* sources, std::int64_t count, float* pooled);
  // At the end divides by `divisor` times the run's.
  void (*average)(const PoolingRow& row, const Source* sources, std::int64_t count, float divisor,
                  float* pooled);
  void (*squares)(const PoolingRow& row, const Source* sources, std::int64_t count, float* pooled);
  // Every window gives its gradient to the first of its pixels that equals its maximum, to none if
  // that is a padding zero: it is added to out[i], the gradient's row of sources[i]. These are all
  // rows that the windows read, and each window has one run.
  void (*award_added)(const PoolingRow& row, const Source* sources, std::int64_t count,
                      const Element* gradient, float* const* out);
  // The same where no pixel is read by two windows, and those that are read by one are written.
  void (*award_alone)(const PoolingRow& row, const Source* sources, std::int64_t count,
                      const Element* gradient, Element* const* out);

  // The same for windows of any number of rows. First some rows after the other: `winner` is the
  // number of the pixel that supplies the maximum, of the first of equal ones, -1 if that is a
  // padding zero. What a window reads in the first row is numbered from `first_number` on, in the
  // others each time from `numbers` further on. `best` keeps the maxima from call to call. Where
  // windows have several runs, calls are of one row.
  void (*winners)(const PoolingRow& row, const Source* sources, std::int64_t count,
                  std::int32_t first_number, std::int32_t numbers, float* best,
                  std::int32_t* winner);
  // Then the gradient's rows, one by one.
  void (*award_row_added)(const PoolingRow& row, const std::int32_t* winner,
                          std::int32_t first_number, const Element* gradient, float* out);
  void (*award_row_alone)(const PoolingRow& row, const std::int32_t* winner,
                          std::int32_t first_number, const Element* gradient, Element* out);
};

struct PoolingLoops : ByElement<PoolingSourceLoops> {
  void (*root)(float* pooled, std::int64_t count);
  // share = gradient / sqrt(squares), 0 where squares is 0.
  void (*per_root)(const float* gradient, const float* squares, std::int64_t count, float* share);

  // A row of the source's gradient: adds what the windows give. `assign`: pixels that no earlier
  // window of the row has read (see PoolingRun::taken) are written instead.
  void (*spread)(const PoolingRow& row, const PoolingShares* shares, std::int64_t count,
                 bool assign, float* out);
  void (*multiply)(float* out, const float* x, std::int64_t count);

  // Whether there are registers for nine pixels of a window, what they are given and what their
  // columns have in common.
  bool holds_nine;
};

MPSGRAD_LOOPS(PoolingLoops, pooling_loops)

}  // namespace mpsgrad
