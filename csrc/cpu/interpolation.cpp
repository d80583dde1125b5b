// Positions, weights and rows of interpolated images.
#include "cpu/interpolation.hpp"

#include <algorithm>

#include "cpu/rows.hpp"
#include "cpu/threads.hpp"

namespace mpsgrad::cpu {
namespace {

constexpr Index kTaskFloats = 1 << 16;  // about what one task writes
constexpr int kRows = 0;                // scratch of a thread: two rows read
constexpr int kResultRow = 2;           // and one made

void add_tap(const InterpolationAxis& axis, Index pixel, double weight, InterpolationTaps& taps) {
  if (axis.edge == EdgeMode::Clamp) {
    pixel = std::clamp<Index>(pixel, 0, axis.length - 1);
  } else if (pixel < 0 || pixel >= axis.length) {
    return;
  }
  if (taps.count == 1 && taps.pixel[0] == pixel) {
    taps.weight[0] = 1.0F;  // both weights together
    return;
  }
  taps.pixel[taps.count] = static_cast<std::int32_t>(pixel);
  taps.weight[taps.count] = static_cast<float>(weight);
  ++taps.count;
}

template <class Element>
void make_row(const Interpolation& work, const InterpolationGrid& grid, Index sample, Index j) {
  const CpuImages& source = work.source;
  const InterpolationTaps& rows = grid.rows[static_cast<std::size_t>(j)];
  const Index floats = work.clip.size.width * source.channels;
  const Index y = work.clip.origin.y + j, x = work.clip.origin.x;
  const auto slot = [&](int k, Index elements) { return scratch_of<Element>(k, elements); };
  const bool placed = lies_as<Element>(source);
  InterpolatedRow<Element> row{rows.count,
                               {},
                               {rows.weight[0], rows.weight[1]},
                               grid.columns.data(),
                               work.clip.size.width,
                               source.channels};
  for (int k = 0; k < rows.count; ++k) {
    row.x[k] = load_run(source, sample, rows.pixel[k], 0, source.width,
                        slot(kRows + k, placed ? 0 : source.width * source.channels));
  }
  const Results<Element> out =
      begin_results(work.destination, sample, y, x, slot(kResultRow, floats));
  const auto& loops = interpolation_loops().of(out.at);
  if (rows.count == 0) {
    std::fill_n(out.at, floats, Element{});
  } else if (work.copies) {
    loops.copy(row, out);
  } else {
    loops.interpolate(row, out);
  }
  finish_results(work.destination, sample, y, x, work.clip.size.width, out);
}

template <class Element>
void run(const Interpolation& work, std::span<const InterpolationGrid> grids, Index first) {
  const Size& size = work.clip.size;
  const auto count = static_cast<Index>(grids.size());
  // Results of the same source rows stay together.
  const Index wanted = std::max<Index>(1, kTaskFloats / (size.width * work.source.channels));
  const Index group = chunks_of(wanted, work.rows_together) * work.rows_together;
  const Index groups = chunks_of(size.height, group);
  parallel_for(size.depth * groups, [&](Index task) {
    const Index sample = task / groups;
    const InterpolationGrid& grid = grids[static_cast<std::size_t>((first + sample) % count)];
    const Index row = task % groups * group;
    for (Index j = row; j < std::min(size.height, row + group); ++j) {
      make_row<Element>(work, grid, sample, j);
    }
  });
}

}  // namespace

Position position_of(Index i, Index length, Index results, bool align_corners) {
  const Index along = align_corners ? i * (length - 1) : i * length;
  const Index of = align_corners ? results - 1 : results;
  if (of == 0) {
    return {};
  }
  return {along / of, static_cast<double>(along % of) / static_cast<double>(of)};
}

InterpolationTaps taps_between(const InterpolationAxis& axis, const Position& position) {
  InterpolationTaps taps{};
  const Index pixel = axis.offset + position.pixel;
  add_tap(axis, pixel, 1.0 - position.beyond, taps);
  if (position.beyond > 0.0) {
    add_tap(axis, pixel == axis.length - 1 ? pixel : pixel + 1, position.beyond, taps);
  }
  return taps;
}

InterpolationTaps taps_on(const InterpolationAxis& axis, Index pixel) {
  InterpolationTaps taps{};
  add_tap(axis, axis.offset + pixel, 1.0, taps);
  return taps;
}

void interpolate(const Interpolation& work, std::span<const InterpolationGrid> grids, Index first) {
  work.source.has_halves() && work.destination.has_halves() ? run<Half>(work, grids, first)
                                                            : run<float>(work, grids, first);
}

}  // namespace mpsgrad::cpu
