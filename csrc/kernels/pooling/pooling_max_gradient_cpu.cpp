// Gradient of the maximum on the CPU device: windows give to the rows that they read, one row of
// windows after the other, which is the fixed order of additions. A row has one writer.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cpu/cpu_calls.hpp"
#include "kernels/pooling/pooling_gradient_rows.hpp"
#include "kernels/pooling/pooling_simd.hpp"
#include "kernels/pooling/pooling_windows.hpp"
#include "kernels/pooling/pooling_winners_simd.hpp"

namespace mpsgrad::cpu::pooling {
namespace {

constexpr Index kNine = 9;     // pixels of a window that a loop keeps in registers, at most
constexpr Index kVector = 16;  // channels that fill one, at most

// A task's rows of G while windows give to them: opened before the first does, finished after the
// last did. kAlone: no pixel is read by two windows, so nothing is added.
template <class Element, bool kAlone>
class OpenRows {
 public:
  OpenRows(const GradientWork& work, const Columns& columns, Index sample, Index first, Index last)
      : work_(work),
        columns_(columns),
        sample_(sample),
        begin_(first),
        end_(last),
        streamed_(kAlone && work.streams_lines<Element>(sample)),
        in_place_(streamed_ || is_in_place(work, columns)),
        places_(in_place_ ? 0 : std::min(last - first, work.geometry.y.extent())),
        ring_(scratch_of<Element>(kRing, places_ * place_elements())),
        finished_(first),
        opened_(first) {}

  // Most rows of a task, for those under way that are not made where they are wanted.
  static Index most_rows(const GradientWork& work, const Columns& columns) {
    const bool fits = work.geometry.y.extent() * work.row_floats() <= kRingFloats;
    return fits || is_in_place(work, columns) ? work.clip.size.height
                                              : kRingFloats / work.row_floats();
  }

  // Whether the places of all rows are 32-bit numbers.
  static bool has_places(const GradientWork& work) {
    constexpr Index kMost = std::numeric_limits<std::int32_t>::max();
    const Index rows = work.source.height + 2 * work.geometry.y.extent();
    return rows * std::max(work.row_floats() + kApart, work.destination.row_stride) < kMost;
  }

  // Whether what windows give goes to the image, past the caches.
  bool streamed() const { return streamed_; }

  // Before windows give to source rows from `first` to `last`; none gives to earlier rows again.
  void advance(Index first, Index last) {
    finish_until(first);
    open_until(last + 1);
  }
  void finish() { finish_until(work_.first_row + end_); }

  bool owns(Index y) const { return y >= work_.first_row + begin_ && y < work_.first_row + end_; }
  // An open row, or a row for what another task's rows get.
  Element* row(Index y) {
    return owns(y) ? at(y - work_.first_row) : scratch_of<Element>(kResultRow, work_.row_floats());
  }
  // The rows that a row of windows reads, the first of which is `y`; those of the task are open.
  PoolingPlaces places(Index y) const {
    const Index first = y - work_.first_row;  // may be another task's
    const Index own = std::max(first, begin_);
    const Index pitch = in_place_ ? work_.destination.row_stride : place_elements();
    const Index position = in_place_ ? own - begin_ : own % places_;
    const Index follow =
        in_place_ ? end_ - own : places_ - position;  // before the array begins anew
    const auto elements = [=](Index rows) { return static_cast<std::int32_t>(rows * pitch); };
    return {in_place_ ? at(begin_) : ring_,
            pitch,
            elements(own - first),
            elements(end_ - first),
            elements(own - first + follow),
            elements(first - own + position),
            elements(first - own + position - places_)};
  }

 private:
  static constexpr Index kApart = 80;  // so that rows do not fall into the same places either

