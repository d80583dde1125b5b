// From a checked encode to what a recorded command holds: views of its images, and the recording
// itself.
#pragma once

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"
#include "cpu/cpu_images.hpp"
#include "cpu/cpu_queue.hpp"
#include "cpu/rows.hpp"
#include "cpu/threads.hpp"

namespace mpsgrad::cpu {

inline void record(CommandBuffer& command_buffer, Command command) {
  as<CpuCommandBuffer>(command_buffer).record(std::move(command));
}

// Bytes that a kernel reads of so many channels of the images for the results inside of a clip, if
// pixels of images and destinations correspond.
inline Index bytes_read(const ImageBatch::Images& images, Index channels,
                        const ImageBatch::Images& destinations, const Region& clip) {
  const ImageDescriptor& image = images.front()->descriptor();
  const ImageDescriptor& result = destinations.front()->descriptor();
  const Index pixels = image.width * image.height * (clip.size.width * clip.size.height) /
                       (result.width * result.height);
  return pixels * clip.size.depth * channels * item_size(image.channel_format);
}

// The produced channels of the destination, and as its tail the rest of their last group of four,
// for a kernel that reads so many bytes, by default as many as it writes.
inline CpuImages view_destination(const ImageBatch::Images& images, bool batch, const Region& clip,
                                  Index channel, Index produced,
                                  std::optional<Index> read = std::nullopt) {
  CpuImages view = view_images(images, batch, clip.origin.z, clip.size.depth, channel, produced);
  const Index group_end = channel + (produced + 3) / 4 * 4;
  view.tail =
      std::min(group_end, images.front()->descriptor().feature_channels) - channel - produced;
  const Index bytes =
      clip.size.width * clip.size.height * clip.size.depth * produced * item_size(view.format);
  constexpr Index kSmallPart = 8;  // results of less than an eighth of the cache do no harm in it
  view.streamed = view.dense_pixels() && bytes >= streamed_bytes() / kSmallPart &&
                  read.value_or(bytes) + bytes >= streamed_bytes();
  return view;
}

inline CpuImages view_source(const UnaryCall& call) {
  return view_images(call.sources, call.batch, call.first_source, call.images(),
                     call.properties.source_channel_offset, call.consumed_channels);
}

inline CpuImages view_destination(const UnaryCall& call) {
  return view_destination(
      call.destinations, call.batch, call.clip, call.properties.destination_channel_offset,
      call.produced_channels,
      bytes_read(call.sources, call.consumed_channels, call.destinations, call.clip));
}

inline CpuImages view_gradient(const GradientCall& call) {
  return view_images(call.gradients, call.batch, call.first_gradient, call.images(),
                     call.properties.primary.channel_offset, call.gradient_channels);
}

inline CpuImages view_source(const GradientCall& call) {
  return view_images(call.sources, call.batch, call.first_source, call.images(),
                     call.properties.secondary.channel_offset, call.source_channels);
}

// For a kernel that reads the gradient and the source so many times. Those that follow sums over
// all images count them twice: what the sums have read had better stay in a cache.
inline CpuImages view_destination(const GradientCall& call, Index of_gradient, Index of_source) {
  const auto read = [&](const ImageBatch::Images& images, Index channels) {
    return bytes_read(images, channels, call.destinations, call.clip);
  };
  return view_destination(call.destinations, call.batch, call.clip,
                          call.properties.destination_channel_offset, call.produced_channels,
                          of_gradient * read(call.gradients, call.gradient_channels) +
                              of_source * read(call.sources, call.source_channels));
}

// One source of a kernel that works pixel by pixel: destination pixel (i, j) of the clip reads
// (offset.x + i, offset.y + j).
struct PixelSource {
  CpuImages images;
  Offset offset;
  EdgeMode edge = EdgeMode::Zero;
};

// How map_pixels() goes over its images.
struct PixelRuns {
  bool flat = false;                    // every image is one gapless run of the clip's own pixels
  bool floats = false, halves = false;  // all of them as they lie, as float32 or float16
  Index widest = 0;                     // channels
};

template <std::size_t kSources>
PixelRuns runs_of(const PixelSource (&sources)[kSources], const CpuImages& destination,
                  const Region& clip) {
  PixelRuns runs;
  runs.flat = clip.origin.x == 0 && clip.origin.y == 0 && clip.size.width == destination.width &&
              clip.size.height == destination.height && destination.packed_rows();
  runs.floats = lies_as<float>(destination);
  runs.halves = lies_as<Half>(destination);
  runs.widest = destination.channels;
  for (const PixelSource& source : sources) {
    const CpuImages& images = source.images;
    runs.flat = runs.flat && source.offset.x == 0 && source.offset.y == 0 &&
                images.width == destination.width && images.height == destination.height &&
                images.packed_rows();
    runs.floats = runs.floats && lies_as<float>(images);
    runs.halves = runs.halves && lies_as<Half>(images);
    runs.widest = std::max(runs.widest, images.channels);
  }
  runs.halves = runs.halves && runs.flat;
  return runs;
}

// Where a run lies: an image of the work, a row of the clip, and a pixel of it. Pixels of a flat
// run go on in the next rows.
struct RunPlace {
  Index sample = 0, row = 0, pixel = 0;
};

// Whether a body of map_pixels() is told where its runs lie.
template <class Body, class Element, class Out>
inline constexpr bool kTakesPlace =
    std::is_invocable_v<Body, const Element* const*, Out, Index, RunPlace>;

template <class Body, class Element, class Out>
inline constexpr bool kTakes =
    std::is_invocable_v<Body, const Element* const*, Out, Index> || kTakesPlace<Body, Element, Out>;

// Whether a body of map_pixels() streams its results itself.
template <class Body, class Element>
inline constexpr bool kTakesResults = kTakes<Body, Element, Results<Element>>;

template <class Element, std::size_t kSources, class Body>
void map_runs(const PixelSource (&sources)[kSources], const CpuImages& destination,
              const Region& clip, const PixelRuns& found, const Body& body) {
  constexpr Index kFloats = 8192;
  constexpr Index kMostFloats = 32768;
  constexpr Index kFewestTasks = 64;  // of long runs, for threads to share
  constexpr bool kStreams = kTakesResults<Body, Element>;
  const bool by_scratch = destination.streamed && !kStreams;
  const bool in_place = !by_scratch && (std::is_same_v<Element, Half> || found.floats);
  const Index converted_floats = by_scratch ? kStreamedFloats : kFloats / 4;  // in L1 twice
  const bool flat = found.flat;
  const Index widest = found.widest;
  const bool no_scratch = in_place && flat;
  const Index all_floats = clip.size.width * clip.size.height * clip.size.depth * widest;
  const Index long_run = std::clamp(all_floats / kFewestTasks, kFloats, kMostFloats);
  const Index placed_floats = no_scratch ? long_run : kFloats;
  const Index run_floats = in_place ? placed_floats : converted_floats;
  const Index row_pixels = flat ? clip.size.width * clip.size.height : clip.size.width;
  const Index rows = flat ? 1 : clip.size.height;
  const Index run_pixels = std::clamp<Index>(run_floats / widest, 1, row_pixels);
  const Index runs = chunks_of(row_pixels, run_pixels);
  const Index per_image = rows * runs;
  // Short rows together; and handing out work drains the stores past the caches.
  const Index task_floats = destination.streamed ? 4 * kFloats : kFloats;
  const Index group = std::max<Index>(1, task_floats / std::max<Index>(1, run_pixels * widest));
  const Index total = clip.size.depth * per_image;
  const auto scratch_at = [&](std::size_t slot) -> Element* {
    return no_scratch ? nullptr : scratch_of<Element>(static_cast<int>(slot), run_pixels * widest);
  };
  parallel_for(chunks_of(total, group), [&](Index chunk) {
    for (Index item = chunk * group; item < std::min(total, (chunk + 1) * group); ++item) {
      const Index sample = item / per_image;
      const Index row = item % per_image / runs;
      const Index first = item % runs * run_pixels;
      const Index pixels = std::min(run_pixels, row_pixels - first);
      const Element* inputs[kSources];
      for (std::size_t k = 0; k < kSources; ++k) {
        const PixelSource& source = sources[k];
        Element* scratch = scratch_at(k);
        inputs[k] =
            flat ? load_run(source.images, sample, 0, first, pixels, scratch)
                 : load_row_with_edges(source.images, sample, source.offset.y + row,
                                       source.offset.x + first, pixels, source.edge, scratch);
      }
      const Index y = flat ? 0 : clip.origin.y + row;
      const Index x = flat ? first : clip.origin.x + first;
      Element* scratch = scratch_at(kSources);
      const auto run_body = [&](auto out) {
        if constexpr (kTakesPlace<Body, Element, decltype(out)>) {
          body(inputs, out, pixels, RunPlace{sample, row, first});
        } else {
          body(inputs, out, pixels);
        }
      };
      if constexpr (kStreams) {
        const Results<Element> out = begin_results(destination, sample, y, x, scratch);
        run_body(out);
        finish_results(destination, sample, y, x, pixels, out);
      } else {
        Element* out = begin_store(destination, sample, y, x, scratch);
        run_body(out);
        finish_store(destination, sample, y, x, pixels, out);
      }
    }
  });
}

// Calls body(inputs, out, pixels) for runs of pixels of every image of the work, in parallel:
// inputs[k] and `out` hold `pixels` pixels as float32, or all as float16 if the body takes it;
// `out` is an array, or Results if the body takes those. A body that takes a RunPlace after them is
// told where the run lies. All images may be of any format; sources may be read outside.
template <std::size_t kSources, class Body>
void map_pixels(const PixelSource (&sources)[kSources], const CpuImages& destination,
                const Region& clip, const Body& body) {
  const PixelRuns found = runs_of(sources, destination, clip);
  if constexpr (kTakesResults<Body, Half> || kTakes<Body, Half, Half*>) {
    if (found.halves) {
      return map_runs<Half>(sources, destination, clip, found, body);
    }
  }
  map_runs<float>(sources, destination, clip, found, body);
}

}  // namespace mpsgrad::cpu
