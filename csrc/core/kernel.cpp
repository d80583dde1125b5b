// What every encode checks of images and states, and the reads that it takes from temporaries.
#include "core/kernel.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>
#include <unordered_set>

#include "base/errors.hpp"

namespace mpsgrad {

void KernelBase::set_options(Index options) {
  require(options >= 0 && options < 32, class_name(),
          ": options must be a combination of KernelOptions, got ", options);
  options_ = options;
}

namespace {

class OrdinaryAllocator final : public ImageAllocator {
 public:
  std::shared_ptr<ImageBatch> allocate(const std::shared_ptr<CommandBuffer>& command_buffer,
                                       const ImageDescriptor& descriptor, KernelBase&, Index count,
                                       bool zeroed) override {
    return ImageBatch::make(command_buffer->device(), descriptor, count, zeroed);
  }
};

class TemporaryAllocator final : public ImageAllocator {
 public:
  std::shared_ptr<ImageBatch> allocate(const std::shared_ptr<CommandBuffer>& command_buffer,
                                       const ImageDescriptor& descriptor, KernelBase&, Index count,
                                       bool zeroed) override {
    return ImageBatch::make_temporary(command_buffer, descriptor, count, zeroed);
  }
};

}  // namespace

GivenImages::GivenImages(std::shared_ptr<ImageBatch> images) : images_(std::move(images)) {}

std::shared_ptr<ImageBatch> GivenImages::allocate(const std::shared_ptr<CommandBuffer>&,
                                                  const ImageDescriptor& wanted, KernelBase& kernel,
                                                  Index count, bool) {
  const ImageDescriptor& got = (*images_)[0]->descriptor();
  require(count == images_->size() && got.width == wanted.width && got.height == wanted.height &&
              got.feature_channels == wanted.feature_channels,
          kernel.class_name(), ": out must have shape (", count, ", ", wanted.height, ", ",
          wanted.width, ", ", wanted.feature_channels, "), got (", images_->size(), ", ",
          got.height, ", ", got.width, ", ", got.feature_channels, ")");
  return images_;
}

const std::shared_ptr<ImageAllocator>& ordinary_image_allocator() {
  static const std::shared_ptr<ImageAllocator> allocator = std::make_shared<OrdinaryAllocator>();
  return allocator;
}

const std::shared_ptr<ImageAllocator>& temporary_image_allocator() {
  static const std::shared_ptr<ImageAllocator> allocator = std::make_shared<TemporaryAllocator>();
  return allocator;
}

void check_operand(const KernelBase& kernel, const CommandBuffer& command_buffer,
                   const Operand& operand) {
  const ImageBatch::Images& images = *operand.images;
  require(!images.empty(), kernel.class_name(), ": ", operand.name, " is an empty batch");
  const ImageDescriptor& first = images.front()->descriptor();
  const ImageStorage* front = nullptr;
  const ImageStorage* previous = nullptr;
  for (const auto& image : images) {
    require(image->device() == kernel.device(), kernel.class_name(), ": ", operand.name,
            " is on another device");
    image->require_usable(kernel.class_name(), command_buffer);
    if (operand.batch) {
      require(image->descriptor().number_of_images == 1, kernel.class_name(), ": ", operand.name,
              " holds an image with number_of_images ", image->descriptor().number_of_images,
              "; every image of a batch must hold one");
      require(image->descriptor().same_kind(first), kernel.class_name(), ": ", operand.name,
              " mixes images of ", first, " and ", image->descriptor());
      const ImageStorage& storage = image->storage();
      if (&storage != previous) {
        front = front == nullptr ? &storage : front;
        require(storage.lies_like(*front), kernel.class_name(), ": ", operand.name,
                " mixes images that lie differently in memory, as a whole image and a view of "
                "another's channels do");
        previous = &storage;
      }
    }
  }
}

namespace {

// Whether two images lie in the same memory. Views of one image do if they begin at the same texel,
// as far as a device tells.
bool share_memory(const ImageBatch::Images& images) {
  const ImageStorage& front = images.front()->storage();
  const auto follows = [&](const auto& a, const auto& b) {
    return &b->storage() == &front && a->index() < b->index();
  };
  if (std::adjacent_find(images.begin(), images.end(), std::not_fn(follows)) == images.end()) {
    return false;  // as in a batch that was made as one
  }
  struct Place {
    std::pair<std::uintptr_t, std::uintptr_t> whole;  // of the image that it may be a view of
    const Image* root;
    std::uintptr_t first;
  };
  std::vector<Place> places;
  places.reserve(images.size());
  for (const auto& image : images) {
    const Image* root = image.get();
    while (root->parent()) {
      root = root->parent().get();
    }
    places.push_back({image->extent(), root, image->storage().extent(image->index()).first});
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.whole.first, a.root, a.first) < std::tie(b.whole.first, b.root, b.first);
  });
  return std::adjacent_find(places.begin(), places.end(), [](const Place& a, const Place& b) {
           return b.whole.first < a.whole.second && (a.root != b.root || b.first == a.first);
         }) != places.end();
}

}  // namespace

