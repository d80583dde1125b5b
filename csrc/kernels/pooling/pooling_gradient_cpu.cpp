// Gradients of pooling on the CPU device: the encoder, and averages and L2 norms, of which a row
// gathers from the windows that read it, so that it has one writer and a fixed order of additions.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/cpu_calls.hpp"
#include "kernels/pooling/pooling.hpp"
#include "kernels/pooling/pooling_gradient_rows.hpp"
#include "kernels/pooling/pooling_simd.hpp"
#include "kernels/pooling/pooling_windows.hpp"

namespace mpsgrad::cpu::pooling {
namespace {

// The shares of rows of windows that pixels still to come may read: row j is kept in place
// j % places until another needs it.
class Ring {
 public:
  Ring(Index place_count, Index floats_each)
      : places(place_count),
        floats_(floats_each),
        memory_(thread_scratch(kRing, place_count * floats_each)),
        entries_(static_cast<std::size_t>(place_count)) {}

  template <class Find>
  const PoolingShares& at(Index j, const Find& find) {
    const Index place = j % places;
    Entry& entry = entries_[static_cast<std::size_t>(place)];
    if (entry.row != j) {
      entry.shares = find(memory_ + place * floats_);
      entry.row = j;
    }
    return entry.shares;
  }

  const Index places;

 private:
  struct Entry {
    Index row = -1;
    PoolingShares shares{};
  };
  Index floats_;
  float* memory_;
  std::vector<Entry> entries_;
};

class SharedGradient {
 public:
  SharedGradient(const GradientWork& work, const Columns& columns)
      : work_(work), geometry_(work.geometry), columns_(columns) {}

  void run() const;

 private:
  // What row j of the windows gives to each pixel that it reads.
  PoolingShares find_shares(Index sample, Index j, float* memory) const;
  template <class Element>
  void sum_squares(Index sample, Index j, float* squares) const;
  // Row y of G.
  void make_row(Index sample, Index y, Ring& ring, float* result) const;

