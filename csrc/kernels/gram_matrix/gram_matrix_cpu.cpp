// Gram matrices of the CPU device: matrix products cut into blocks that fit the caches. What a
// block reads is packed into scratch of the thread, a few hundred KB whatever the image.
//
// How work is cut depends on shapes alone. A matrix is cut into square blocks of channels, of which
// only those on the diagonal and behind it are computed, the others being mirror images. An image
// of many pixels and few channels, whose matrix is one small block, is cut into segments of pixels
// instead: each has sums of its own, together an eighth of the source at most, that are added in
// order. Segments depend on an image's own size, so its matrix has the same bits in any batch;
// blocks change no bits, and are smaller where there are few images. The gradient is a product for
// each pixel: chunks of pixels by blocks of channels.
#include <algorithm>

#include "cpu/cpu_calls.hpp"
#include "cpu/simd/convert.hpp"
#include "kernels/gram_matrix/gram_matrix.hpp"
#include "kernels/gram_matrix/gram_matrix_simd.hpp"

namespace mpsgrad {
namespace {

using cpu::CpuImages;

// Scratch of a thread.
enum Scratch : int { kRowPanels, kColumnPanels, kSums, kMirrored, kConverted };
constexpr Index kBlockFloats = kGramBlock * kGramBlock;

// Fewer are not worth smaller blocks: each packs its operands again.
constexpr Index kFewestTasks = 8;

// Equal parts, but for rounding.
struct Cut {
  Index all, parts;

  Cut(Index items, Index most) : all(items), parts(cpu::chunks_of(items, most)) {}
  Index begin(Index part) const { return part * all / parts; }
  Index count(Index part) const { return begin(part + 1) - begin(part); }
};

// Channels in blocks of whole vectors.
struct Blocks {
  Index channels, size, count;

  Blocks(Index all, Index most)
      : channels(all),
        size(gram_padded(cpu::chunks_of(all, cpu::chunks_of(all, most)))),
        count(cpu::chunks_of(all, size)) {}
  Index first(Index block) const { return block * size; }
  Index length(Index block) const { return std::min(size, channels - first(block)); }
};

// Calls body(pixel, pixels, done) for evenly spaced runs of the pixels [first, first + count).
template <class Body>
void for_runs(const CpuImages& images, Index sample, Index first, Index count, const Body& body) {
  const bool packed = images.packed_rows();
  for (Index done = 0; done < count;) {
    const Index y = (first + done) / images.width;
    const Index x = (first + done) % images.width;
    const Index pixels = packed ? count : std::min(count - done, images.width - x);
    body(images.pixel(sample, y, x), pixels, done);
    done += pixels;
  }
}

// Calls body(values, step, pixels, done) for runs of some channels of these pixels, of which there
// are no more than a block has: as float32, or float16 as it lies.
template <class Body>
void for_values(const CpuImages& images, Index sample, Index first, Index count, Index channel,
                Index channels, const Body& body) {
  for_runs(images, sample, first, count, [&](const std::byte* pixel, Index pixels, Index done) {
    const std::byte* data = pixel + channel * item_size(images.format);
    if (images.is_float()) {
      body(reinterpret_cast<const float*>(data), images.pixel_stride, pixels, done);
    } else if (images.format == ChannelFormat::Float16) {
      body(reinterpret_cast<const Half*>(data), images.pixel_stride, pixels, done);
    } else {
      float* converted = cpu::thread_scratch(kConverted, kBlockFloats);
      convert_loops().load_row(data, images.format, pixels, channels, images.pixel_stride,
                               converted);
      body(static_cast<const float*>(converted), channels, pixels, done);
    }
  });
}

// Writes some channels of these pixels, `step` values apart.
void store_values(const CpuImages& images, Index sample, Index first, Index count, Index channel,
                  Index channels, const float* values, Index step) {
  const Index item = item_size(images.format);
  const bool streams = images.streamed && images.is_float();
  const Index together = step == channels && !streams ? count : 1;
  for_runs(images, sample, first, count, [&](std::byte* pixel, Index pixels, Index done) {
    std::byte* data = pixel + channel * item;
    const Index stride = images.pixel_stride;
    for (Index i = 0; i < pixels; i += together) {
      if (streams) {
        convert_loops().stream(values + (done + i) * step, data + i * stride * item,
                               channels * item);
        continue;
      }
      convert_loops().store_row(values + (done + i) * step, data + i * stride * item, images.format,
                                std::min(together, pixels - i), channels, stride);
    }
  });
}

// What follows the channels before `end`, if these are the last.
void zero_tail(const CpuImages& images, Index sample, Index first, Index count, Index end) {
  if (images.tail == 0 || end != images.channels) {
    return;
  }
  for_runs(images, sample, first, count, [&](std::byte* pixel, Index pixels, Index) {
    convert_loops().zero_row(pixel + end * item_size(images.format), images.format, pixels,
                             images.tail, images.pixel_stride);
  });
}

// ---- forward

struct Block {
  Index first, length;
};

// Two blocks of channels whose products make one block of the matrix, or two.
struct Pair {
  Block rows, columns;
  bool on_diagonal() const { return rows.first == columns.first; }
};

class ForwardPlan {
 public:
  ForwardPlan(const CpuImages& source)
      : pixels_(source.width * source.height),
        channels_(source.channels),
        segments_(segments_for(pixels_, channels_)),
        blocks_(blocks_for(source.count() * segments_, channels_)) {}