void check_destination(const KernelBase& kernel, const CommandBuffer& command_buffer,
                       const Operand& operand) {
  check_operand(kernel, command_buffer, operand);
  for (const auto& image : *operand.images) {
    require(!image->storage().is_read_only(), kernel.class_name(), ": ", operand.name,
            " is over a read-only array");
  }
  require(all_distinct(*operand.images), kernel.class_name(), ": ", operand.name,
          " holds the same image twice");
  require(!share_memory(*operand.images), kernel.class_name(), ": ", operand.name,
          " holds two images of the same memory");
}

void check_aliasing(const KernelBase& kernel, const Operand& source, const Operand& destination) {
  using Extent = std::pair<std::uintptr_t, std::uintptr_t>;
  const auto hull = [](const ImageBatch::Images& images) {
    Extent whole{std::numeric_limits<std::uintptr_t>::max(), 0};
    const ImageStorage* previous = nullptr;
    for (const auto& image : images) {
      if (&image->storage() == previous) {
        continue;
      }
      previous = &image->storage();
      const Extent extent = image->parent() ? image->extent() : image->storage().hull();
      whole = {std::min(whole.first, extent.first), std::max(whole.second, extent.second)};
    }
    return whole;
  };
  const auto meet = [](const Extent& a, const Extent& b) {
    return a.first < b.second && b.first < a.second;
  };
  if (!meet(hull(*source.images), hull(*destination.images))) {
    return;
  }
  std::vector<Extent> sources;
  for (const auto& image : *source.images) {
    sources.push_back(image->extent());
  }
  std::sort(sources.begin(), sources.end());
  std::uintptr_t furthest =
      0;  // the largest end so far turns the list into one that can be searched
  for (Extent& extent : sources) {
    furthest = std::max(furthest, extent.second);
    extent.second = furthest;
  }
  for (const auto& image : *destination.images) {
    const Extent wanted = image->extent();
    auto after = std::partition_point(sources.begin(), sources.end(), [&](const Extent& extent) {
      return extent.first < wanted.second;
    });
    require(after == sources.begin() || std::prev(after)->second <= wanted.first,
            kernel.class_name(), ": ", destination.name, " shares memory with ", source.name);
  }
}

Index consumed_channels(const KernelBase& kernel, const Operand& operand, Index offset,
                        Index maximum, Index fixed) {
  const Index available = operand.descriptor().feature_channels - offset;
  require(available > 0, kernel.class_name(), ": ", operand.name, " has ",
          operand.descriptor().feature_channels, " channels, none at channel offset ", offset);
  const Index consumed = std::min(maximum, available);
  require(fixed == 0 || consumed >= fixed, kernel.class_name(), ": ", operand.name, " offers ",
          consumed, " channels from offset ", offset, ", but the kernel reads ", fixed);
  return fixed == 0 ? consumed : fixed;
}

void check_channel_offset(const KernelBase& kernel, const char* property, Index value) {
  require(value >= 0 && value % 4 == 0, kernel.class_name(), ": ", property,
          " must be a multiple of 4 and not negative, got ", value);
  require(value < 4 * kMaximumImageSlices, kernel.class_name(), ": ", property, " ", value,
          " is beyond the ", 4 * kMaximumImageSlices, " channels that an image may have");
}

