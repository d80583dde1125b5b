// Dropout on the CPU device. A mask has a bit an element, a 32nd of the float32 image that it
// belongs to. An ordinary mask is drawn and applied piece by piece, in one pass over the images;
// one that shares values is smaller than the images, and drawn before it is applied.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/channel_arrays.hpp"
#include "cpu/cpu_calls.hpp"
#include "cpu/memory.hpp"
#include "kernels/dropout/dropout.hpp"
#include "kernels/dropout/dropout_simd.hpp"

namespace mpsgrad {
namespace {

constexpr Index kWordBits = 64;
constexpr int kScratch = 2;  // of a thread, beside what map_pixels uses for one source

Index words_of(Index bits) { return cpu::chunks_of(bits, kWordBits); }

// Every image's bits begin with a word of their own; loops may read half a word after the last.
struct Mask {
  MaskShape shape;
  std::shared_ptr<cpu::Block> block;  // null: nobody keeps the bits

  Mask() = default;
  explicit Mask(const MaskShape& shape) : shape(shape) {}

  // Whether every element has a value of its own.
  bool is_ordinary(const Region& clip, Index channels) const {
    return shape.of_image() == clip.size.width * clip.size.height * channels;
  }
  Index words_of_image() const { return words_of(shape.of_image()); }
  std::size_t bytes() const {
    return static_cast<std::size_t>(shape.images * words_of_image() + 1) * sizeof(std::uint64_t);
  }
  void allocate() { block = cpu::MemoryPool::instance().acquire(bytes()); }
  std::uint64_t* image(Index n) const {
    return block ? reinterpret_cast<std::uint64_t*>(block->data()) + n * words_of_image() : nullptr;
  }
};

class MaskPayload final : public StatePayload {
 public:
  void end() override { mask = {}; }
  Mask mask;  // another for each forward encode, so that work encoded before keeps what it had
};

MaskPayload& payload_of(const State& state) {
  return as<MaskPayload>(*static_cast<const ForwardState&>(state).payload);
}

bool bit_at(const std::uint64_t* words, Index at) {
  return ((words[at / kWordBits] >> static_cast<std::uint64_t>(at % kWordBits)) & 1U) != 0;
}

// Writes bits one after the other; `words` are zeros before.
class BitWriter {
 public:
  explicit BitWriter(std::uint64_t* words) : words_(words) {}

  void skip(Index count) { at_ += count; }
  void repeat(bool bit, Index count) {
    if (!bit) {
      return skip(count);
    }
    while (count > 0) {
      const Index some = std::min(count, kWordBits);
      put(~std::uint64_t{0}, some);
      count -= some;
    }
  }
  void copy(const std::uint64_t* from, Index first, Index count) {
    while (count > 0) {
      const Index some = std::min(count, kWordBits - first % kWordBits);
      put(from[first / kWordBits] >> static_cast<std::uint64_t>(first % kWordBits), some);
      first += some;
      count -= some;
    }
  }

 private:
  // The lowest bits, at least one.
  void put(std::uint64_t bits, Index count) {
    bits &= ~std::uint64_t{0} >> static_cast<std::uint64_t>(kWordBits - count);
    const Index used = at_ % kWordBits;
    words_[at_ / kWordBits] |= bits << static_cast<std::uint64_t>(used);
    if (used + count > kWordBits) {
      words_[at_ / kWordBits + 1] |= bits >> static_cast<std::uint64_t>(kWordBits - used);
    }
    at_ += count;
  }

  std::uint64_t* words_;
  Index at_ = 0;
};

// A mask laid over a clip: pixel (x, y) of the clip takes the value at offset + (x, y), 0 outside.
struct LaidMask {
  Mask mask;
  MaskStride stride;
  Offset offset;
  Index clip_width = 0;
  Index channels = 0;

  struct Bits {
    const std::uint64_t* words;
    Index first;
  };

  // Whether all pixels have the values of the mask's only one.
  bool is_pixel() const {
    return stride.width == 0 && stride.height == 0 && mask.shape.channels == channels;
  }

  // A bit for each element of a run.
  Bits find(const cpu::RunPlace& place, bool flat, Index pixels) const {
    const std::uint64_t* words = mask.image(place.sample);
    const Index rows = flat ? cpu::chunks_of(place.pixel % clip_width + pixels, clip_width) : 1;
    const Index row = place.row + place.pixel / clip_width;
    const Index pixel = place.pixel % clip_width;
    if (has_bits_in_order(row, rows, pixel, pixels)) {
      const Index y = stride.height == 0 ? 0 : row + offset.y;
      return {words, (y * mask.shape.width + pixel + offset.x) * channels};
    }
    const Index bits = pixels * channels;
    auto* out =
        reinterpret_cast<std::uint64_t*>(cpu::thread_scratch(kScratch, 2 * (words_of(bits) + 1)));
    std::memset(out, 0, static_cast<std::size_t>(words_of(bits) + 1) * sizeof *out);
    BitWriter writer(out);
    Index left = pixels;
    for (Index r = 0, x = pixel; r < rows; ++r, x = 0) {
      const Index some = std::min(left, clip_width - x);
      write_row(writer, words, row + r + offset.y, x + offset.x, some);
      left -= some;
    }
    return {out, 0};
  }