  Index pixels() const { return pixels_; }
  Index segments() const { return segments_; }
  Index pairs() const { return blocks_.count * (blocks_.count + 1) / 2; }
  Index pair_floats() const { return blocks_.size * blocks_.size; }

  // Those off the diagonal, which are twice the work, come first.
  Pair pair(Index index) const {
    Index row = 0;
    for (; row + 1 < blocks_.count && index >= blocks_.count - 1 - row; ++row) {
      index -= blocks_.count - 1 - row;
    }
    const bool on_diagonal = row + 1 == blocks_.count;
    return on_diagonal ? Pair{block(index), block(index)}
                       : Pair{block(row), block(row + 1 + index)};
  }

 private:
  static Index segments_for(Index pixels, Index channels) {
    constexpr Index kMost = 32;
    constexpr Index kFewestPixels = 512;
    constexpr Index kShare = 8;
    Index segments = 1;
    while (2 * segments <= kMost && 2 * segments * kFewestPixels <= pixels &&
           2 * segments * channels * kShare <= pixels) {
      segments *= 2;
    }
    return segments;
  }

  static Blocks blocks_for(Index images, Index channels) {
    const auto tasks = [&](const Blocks& blocks) {
      return images * blocks.count * (blocks.count + 1) / 2;
    };
    const Blocks large(channels, kGramBlock);
    const Blocks middle(channels, kGramBlock / 2);
    if (tasks(large) >= kFewestTasks) {
      return large;
    }
    return tasks(middle) > 1 ? middle : Blocks(channels, kGramBlock / 4);
  }

  Block block(Index index) const { return {blocks_.first(index), blocks_.length(index)}; }