void require_size(const KernelBase& kernel, const char* name, const ImageDescriptor& image,
                  const char* whose, Index width, Index height) {
  require(image.width == width && image.height == height, kernel.class_name(), ": ", name, " is ",
          image.width, "x", image.height, ", but ", whose, " ", width, "x", height);
}

void require_one_state(const KernelBase& kernel, const StateBatch& states) {
  for (const auto& state : states) {
    require(state == states.front(), kernel.class_name(),
            ": the states of a batch must be one and the same object");
  }
}

void require_distinct_states(const KernelBase& kernel, const char* name, const StateBatch& states) {
  std::unordered_set<const State*> seen;
  for (const auto& state : states) {
    require(seen.insert(state.get()).second, kernel.class_name(), ": ", name,
            " holds a state twice; each of the ", states.size(), " images needs one of its own");
  }
}

void check_source_channel_offset(const KernelBase& kernel, const char* property, Index value) {
  if (!kernel.reads_anywhere()) {
    check_channel_offset(kernel, property, value);
    return;
  }
  require(value >= 0 && value < 4 * kMaximumImageSlices, kernel.class_name(), ": ", property,
          " must be between 0 and ", 4 * kMaximumImageSlices - 1, ", got ", value);
}

void check_source_edge_mode(const KernelBase& kernel, const char* property, EdgeMode mode) {
  if (!kernel.reads_anywhere()) {
    check_edge_mode(kernel, property, mode);
  }
}

void check_edge_mode(const KernelBase& kernel, const char* property, EdgeMode mode) {
  require(mode == EdgeMode::Zero || mode == EdgeMode::Clamp, kernel.class_name(), ": ", property,
          " must be ZERO or CLAMP (the other modes belong to Pad), got ", mode);
}

Region effective_clip(const Region& clip, const Operand& destination) {
  const auto cut = [](Index origin, Index length, Index limit, Index& size) {
    const Index first = std::clamp<Index>(origin, 0, limit);
    const Index last =
        length > limit - origin ? limit : origin + length;  // length may be kUnlimited
    size = std::max<Index>(last - first, 0);
    return first;
  };
  Region result;
  const ImageDescriptor& image = destination.descriptor();
  result.origin.x = cut(clip.origin.x, clip.size.width, image.width, result.size.width);
  result.origin.y = cut(clip.origin.y, clip.size.height, image.height, result.size.height);
  result.origin.z = cut(clip.origin.z, clip.size.depth, destination.depth(), result.size.depth);
  return result;
}

void check_depth(const KernelBase& kernel, const Operand& source, Index first, Index count) {
  require(first >= 0, kernel.class_name(), ": the z offset of ", source.name,
          " must not be negative, got ", first);
  require(first <= source.depth() - count, kernel.class_name(), ": the destination asks for ",
          count, " images of ", source.name, " from ", first, " on, but it has ", source.depth());
}

void check_step(const char* who, const char* name, Index value) {
  require(value >= 1, who, ": ", name, " must be at least 1, got ", value);
  require(value <= kMaximumWindow, who, ": ", name, " must be at most ", kMaximumWindow, ", got ",
          value);
}

void check_window(const char* who, const Window& window) {
  check_step(who, "kernel_width", window.kernel_width);
  check_step(who, "kernel_height", window.kernel_height);
  check_step(who, "stride_in_pixels_x", window.stride_x);
  check_step(who, "stride_in_pixels_y", window.stride_y);
  check_step(who, "dilation_rate_x", window.dilation_x);
  check_step(who, "dilation_rate_y", window.dilation_y);
}

void check_position(const KernelBase& kernel, const char* property, Index value, Index furthest) {
  require(value >= -furthest && value <= furthest, kernel.class_name(), ": ", property,
          " must be between -", furthest, " and ", furthest, " pixels, got ", value);
}