  const GradientWork& work_;
  const Geometry& geometry_;
  const Columns& columns_;
};

template <class Element>
void SharedGradient::sum_squares(Index sample, Index j, float* squares) const {
  for_source_rows<Element>(
      geometry_, work_.source, sample, j, rows_together<Element>(geometry_, work_.source),
      [&](const PoolingSource<Element>* rows, Index count, bool begins, bool ends) {
        pooling_loops().of(rows->x).squares(columns_.row(begins, ends, false), rows, count,
                                            squares);
      });
}

PoolingShares SharedGradient::find_shares(Index sample, Index j, float* memory) const {
  const PoolingLoops& loops = pooling_loops();
  const Index count = columns_.floats();
  if (geometry_.kind == PoolingKind::Average) {
    return {work_.load_gradient(columns_, sample, j, memory), 1.0F,
            geometry_.divisor(geometry_.y, j, geometry_.pad.y)};
  }
  float* squares = thread_scratch(kWindowRow, count);
  work_.source.has_halves() ? sum_squares<Half>(sample, j, squares)
                            : sum_squares<float>(sample, j, squares);
  loops.per_root(work_.load_gradient(columns_, sample, j, thread_scratch(kGradientRow, count)),
                 squares, count, memory);
  return {memory, 1.0F, 1.0F};
}

void SharedGradient::make_row(Index sample, Index y, Ring& ring, float* result) const {
  const PoolingLoops& loops = pooling_loops();
  const Index channels = columns_.channels;
  const auto clear = [&](Index from, Index to) {
    std::fill(result + from * channels, result + to * channels, 0.0F);
  };
  const PoolingRow row = columns_.row(true, true, false);
  std::array<PoolingShares, kMostPoolingRows> shares{};
  Index count = 0;
  bool assign = columns_.orderly;
  const auto give = [&] {
    if (assign) {
      for (const auto& [begin, end] : columns_.unread) {
        clear(begin, end);
      }
    }
    loops.spread(row, shares.data(), count, assign, result);
    assign = false;
    count = 0;
  };

  const auto [from, to] = work_.readers(y);
  if (!assign || from >= to) {
    clear(0, work_.source.width);
    assign = false;
  }
  Index first = from;  // of the rows of windows gathered so far: the ring holds no more at a time
  for (Index j = from; j < to; ++j) {
    if (count == kMostPoolingRows || j - first == ring.places) {
      if (count > 0) {
        give();
      }
      first = j;
    }
    if (const Index weight = geometry_.y.weight(j, y); weight > 0) {
      PoolingShares& next = shares[static_cast<std::size_t>(count++)];
      next = ring.at(j, [&](float* memory) { return find_shares(sample, j, memory); });
      next.weight = static_cast<float>(weight);
    }
  }
  if (count > 0) {
    give();
  }
  if (assign) {  // windows with gaps may pass over a row
    clear(0, work_.source.width);
  }
  if (geometry_.kind == PoolingKind::L2Norm) {
    loops.multiply(result,
                   load_run(work_.source, sample, y, 0, work_.source.width,
                            thread_scratch(kSourceRows, work_.row_floats())),
                   work_.row_floats());
  }
}

void SharedGradient::run() const {
  // As for a maximum, but of an average nothing is evaluated.
  const Index overlap = std::max<Index>(0, geometry_.y.extent() - geometry_.y.stride);
  const Index tall =
      geometry_.kind == PoolingKind::Average ? 1 : std::min(4 * overlap, work_.clip.size.height);
  const Index wanted = std::max({Index{1}, kTaskFloats / work_.row_floats(), tall});
  const Index places = std::clamp<Index>(kRingFloats / std::max<Index>(1, columns_.floats()), 1,
                                         ceil_div(geometry_.y.extent(), geometry_.y.stride));
  work_.for_tasks(1, wanted, [&](Index /*slice*/, Index sample, Index first, Index last) {
    Ring ring(places, columns_.floats());
    for (Index r = first; r < last; ++r) {
      const Index y = work_.first_row + r;
      float* row = work_.begin_row(sample, r, thread_scratch(kResultRow, work_.row_floats()));
      if (y < work_.source.height && sample < work_.used.depth && columns_.windows > 0) {
        make_row(sample, y, ring, row);
      } else {
        std::fill_n(row, work_.row_floats(), 0.0F);
      }
      work_.finish_row(sample, r, row);
    }
  });
}

void run_gradient(const GradientWork& work) {
  if (work.geometry.is_max()) {
    return run_max_gradient(work);
  }
  const Columns columns = work.columns();
  SharedGradient(work, columns).run();
}

class CpuPoolingGradient final : public GradientEncoder {
 public:
  CpuPoolingGradient(PoolingKind kind, const Window& window) : kind_(kind), window_(window) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const BinaryProperties& p = call.properties;
    CpuImages source = view_source(call);
    const Geometry geometry(kind_, window_, p.secondary.offset, p.secondary.edge_mode,
                            pooling_settings(p).zero_pad, source.width, source.height);
    const bool shifted = !call.creates_destination || p.clip_rect != Region{};
    const auto first_read = [&](const Axis& axis) {
      return shifted ? std::max<Index>(0, axis.start) : Index{0};
    };
    record(command_buffer,
           [work = GradientWork{geometry, view_gradient(call), std::move(source),
                                view_destination(call, 1, kind_ == PoolingKind::Average ? 0 : 1),
                                p.primary.offset, pooling_settings(p).source_size, call.clip,
                                first_read(geometry.y), first_read(geometry.x)}] {
             run_gradient(work);
           });
  }

 private:
  PoolingKind kind_;
  Window window_;
};

}  // namespace

std::unique_ptr<GradientEncoder> make_gradient(PoolingKind kind, const Window& window) {
  return std::make_unique<CpuPoolingGradient>(kind, window);
}

}  // namespace mpsgrad::cpu::pooling