  Index pixels_, channels_, segments_;
  Blocks blocks_;
};

void pack(const CpuImages& source, Index sample, Index first, Index count, const Block& block,
          float* panels) {
  for_values(source, sample, first, count, block.first, block.length,
             [&](const auto* values, Index step, Index pixels, Index done) {
               gram_loops().packing.of(values).pack(values, step, pixels, block.length, done,
                                                    panels);
             });
}

GramAhead ahead_of(const CpuImages& source, Index sample, Index pixel, const Block& block) {
  const Index item = item_size(source.format);
  return {source.pixel(sample, pixel / source.width, pixel % source.width) + block.first * item,
          source.pixel_stride * item, block.length * item};
}

// The sums of a pair over the pixels of a segment: so many in registers at a time, those added up.
void sum_products(const CpuImages& source, Index sample, Index first, Index count, const Pair& pair,
                  float* sums) {
  const GramLoops& loops = gram_loops();
  const bool same = pair.on_diagonal();
  float* columns = cpu::thread_scratch(kColumnPanels, kGramPanels);
  float* rows = same ? columns : cpu::thread_scratch(kRowPanels, kGramPanels);
  const Cut cut(count, loops.depth);
  for (Index part = 0; part < cut.parts; ++part) {
    const Index pixel = first + cut.begin(part);
    const Index pixels = cut.count(part);
    pack(source, sample, pixel, pixels, pair.columns, columns);
    if (!same) {
      pack(source, sample, pixel, pixels, pair.rows, rows);
    }
    GramAhead ahead[2];
    if (part + 1 < cut.parts) {
      ahead[0] = ahead_of(source, sample, pixel + pixels, pair.columns);
      if (!same) {
        ahead[1] = ahead_of(source, sample, pixel + pixels, pair.rows);
      }
    }
    loops.add_products(rows, pair.rows.length, columns, pair.columns.length, pixels, same, part > 0,
                       sums, ahead);
  }
}

void store_products(const CpuImages& destination, Index sample, const Pair& pair, float alpha,
                    float* sums) {
  const GramLoops& loops = gram_loops();
  const auto& [rows, columns] = pair;
  const Index step = gram_padded(columns.length);
  loops.scale(sums, rows.length, step, alpha);
  if (pair.on_diagonal()) {
    loops.mirror(sums, step, rows.length);
  } else {
    const Index mirrored_step = gram_padded(rows.length);
    float* mirrored = cpu::thread_scratch(kMirrored, kBlockFloats);
    loops.transpose(sums, step, rows.length, columns.length, mirrored, mirrored_step);
    store_values(destination, sample, columns.first, columns.length, rows.first, rows.length,
                 mirrored, mirrored_step);
  }
  store_values(destination, sample, rows.first, rows.length, columns.first, columns.length, sums,
               step);
  zero_tail(destination, sample, rows.first, rows.length, columns.first + columns.length);
}

void run_forward(const CpuImages& source, const CpuImages& destination, float alpha) {
  const ForwardPlan plan(source);
  const Index pairs = plan.pairs();
  const Index segments = plan.segments();
  if (segments == 1) {
    cpu::parallel_for(source.count() * pairs, [&](Index task) {
      const Pair pair = plan.pair(task % pairs);
      float* sums = cpu::thread_scratch(kSums, kBlockFloats);
      sum_products(source, task / pairs, 0, plan.pixels(), pair, sums);
      store_products(destination, task / pairs, pair, alpha, sums);
    });
    return;
  }
  constexpr Index kMostFloats = Index{1} << 20;  // of all segments' sums at a time
  const Index pair_floats = segments * plan.pair_floats();
  const Index image_floats = pairs * pair_floats;
  const Index most = std::clamp<Index>(kMostFloats / image_floats, 1, source.count());
  const auto block = cpu::MemoryPool::instance().acquire(
      static_cast<std::size_t>(most * image_floats) * sizeof(float));
  auto* const partial = reinterpret_cast<float*>(block->data());
  for (Index first = 0; first < source.count(); first += most) {
    const Index images = std::min(most, source.count() - first);
    cpu::parallel_for(images * pairs * segments, [&](Index task) {
      const Index segment = task % segments;
      const Index begin = segment * plan.pixels() / segments;
      const Index end = (segment + 1) * plan.pixels() / segments;
      sum_products(source, first + task / segments / pairs, begin, end - begin,
                   plan.pair(task / segments % pairs), partial + task * plan.pair_floats());
    });
    cpu::parallel_for(images * pairs, [&](Index task) {
      float* sums = partial + task * pair_floats;
      const Pair pair = plan.pair(task % pairs);
      for (Index segment = 1; segment < segments; ++segment) {
        gram_loops().add(sums, sums + segment * plan.pair_floats(),
                         pair.rows.length * gram_padded(pair.columns.length));
      }
      store_products(destination, first + task / pairs, pair, alpha, sums);
    });
  }
}

class CpuGramMatrix final : public UnaryEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    // Written in short rows, of which each line would be read first from wherever it lies.
    constexpr Index kManyBytes = Index{8} << 20;
    CpuImages destination = cpu::view_destination(call);
    const Index bytes = destination.count() * destination.width * destination.height *
                        destination.channels * item_size(destination.format);
    destination.streamed = destination.dense_pixels() && bytes >= kManyBytes;
    cpu::record(
        command_buffer,
        [source = cpu::view_source(call), destination = std::move(destination),
         alpha = gram_matrix_alpha(call.properties)] { run_forward(source, destination, alpha); });
  }
};

