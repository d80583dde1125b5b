// Forward pooling of the CPU device: a row of results gathers from the source rows that its windows
// read, all pixels of a window at once or, where neighbours share many, column by column.
#include "cpu/cpu_calls.hpp"
#include "kernels/pooling/pooling.hpp"
#include "kernels/pooling/pooling_simd.hpp"
#include "kernels/pooling/pooling_windows.hpp"

namespace mpsgrad {
namespace {

using cpu::CpuImages;
using namespace cpu::pooling;

class CpuPooling final : public UnaryEncoder {
 public:
  CpuPooling(PoolingKind kind, const Window& window) : kind_(kind), window_(window) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const CpuImages source = cpu::view_source(call);
    const Geometry geometry(kind_, window_, call.properties.offset, call.properties.edge_mode,
                            pooling_settings(call.properties).zero_pad, source.width,
                            source.height);
    cpu::record(command_buffer,
                [geometry, source, destination = cpu::view_destination(call), clip = call.clip] {
                  source.has_halves() ? run<Half>(geometry, source, destination, clip)
                                      : run<float>(geometry, source, destination, clip);
                });
  }

 private:
  template <class Element>
  static void run(const Geometry& geometry, const CpuImages& source, const CpuImages& destination,
                  const Region& clip) {
    const Index rows = clip.size.height;
    const Columns columns(geometry, 0, clip.size.width, source.channels);
    const Index row_reads =
        std::min(geometry.y.kernel, geometry.y.length) * source.width * source.channels;
    const Index group = std::max<Index>(1, kTaskFloats / row_reads);
    const Index groups = cpu::chunks_of(rows, group);

    const bool by_column = shares_columns(geometry, destination.width);
    // Whether a loop writes the results of a window once, and nobody reads them after it.
    const bool at_once =
        !columns.repeats && geometry.kind != PoolingKind::L2Norm &&
        (by_column || geometry.y.kernel <= rows_together<Element>(geometry, source));
    const auto pool_row = by_column ? &pool_by_column<Element> : &pool_at_once<Element>;

    cpu::parallel_for(clip.size.depth * groups, [&](Index task) {
      const Index sample = task / groups;
      const Index first = task % groups * group;
      for (Index j = first; j < std::min(rows, first + group); ++j) {
        const Index y = clip.origin.y + j;
        const Index x = clip.origin.x;
        if (at_once && cpu::streams_lines<float>(destination, sample, y, x)) {
          auto* pooled = reinterpret_cast<float*>(destination.pixel(sample, y, x));
          pool_row(geometry, columns, source, sample, j, {pooled, true});
          continue;
        }
        float* pooled = cpu::begin_store(destination, sample, y, x,
                                         cpu::thread_scratch(kResultRow, columns.floats()));
        pool_row(geometry, columns, source, sample, j, {pooled, false});
        cpu::finish_store(destination, sample, y, x, clip.size.width, pooled);
      }
    });
  }

  // Whether it takes less to pool every column of a row of windows by itself and then the columns
  // of each window. What that writes and reads in between counts twice. `windows`: of a whole row,
  // for a part of the image that a clip rectangle cuts out is to have the same bits.
  static bool shares_columns(const Geometry& geometry, Index windows) {
    const Index width = std::min(geometry.x.kernel, geometry.x.length);
    const Index height = std::min(geometry.y.kernel, geometry.y.length);
    return geometry.kind != PoolingKind::L2Norm &&
           windows * width * height > 2 * (geometry.x.length * height + windows * width);
  }

  template <class Element>
  static void pool_at_once(const Geometry& geometry, const Columns& columns,
                           const CpuImages& source, Index sample, Index j, Results<float> results) {
    for_source_rows<Element>(
        geometry, source, sample, j, rows_together<Element>(geometry, source),
        [&](const PoolingSource<Element>* rows, Index count, bool begins, bool ends) {
          PoolingRow row = columns.row(begins, ends, geometry.meets_padding(geometry.y, j));
          row.streamed = results.streamed;
          pool(geometry, row, rows, count, geometry.divisor(geometry.y, j, geometry.pad.y),
               results.at);
        });
    if (geometry.kind == PoolingKind::L2Norm) {
      pooling_loops().root(results.at, columns.floats());
    }
  }

  template <class Element>
  static void pool_by_column(const Geometry& geometry, const Columns& columns,
                             const CpuImages& source, Index sample, Index j,
                             Results<float> results) {
    const PoolingRun pixels{0, source.width, 0, 1, 0, 1.0F, 1.0F, true, false};
    float* const pooled = cpu::thread_scratch(kWindowRow, source.width * source.channels);
    for_source_rows<Element>(
        geometry, source, sample, j, most_rows<Element>(source),
        [&](const PoolingSource<Element>* rows, Index count, bool begins, bool /*ends*/) {
          const PoolingRow row{&pixels, 1, 1, 1, source.channels, begins, false, false};
          pool(geometry, row, rows, count, 1.0F, pooled);
        });
    PoolingRow row = columns.row(true, true, geometry.meets_padding(geometry.y, j));
    row.streamed = results.streamed;
    const PoolingSource<float> of_columns{pooled, 0, 1.0F};
    pool(geometry, row, &of_columns, 1, geometry.divisor(geometry.y, j, geometry.pad.y),
         results.at);
  }

  template <class Element>
  static void pool(const Geometry& geometry, const PoolingRow& row,
                   const PoolingSource<Element>* rows, Index count, float divisor, float* pooled) {
    const auto& loops = pooling_loops().of(rows->x);
    if (geometry.is_max()) {
      loops.maximum(row, rows, count, pooled);
    } else if (geometry.kind == PoolingKind::Average) {
      loops.average(row, rows, count, divisor, pooled);
    } else {
      loops.squares(row, rows, count, pooled);
    }
  }

  PoolingKind kind_;
  Window window_;
};

class CpuPoolingBackend final : public PoolingBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device&, PoolingKind kind,
                                             const Window& window) const override {
    return std::make_unique<CpuPooling>(kind, window);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device&, PoolingKind kind,
                                                 const Window& window) const override {
    return cpu::pooling::make_gradient(kind, window);
  }
};

}  // namespace

const PoolingBackend& cpu_pooling() {
  static const CpuPoolingBackend backend;
  return backend;
}

}  // namespace mpsgrad