  // Columns of a window that fall into the same places of the nearest cache need rows that do not.
  static bool is_in_place(const GradientWork& work, const Columns& columns) {
    constexpr Index kTwoPlaces = 512, kFourPlaces = 256;  // floats from one column to the next
    const Index step = columns.dilation * columns.channels;
    const bool crowded = !kAlone && (step % kTwoPlaces == 0 ||
                                     (step % kFourPlaces == 0 && meets_source(work, kFourPlaces)));
    const bool stores = std::is_same_v<Element, Half> ? !work.destination.streamed
                                                      : work.destination.stores_in_place();
    return work.whole() && stores && !crowded;
  }
  // Whether both images fall into the same places, so many floats apart.
  static bool meets_source(const GradientWork& work, Index apart) {
    constexpr std::uintptr_t kLine = 64;
    const auto place = [&](const CpuImages& images) {
      return reinterpret_cast<std::uintptr_t>(images.samples.front()) / sizeof(float);
    };
    const std::uintptr_t way = (place(work.destination) - place(work.source)) %
                               static_cast<std::uintptr_t>(apart) * sizeof(float);
    return way < kLine || way > static_cast<std::uintptr_t>(apart) * sizeof(float) - kLine;
  }
  Element* at(Index r) const {
    return in_place_ ? work_.image_row<Element>(sample_, r)
                     : ring_ + r % places_ * place_elements();
  }
  Index place_elements() const { return work_.row_floats() + kApart; }
  // Whether windows give to a row: a clip may go on where the source has no row or no image.
  bool is_read(Index y) const {
    const auto [from, to] = work_.readers(y);
    return from < to && y >= 0 && y < work_.source.height && sample_ < work_.used.depth;
  }
  void open_until(Index y) {
    for (const Index end = std::min(end_, y - work_.first_row); opened_ < end; ++opened_) {
      Element* const row = at(opened_);
      if (kAlone && is_read(opened_ + work_.first_row)) {
        for (const auto& [begin, past] : columns_.unread) {
          std::fill(row + begin * columns_.channels, row + past * columns_.channels, Element{});
        }
      } else {
        std::fill_n(row, work_.row_floats(), Element{});
      }
    }
  }
  void finish_until(Index y) {
    for (const Index end = std::min(end_, y - work_.first_row); finished_ < end; ++finished_) {
      open_until(work_.first_row + finished_ + 1);
      if (!in_place_) {
        work_.finish_row(sample_, finished_, at(finished_));
      }
    }
  }

  const GradientWork& work_;
  const Columns& columns_;
  Index sample_, begin_, end_;
  bool streamed_, in_place_;
  Index places_;
  Element* ring_;
  Index finished_, opened_;  // up to which rows of the clip
};

// Element: as what loops read source rows. kAlone: no pixel is read by two windows; sums of several
// are float32.
template <class Element, bool kAlone>
class MaxGradient {
  using Result = std::conditional_t<kAlone, Element, float>;
  using Rows = OpenRows<Result, kAlone>;
  using Source = PoolingSource<Element>;

 public:
  MaxGradient(const GradientWork& work, const Columns& columns)
      : work_(work), geometry_(work.geometry), columns_(columns) {}

  // How many slices its channels are cut into, so that there are tasks for all threads.
  Index slices() const;
  // Rows of a task where there are so many slices.
  Index task_rows(Index slices) const;
  void make(Index sample, Index first, Index last) const;

 private:
  const PoolingSourceLoops<Element>& loops() const {
    return pooling_loops().of(static_cast<const Element*>(nullptr));
  }
  PoolingRow row(Index j, bool begins, bool ends, const Rows& open) const;
  // The windows of row j give to the rows that they read: to all of them at once, or, where these
  // are many or windows have several runs, to one after the other.
  void award(Index sample, Index j, Rows& open) const;
  void award_together(Index j, const Source* rows, Index count, const Element* gradient,
                      Rows& open) const;
  void award_row_by_row(Index j, const Element* gradient, const std::int32_t* winner,
                        Rows& open) const;
  // The same by way of the largest pixel of each column, for windows of many pixels.
  void award_by_column(Index sample, Index j, const Element* gradient, Rows& open) const;
  bool goes_by_column() const;
  // So many numbers are set aside for what a window reads in a row.
  std::int32_t numbers() const {
    return static_cast<std::int32_t>(std::min(geometry_.x.kernel, geometry_.x.length) + 2);
  }