// ---- gradient

// Products of all pixels of a chunk with a block of the symmetric matrix.
class GradientChunk {
 public:
  GradientChunk(const CpuImages& gradient, const CpuImages& source, const CpuImages& destination,
                Index sample, float alpha, const Block& block)
      : gradient_(gradient),
        source_(source),
        destination_(destination),
        sample_(sample),
        alpha_(alpha),
        block_(block),
        whole_(destination.is_float() && block.length % kGramPadding == 0) {}

  void run(Index first, Index count) const {
    const Cut depths(source_.channels, kGramDepth);
    for (Index part = 0; part < depths.parts; ++part) {
      const Block summands{depths.begin(part), depths.count(part)};
      const float* panels = fold(summands);
      // Sums that a later part adds to are kept, unless their own place takes them.
      const bool last = part + 1 == depths.parts;
      const Index kept = depths.parts == 1 ? kPixels : count;
      for (Index done = 0; done < count;) {
        const Index pixels = run_length(first + done, count - done);
        const Index place = depths.parts == 1 ? 0 : done;
        multiply(first + done, pixels, summands, panels, part > 0, last, place, kept);
        done += pixels;
      }
    }
  }

  static constexpr Index kMostPixels = 512;  // of a chunk

 private:
  static constexpr Index kPixels = 32;  // of them, what a tile reads stays in a first-level cache

  // As many pixels as lie evenly spaced in both images.
  Index run_length(Index first, Index count) const {
    const bool packed = source_.packed_rows() && destination_.packed_rows();
    const Index row = packed ? count : source_.width - first % source_.width;
    return std::min({kPixels, count, row});
  }

  const float* fold(const Block& summands) const {
    const GramLoops& loops = gram_loops();
    const auto copy = [&](const Block& pixels, const Block& channels, float* out) {
      for_values(gradient_, sample_, pixels.first, pixels.length, channels.first, channels.length,
                 [&](const auto* values, Index step, Index some, Index done) {
                   loops.packing.of(values).copy(values, step, some, channels.length,
                                                 out + done * gram_padded(channels.length));
                 });
    };
    float* by_channel = cpu::thread_scratch(kRowPanels, kBlockFloats);
    float* by_summand = cpu::thread_scratch(kMirrored, kBlockFloats);
    float* panels = cpu::thread_scratch(kColumnPanels, kGramPanels);
    copy(block_, summands, by_channel);
    copy(summands, block_, by_summand);
    const Index step = gram_padded(summands.length);
    std::fill(by_channel + block_.length * step, by_channel + gram_padded(block_.length) * step,
              0.0F);
    loops.fold(by_channel, by_summand, summands.length, block_.length, alpha_, panels);
    return panels;
  }