void check_offset(const KernelBase& kernel, const char* property, const Offset& offset,
                  Index furthest) {
  check_position(kernel, property, offset.x, furthest);
  check_position(kernel, property, offset.y, furthest);
  check_position(kernel, property, offset.z, furthest);
}

void check_clip(const KernelBase& kernel, const Region& clip) {
  const auto sane = [](Index origin, Index size) { return origin >= 0 && size >= 0; };
  require(sane(clip.origin.x, clip.size.width) && sane(clip.origin.y, clip.size.height) &&
              sane(clip.origin.z, clip.size.depth),
          kernel.class_name(), ": clip_rect must not have negative parts, got origin ", clip.origin,
          " and size ", clip.size);
}

void Reads::add_one(ReadCount& count, Image* image, State* state) {
  const std::size_t place = count.place;
  if (place >= entries_.size() || entries_[place].count != &count) {
    count.place = entries_.size();
    entries_.push_back({&count, image, state, 1, argument_});
    return;
  }
  Entry& entry = entries_[place];
  entry.reads += entry.argument == argument_ ? 0 : 1;
  entry.argument = argument_;
}

void Reads::add(const ImageBatch::Images& images) {
  ++argument_;
  for (const auto& image : images) {
    if (ReadCount* count = image->read_count()) {
      add_one(*count, image.get(), nullptr);
      has_views_ = has_views_ || image->parent() != nullptr;
    }
  }
}

void Reads::add(const StateBatch& states) {
  ++argument_;
  for (const auto& state : states) {
    if (ReadCount* count = state->count()) {
      add_one(*count, nullptr, state.get());
    }
  }
}

void Reads::check() const {
  if (has_views_) {
    return check_with_views();
  }
  for (const Entry& entry : entries_) {
    entry.count->require_addable(-entry.reads);
  }
}

void Reads::check_with_views() const {
  std::vector<LostReads> lost;
  for (const Entry& entry : entries_) {
    lost.push_back({entry.count, entry.image, entry.reads});
  }
  check_lost_reads(lost);
}

void Reads::spend() {
  for (const Entry& entry : entries_) {
    if (entry.image) {
      entry.count->add(-entry.reads);
      entry.image->after_count_change();
    } else {
      entry.state->add_read_count(-entry.reads);
    }
  }
}

void note_uses(const CommandBuffer& command_buffer, const ImageBatch::Images& images, bool writes) {
  const ImageStorage* previous = nullptr;
  for (const auto& image : images) {
    ImageStorage& storage = image->storage();
    if (&storage != previous) {
      storage.uses().add(command_buffer.work(), writes);
      previous = &storage;
    }
  }
}

void note_results(const CommandBuffer& command_buffer, const ImageBatch::Images& images,
                  const Region& clip, Index channel, Index produced) {
  ImageStorage& storage = images.front()->storage();
  const ImageDescriptor& written = storage.descriptor();
  const Index count = storage.count() * written.number_of_images;
  if (storage.clears() && !command_buffer.predicate && storage.uses().empty() &&
      clip == Region{{}, {written.width, written.height, count}} && channel == 0 &&
      produced == written.feature_channels && all_distinct(images) &&
      std::all_of(images.begin(), images.end(),
                  [&](const auto& image) { return &image->storage() == &storage; })) {
    storage.skip_clear();
  }
  note_uses(command_buffer, images, true);
}

void note_use(const CommandBuffer& command_buffer, const std::shared_ptr<Buffer>& buffer,
              bool writes) {
  if (buffer) {
    buffer->note_use(command_buffer.work(), writes);
  }
}

void check_states(const KernelBase& kernel, const CommandBuffer& command_buffer, const char* name,
                  const StateBatch& states, Index expected, const char* hint) {
  require(static_cast<Index>(states.size()) == expected, kernel.class_name(), ": ", name, " has ",
          states.size(), " entries, expected ", expected, ", one an image",
          states.empty() ? hint : "");
  for (const auto& state : states) {
    require<TypeError>(state != nullptr, kernel.class_name(), ": ", name,
                       " must hold states, got None");
    state->require_usable(kernel.class_name(), command_buffer);
  }
}

}  // namespace mpsgrad