 private:
  bool has_bits_in_order(Index row, Index rows, Index pixel, Index pixels) const {
    if (mask.shape.channels != channels || stride.width == 0) {
      return false;
    }
    if (rows > 1) {
      return stride.height == 1 && offset.x == 0 && mask.shape.width == clip_width &&
             row + offset.y >= 0 && row + rows + offset.y <= mask.shape.height;
    }
    const bool in_rows =
        stride.height == 0 || (row + offset.y >= 0 && row + offset.y < mask.shape.height);
    return in_rows && pixel + offset.x >= 0 && pixel + offset.x + pixels <= mask.shape.width;
  }

  // `count` pixels from (x, y) of the mask on.
  void write_row(BitWriter& writer, const std::uint64_t* words, Index y, Index x,
                 Index count) const {
    const MaskShape& shape = mask.shape;
    const bool own_channels = shape.channels == channels;
    if (stride.height == 0) {
      y = 0;
    } else if (y < 0 || y >= shape.height) {
      return writer.skip(count * channels);
    }
    const Index row = y * shape.width * shape.channels;
    if (stride.width == 0) {
      if (!own_channels) {
        return writer.repeat(bit_at(words, row), count * channels);
      }
      for (Index i = 0; i < count; ++i) {
        writer.copy(words, row, channels);
      }
      return;
    }
    const Index before = std::clamp<Index>(-x, 0, count);
    const Index inside = std::clamp<Index>(shape.width - x, before, count) - before;
    writer.skip(before * channels);
    const Index first = row + (x + before) * shape.channels;
    if (own_channels) {
      writer.copy(words, first, inside * channels);
    } else {
      for (Index i = 0; i < inside; ++i) {
        writer.repeat(bit_at(words, first + i), channels);
      }
    }
    writer.skip((count - before - inside) * channels);
  }
};

// A mask of one pixel, laid out for each run as often as fills vectors.
void apply_pixel(const cpu::PixelSource& source, const cpu::CpuImages& destination,
                 const Region& clip, const Mask& mask, float keep) {
  const Index channels = destination.channels;
  const Index tile = cpu::tile_of(channels);
  cpu::map_pixels({source}, destination, clip,
                  [&]<class Element>(const Element* const* in, Results<Element> out, Index pixels,
                                     const cpu::RunPlace& place) {
                    auto* const kept =
                        reinterpret_cast<std::int32_t*>(cpu::thread_scratch(kScratch, tile));
                    dropout_loops().spread(mask.image(place.sample), channels, kept);
                    cpu::repeat_pixel(kept, channels, tile);
                    dropout_loops().elements.of(in[0]).apply_tiles(in[0], out, kept,
                                                                   pixels * channels, tile, keep);
                  });
}

void apply_mask(const cpu::PixelSource& source, const cpu::CpuImages& destination,
                const Region& clip, const LaidMask& laid, float keep) {
  if (laid.is_pixel()) {
    return apply_pixel(source, destination, clip, laid.mask, keep);
  }
  const bool flat = cpu::runs_of({source}, destination, clip).flat;
  cpu::map_pixels({source}, destination, clip,
                  [&]<class Element>(const Element* const* in, Results<Element> out, Index pixels,
                                     const cpu::RunPlace& place) {
                    const LaidMask::Bits bits = laid.find(place, flat, pixels);
                    dropout_loops().elements.of(in[0]).apply(in[0], out, bits.words, bits.first,
                                                             pixels * laid.channels, keep);
                  });
}

// Of the draws below 2^32, those are kept that are less than keep * 2^32; as signed numbers.
std::int32_t limit_of(float keep) {
  const double all = std::ldexp(1.0, 32);
  const double kept = std::clamp(std::round(static_cast<double>(keep) * all), 1.0, all - 1.0);
  return static_cast<std::int32_t>(static_cast<std::int64_t>(kept) - (std::int64_t{1} << 31));
}

struct ForwardWork {
  DropoutSettings settings;
  std::uint32_t encode;
  Mask mask;
  cpu::PixelSource source;
  cpu::CpuImages destination;
  Region clip;

