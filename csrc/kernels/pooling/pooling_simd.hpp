// Loops of the pooling kernels: one row of source pixels against the windows that read it.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"

namespace mpsgrad {

// Consecutive windows that read one row alike: window w reads `taps` pixels from `pixel` on, each
// window's first a stride after the one before.
struct PoolingRun {
  std::int64_t window;   // the first one, counted from the start of the pooled row
  std::int64_t windows;  // how many
  std::int64_t pixel;    // first tap of the first window
  std::int64_t taps;
  float weight;  // how often every tap counts: more than once where edges are clamped
};

struct PoolingRow {
  const PoolingRun* runs;
  std::int64_t run_count;
  std::int64_t stride, dilation;  // pixels
  std::int64_t channels;
};

// x is a row of the source, `pooled`, `best`, `index` and `share` are rows with a pixel a window;
// all are dense. `base` is the number of the row's first pixel: pixels of an image are counted row
// by row.
struct PoolingLoops {
  void (*fill)(float* out, std::int64_t count, float value);
  void (*maximum)(const PoolingRow& row, const float* x, float* pooled);
  void (*sum)(const PoolingRow& row, const float* x, float* pooled);
  // Adds weight * run.weight * x * x.
  void (*squares)(const PoolingRow& row, const float* x, float weight, float* pooled);

  void (*raise_to_zero)(float* pooled, std::int64_t count);  // max(pooled, 0)
  void (*root)(float* pooled, std::int64_t count);
  void (*divide)(float* pooled, const float* divisors, std::int64_t windows, std::int64_t channels);

  // Which pixel supplies the maximum of each window: the first of equal ones. begin_winners starts
  // with the windows' first pixels, columns[w] of the row at `base`, or -1 for a window without
  // any.
  void (*begin_winners)(const std::int32_t* columns, std::int32_t base, std::int64_t windows,
                        std::int64_t channels, float* best, std::int32_t* index);
  void (*winners)(const PoolingRow& row, const float* x, std::int32_t base, float* best,
                  std::int32_t* index);
  // Forgets winners below 0: a padding zero is larger.
  void (*forget_negative)(const float* best, std::int32_t* index, std::int64_t count);

  void (*scale)(const float* gradient, const float* factors, std::int64_t windows,
                std::int64_t channels, float* share);
  // share = gradient / sqrt(squares), 0 where squares is 0.
  void (*per_root)(const float* gradient, const float* squares, std::int64_t count, float* share);

  // out is a row of the source's gradient: adds the shares of the windows to the pixels they read,
  // or the gradient to the pixel that won.
  void (*spread)(const PoolingRow& row, const float* share, float weight, float* out);
  void (*award)(const PoolingRow& row, const float* gradient, const std::int32_t* index,
                std::int32_t base, float* out);
  void (*multiply)(float* out, const float* x, std::int64_t count);
};

MPSGRAD_LOOPS(PoolingLoops, pooling_loops)

}  // namespace mpsgrad