  const GradientWork& work_;
  const Geometry& geometry_;
  const Columns& columns_;
};

template <class Element, bool kAlone>
PoolingRow MaxGradient<Element, kAlone>::row(Index j, bool begins, bool ends,
                                             const Rows& open) const {
  PoolingRow row = columns_.row(begins, ends, geometry_.meets_padding(geometry_.y, j));
  row.advance = geometry_.y.stride * work_.row_floats();
  row.gradient_advance = work_.gradient.width * columns_.channels;
  row.streamed = open.streamed();
  return row;
}

template <class Element, bool kAlone>
void MaxGradient<Element, kAlone>::award(Index sample, Index j, Rows& open) const {
  const Index elements = columns_.floats();
  const Element* gradient =
      work_.load_gradient(columns_, sample, j, scratch_of<Element>(kGradientRow, elements));
  if (goes_by_column()) {
    return award_by_column(sample, j, gradient, open);
  }
  const Index together = rows_together<Element>(geometry_, work_.source);
  // A loop goes over one run after the other, all rows of each, which is the order of equal pixels
  // only where windows have one run or calls one row.
  const Index most = columns_.repeats ? 1 : most_rows<Element>(work_.source);
  std::int32_t* winner = nullptr;
  std::int32_t number = 0;
  for_source_rows<Element>(geometry_, work_.source, sample, j, most,
                           [&](const Source* rows, Index count, bool begins, bool ends) {
                             if (begins && ends && count <= together && !columns_.repeats) {
                               return award_together(j, rows, count, gradient, open);
                             }
                             float* best = thread_scratch(kWindowRow, elements);
                             winner = scratch_of<std::int32_t>(kWinnerRow, elements);
                             loops().winners(row(j, begins, ends, open), rows, count, number,
                                             numbers(), best, winner);
                             number += static_cast<std::int32_t>(count) * numbers();
                           });
  if (winner != nullptr) {
    award_row_by_row(j, gradient, winner, open);
  }
}

template <class Element, bool kAlone>
bool MaxGradient<Element, kAlone>::goes_by_column() const {
  // Windows of nine pixels have a loop that keeps them in registers, for channels in whole vectors.
  // Where there are too few registers it meets each pixel more than once, and none stays in the
  // nearest cache if all columns fall into the same place.
  constexpr Index kFewChannels = 3;
  constexpr Index kSamePlace = 1024;  // floats
  const Index pixels = work_.geometry.window_pixels();
  const Index channels = columns_.channels;
  const bool crowded = !pooling_loops().holds_nine &&
                       geometry_.x.dilation * work_.source.pixel_stride % kSamePlace == 0;
  const bool few = pixels < kNine ||
                   (pixels == kNine && !crowded &&
                    (channels >= kVector || (geometry_.x.stride > 1 && channels > kFewChannels)));
  return !kAlone && !columns_.repeats && !few && Rows::has_places(work_);
}

template <class Element, bool kAlone>
void MaxGradient<Element, kAlone>::award_by_column(Index sample, Index j, const Element* gradient,
                                                   Rows& open) const {
  if constexpr (!kAlone) {
    const Index elements = work_.row_floats();
    float* const best = thread_scratch(kWindowRow, elements);
    std::int32_t* const place = scratch_of<std::int32_t>(kWinnerRow, elements);
    PoolingPlaces places{};
    Index first = -1;
    const bool in_place = reads_in_place<Element, true>(work_.source);
    const PoolingPixels pixels{work_.source.width, columns_.channels,
                               in_place ? work_.source.pixel_stride : columns_.channels};
    for_source_rows<Element, true>(
        geometry_, work_.source, sample, j, most_rows<Element, true>(work_.source),
        [&](const Source* rows, Index count, bool begins, bool /*ends*/) {
          if (count == 0) {
            return;
          }
          if (begins) {
            first = rows[0].y;
            places = open.places(first);
          }
          pooling_winner_loops()
              .of(static_cast<const Element*>(nullptr))
              .of_columns(rows, count, geometry_.y.stride, pixels, begins, first, places.pitch,
                          best, place);
        });
    if (first >= 0) {
      pooling_winner_loops().of(gradient).give(row(j, true, true, open), best, place, gradient,
                                               places);
    }
  }
}

template <class Element, bool kAlone>
void MaxGradient<Element, kAlone>::award_together(Index j, const Source* rows, Index count,
                                                  const Element* gradient, Rows& open) const {
  std::array<Result*, kMostPoolingRows> out{};
  for (Index i = 0; i < count; ++i) {
    out[static_cast<std::size_t>(i)] = open.row(rows[i].y);
  }
  PoolingRow windows = row(j, true, true, open);
  windows.fresh = std::min(geometry_.y.stride, count);
  if constexpr (kAlone) {
    loops().award_alone(windows, rows, count, gradient, out.data());
  } else {
    loops().award_added(windows, rows, count, gradient, out.data());
  }
}

template <class Element, bool kAlone>
void MaxGradient<Element, kAlone>::award_row_by_row(Index j, const Element* gradient,
                                                    const std::int32_t* winner, Rows& open) const {
  const PoolingRow windows = row(j, true, true, open);
  std::int32_t number = 0;
  geometry_.y.read(j, true, [&](Index first, Index rows, Index /*weight*/) {
    for (Index i = 0; i < rows; ++i, number += numbers()) {
      Result* out = open.row(first + i * geometry_.y.dilation);
      if constexpr (kAlone) {
        loops().award_row_alone(windows, winner, number, gradient, out);
      } else {
        loops().award_row_added(windows, winner, number, gradient, out);
      }
    }
  });
}

template <class Element, bool kAlone>
Index MaxGradient<Element, kAlone>::slices() const {
  constexpr Index kLeast = 64;
  const bool floats = std::is_same_v<Element, float> && work_.source.is_float() &&
                      work_.gradient.is_float() && work_.destination.is_float();
  if (!goes_by_column() || !floats) {
    return 1;
  }
  const Index wanted = chunks_of(2 * Index{thread_count()}, work_.clip.size.depth);
  return std::clamp<Index>(wanted, 1, std::max<Index>(1, columns_.channels / kLeast));
}

template <class Element, bool kAlone>
Index MaxGradient<Element, kAlone>::task_rows(Index slices) const {
  // Windows that reach past the rows of a task are evaluated in the next task again, so tasks are
  // tall where windows are, as far as that leaves every thread some. Where windows are evaluated by
  // all of their rows, they are as tall as two tasks a thread allow.
  const Region& clip = work_.clip;
  const Index overlap = std::max<Index>(0, geometry_.y.extent() - geometry_.y.stride);
  const Index tall = std::min(16 * overlap, clip.size.depth * clip.size.height / 16);
  const Index rows = clip.size.depth * slices * clip.size.height;
  const Index worth = goes_by_column() ? std::max(rows / (2 * thread_count()),
                                                  kTaskFloats / 16 / work_.row_floats())
                                       : kTaskFloats / work_.row_floats();
  const Index wanted = std::min(clip.size.height, std::max({worth, 2 * overlap, tall, Index{1}}));
  return std::min(wanted, std::max<Index>(1, Rows::most_rows(work_, columns_)));
}

template <class Element, bool kAlone>
void MaxGradient<Element, kAlone>::make(Index sample, Index first, Index last) const {
  Rows open(work_, columns_, sample, first, last);
  const Index begin = work_.first_row + first;
  const Index end = std::min(work_.first_row + last, work_.source.height);
  if (begin < end && sample < work_.used.depth && columns_.windows > 0) {
    const Index past = work_.readers(end - 1).second;
    for (Index j = work_.readers(begin).first; j < past; ++j) {
      Index bottom = -1;
      geometry_.y.read(j, true, [&](Index y, Index taps, Index /*weight*/) {
        bottom = std::max(bottom, y + (taps - 1) * geometry_.y.dilation);
      });
      if (bottom >= begin) {
        open.advance(geometry_.y.first_pixel(j), bottom);
        award(sample, j, open);
      }
    }
  }
  open.finish();
}

// One slice of a pass: what it is of, and its windows.
struct Slice {
  GradientWork work;
  Columns columns;
};

template <class Element, bool kAlone>
void run(const GradientWork& work, const Columns& windows) {
  using Gradient = MaxGradient<Element, kAlone>;
  const Gradient whole(work, windows);
  const Index slices = whole.slices();
  if (slices == 1) {
    return work.for_tasks(1, whole.task_rows(1),
                          [&](Index /*slice*/, Index sample, Index first, Index last) {
                            whole.make(sample, first, last);
                          });
  }
  const Index channels = windows.channels;
  const Index each = chunks_of(chunks_of(channels, slices), kVector) * kVector;
  std::vector<Slice> parts;
  for (Index first = 0; first < channels; first += each) {
    const GradientWork part = work.slice(first, std::min(each, channels - first));
    parts.push_back({part, part.columns()});
  }
  const auto gradient = [&](Index slice) {
    const Slice& part = parts[static_cast<std::size_t>(slice)];
    return Gradient(part.work, part.columns);
  };
  work.for_tasks(static_cast<Index>(parts.size()), gradient(0).task_rows(slices),
                 [&](Index slice, Index sample, Index first, Index last) {
                   gradient(slice).make(sample, first, last);
                 });
}

}  // namespace

void run_max_gradient(const GradientWork& work) {
  const Columns windows = work.columns();
  const bool halves =
      work.gradient.has_halves() && work.source.has_halves() && work.destination.has_halves();
  // Column by column, vectors go over whole rows.
  const bool by_column = windows.channels < kVector && work.geometry.window_pixels() > kNine;
  if (work.whole() && windows.disjoint && work.rows_are_disjoint() && !by_column) {
    halves ? run<Half, true>(work, windows) : run<float, true>(work, windows);
  } else {
    halves ? run<Half, false>(work, windows) : run<float, false>(work, windows);
  }
}

}  // namespace mpsgrad::cpu::pooling