  void run() const {
    const Index channels = destination.channels;
    if (mask.is_ordinary(clip, channels)) {
      const float keep = settings.keep_probability;
      return cpu::map_pixels({source}, destination, clip,
                             [&]<class Element>(const Element* const* in, Results<Element> out,
                                                Index pixels, const cpu::RunPlace& place) {
                               const Index first =
                                   (place.row * clip.size.width + place.pixel) * channels;
                               dropout_loops().elements.of(in[0]).draw_and_apply(
                                   stream(place.sample), in[0], out, mask.image(place.sample),
                                   first, pixels * channels, keep);
                             });
    }
    draw();
    apply_mask(source, destination, clip, {mask, settings.stride, {}, clip.size.width, channels},
               settings.keep_probability);
  }

 private:
  DropoutStream stream(Index image) const {
    return {settings.seed, encode, static_cast<std::uint32_t>(image),
            limit_of(settings.keep_probability)};
  }
  void draw() const {
    constexpr Index kTaskWords = 128;
    const Index words = mask.words_of_image();
    const Index tasks = cpu::chunks_of(words, kTaskWords);
    cpu::parallel_for(mask.shape.images * tasks, [&](Index task) {
      const Index first = task % tasks * kTaskWords;
      dropout_loops().draw(stream(task / tasks), first, std::min(kTaskWords, words - first),
                           mask.image(task / tasks) + first);
    });
  }
};

class CpuDropout final : public UnaryEncoder {
 public:
  explicit CpuDropout(const DropoutSettings& settings) : settings_(settings) {}

  std::shared_ptr<StatePayload> make_payload(const ForwardSnapshot&) override {
    return std::make_shared<MaskPayload>();
  }

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    Mask mask(mask_shape(settings_.stride, call.clip, call.produced_channels));
    if (!mask.is_ordinary(call.clip, call.produced_channels) || !call.states.empty()) {
      mask.allocate();
    }
    if (!call.states.empty()) {
      if (command_buffer.predicate) {  // which may skip the draws
        std::memset(mask.block->data(), 0, mask.bytes());
      }
      payload_of(*call.states.front()).mask = mask;
    }
    cpu::record(command_buffer,
                [work = ForwardWork{settings_, encode_++, std::move(mask),
                                    cpu::PixelSource{cpu::view_source(call), call.properties.offset,
                                                     call.properties.edge_mode},
                                    cpu::view_destination(call), call.clip}] { work.run(); });
  }

 private:
  DropoutSettings settings_;
  std::uint32_t encode_ = 0;  // the number of the next encode
};

class CpuDropoutGradient final : public GradientEncoder {
 public:
  explicit CpuDropoutGradient(const DropoutSettings& settings) : settings_(settings) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const SourceProperties& primary = call.properties.primary;
    cpu::record(command_buffer, [gradient = cpu::PixelSource{cpu::view_gradient(call),
                                                             primary.offset, primary.edge_mode},
                                 destination = cpu::view_destination(call, 1, 0), clip = call.clip,
                                 laid = LaidMask{payload_of(call.state()).mask, settings_.stride,
                                                 call.properties.secondary.offset,
                                                 call.clip.size.width, call.produced_channels},
                                 keep = settings_.keep_probability] {
      apply_mask(gradient, destination, clip, laid, keep);
    });
  }

 private:
  DropoutSettings settings_;
};

class CpuDropoutBackend final : public DropoutBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device&,
                                             const DropoutSettings& settings) const override {
    return std::make_unique<CpuDropout>(settings);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device&,
                                                 const DropoutSettings& settings) const override {
    return std::make_unique<CpuDropoutGradient>(settings);
  }
  bool read_mask(const DropoutGradientState& state, float* out) const override {
    const Mask mask = payload_of(state).mask;
    for (Index n = 0; n < mask.shape.images; ++n) {
      for (Index i = 0; i < mask.shape.of_image(); ++i) {
        *out++ = bit_at(mask.image(n), i) ? 1.0F : 0.0F;
      }
    }
    return true;
  }
  bool write_mask(const DropoutGradientState& state, const float* in) const override {
    Mask& mask = payload_of(state).mask;
    if (!mask.block) {
      mask = Mask(state.shape());
      mask.allocate();
    }
    std::memset(mask.block->data(), 0, mask.bytes());
    for (Index n = 0; n < mask.shape.images; ++n) {
      BitWriter writer(mask.image(n));
      for (Index i = 0; i < mask.shape.of_image(); ++i) {
        writer.repeat(*in++ != 0.0F, 1);
      }
    }
    return true;
  }
  Index mask_bytes(const DropoutGradientState& state) const override {
    const Mask& mask = payload_of(state).mask;
    return mask.block ? static_cast<Index>(mask.bytes()) : 0;
  }
};

}  // namespace

const DropoutBackend& cpu_dropout() {
  static const CpuDropoutBackend backend;
  return backend;
}

}  // namespace mpsgrad