  void multiply(Index first, Index pixels, const Block& summands, const float* panels, bool adds,
                bool last, Index place, Index kept) const {
    const GramLoops& loops = gram_loops();
    const Index sum_step = gram_padded(block_.length);
    float* out = nullptr;
    Index out_step = sum_step;
    if (whole_) {
      std::byte* pixel = destination_.pixel(sample_, first / source_.width, first % source_.width);
      out = reinterpret_cast<float*>(pixel) + block_.first;
      out_step = destination_.pixel_stride;
    } else {
      out = cpu::thread_scratch(kSums, kept * sum_step) + place * sum_step;
    }
    for_values(source_, sample_, first, pixels, summands.first, summands.length,
               [&](const auto* values, Index step, Index some, Index done) {
                 const Rows x = as_floats(values, step, some, summands.length);
                 loops.multiply(x.first, x.step, some, summands.length, panels, block_.length, adds,
                                out + done * out_step, out_step);
               });
    if (last && !whole_) {
      store_values(destination_, sample_, first, pixels, block_.first, block_.length, out,
                   out_step);
    }
    if (last) {
      zero_tail(destination_, sample_, first, pixels, block_.first + block_.length);
    }
  }

  struct Rows {
    const float* first;
    Index step;
  };
  static Rows as_floats(const float* values, Index step, Index /*pixels*/, Index /*channels*/) {
    return {values, step};
  }
  static Rows as_floats(const Half* values, Index step, Index pixels, Index channels) {
    float* copy = cpu::thread_scratch(kConverted, kBlockFloats);
    gram_loops().packing.of(values).copy(values, step, pixels, channels, copy);
    return {copy, gram_padded(channels)};
  }

  const CpuImages& gradient_;
  const CpuImages& source_;
  const CpuImages& destination_;
  Index sample_;
  float alpha_;
  Block block_;
  bool whole_;  // results go to their own place, in whole vectors
};

void run_gradient(const CpuImages& gradient, const CpuImages& source, const CpuImages& destination,
                  float alpha) {
  struct Sizes {
    Index pixels, channels;
  };
  // Each chunk makes its block of the matrix: the fewer pixels, the more often.
  constexpr Index kMost = GradientChunk::kMostPixels;
  constexpr Sizes kSizes[] = {{kMost, kGramBlock},
                              {kMost, kGramBlock / 2},
                              {kMost / 2, kGramBlock / 2},
                              {kMost / 4, kGramBlock / 2},
                              {kMost / 8, kGramBlock / 2}};
  const Index pixels = source.width * source.height;
  const auto is_enough = [&](const Sizes& sizes) {
    return source.count() * cpu::chunks_of(pixels, sizes.pixels) *
               cpu::chunks_of(source.channels, sizes.channels) >=
           kFewestTasks;
  };
  const Sizes* sizes = std::find_if(std::begin(kSizes), std::end(kSizes) - 1, is_enough);
  const Cut chunks(pixels, sizes->pixels);
  const Blocks blocks(source.channels, sizes->channels);
  const Index per_image = chunks.parts * blocks.count;
  cpu::parallel_for(source.count() * per_image, [&](Index task) {
    const Index chunk = task % per_image / blocks.count;
    const Index block = task % blocks.count;
    GradientChunk(gradient, source, destination, task / per_image, alpha,
                  {blocks.first(block), blocks.length(block)})
        .run(chunks.begin(chunk), chunks.count(chunk));
  });
}

class CpuGramMatrixGradient final : public GradientEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    cpu::record(command_buffer,
                [gradient = cpu::view_gradient(call), source = cpu::view_source(call),
                 destination = cpu::view_destination(call, 1, 1),
                 alpha = gram_matrix_alpha(call.properties)] {
                  run_gradient(gradient, source, destination, alpha);
                });
  }
};

class CpuGramMatrixBackend final : public GramMatrixBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device&) const override {
    return std::make_unique<CpuGramMatrix>();
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device&) const override {
    return std::make_unique<CpuGramMatrixGradient>();
  }
};

}  // namespace

const GramMatrixBackend& cpu_gram_matrix() {
  static const CpuGramMatrixBackend backend;
  return backend;
}

}  // namespace mpsgrad
