// What every encode checks and records, and how padding policies size results.
#include <algorithm>
#include <map>
#include <set>

#include "internal.hpp"

namespace emulated_metal {

NSArray* single(id object) { return object == nil ? nil : [NSArray arrayWithObject:object]; }

namespace {

bool same_shape(const ImageBody& a, const ImageBody& b) {
  return a.shape.width == b.shape.width && a.shape.height == b.shape.height &&
         a.shape.channels == b.shape.channels && a.shape.format == b.shape.format;
}

void check_list(NSArray<MPSImage*>* images, bool batch, const Where& where) {
  REQUIRE(images != nil, nil_argument, where, "images");
  REQUIRE([images count] > 0, batch_empty, where);
  const ImageBody& first = body_of([images objectAtIndex:0], where);
  for (MPSImage* image in images) {
    const ImageBody& body = body_of(image, where);
    REQUIRE(!batch || body.shape.count == 1, batch_number_of_images, where, "%lu",
            static_cast<unsigned long>(body.shape.count));
    REQUIRE(same_shape(first, body), batch_descriptor, where);
  }
}

long overlap(NSUInteger origin, NSUInteger size, NSUInteger limit) {
  if (origin >= limit) return 0;
  return static_cast<long>(std::min(size, limit - origin));
}

}  // namespace

Plan plan_encode(const KernelBody& kernel, const Call& call, const ProducedChannels& produced,
                 const Where& where) {
  check_encodable(call.command_buffer, where);
  const int device = device_of(call.command_buffer, where);
  REQUIRE(index_of(kernel.device.get(), where) == device, different_devices, where,
          "kernel and command buffer");
  const bool batch = call.batch;
  check_list(call.destinations, batch, where);
  const NSUInteger length = [call.destinations count];
  std::map<MPSImage*, NSUInteger> needed;  // read counts; once per argument position
  std::set<const Storage*> read_storage;
  Plan plan;
  for (size_t index = 0; index < call.sources.size(); ++index) {
    NSArray<MPSImage*>* images = call.sources[index];
    check_list(images, batch, where);
    std::set<MPSImage*> distinct;
    for (MPSImage* image in images) {
      const ImageBody& body = body_of(image, where);
      REQUIRE(index_of(body.device.get(), where) == device, different_devices, where,
              "source image");
      REQUIRE((body.shape.usage & MTLTextureUsageShaderRead) != 0, source_usage, where);
      touch_temporary(image, call.command_buffer, where);
      if (body.temporary && distinct.insert(image).second) ++needed[image];
    }
    const Operand& operand = kernel.sources.at(index);
    const ImageBody& first = body_of([images objectAtIndex:0], where);
    REQUIRE(operand.channel_offset % 4 == 0, channel_offset, where, "source: %lu",
            static_cast<unsigned long>(operand.channel_offset));
    REQUIRE(operand.channel_offset < first.shape.channels && operand.channel_max > 0,
            source_channels, where, "offset %lu of %lu",
            static_cast<unsigned long>(operand.channel_offset),
            static_cast<unsigned long>(first.shape.channels));
    plan.consumed.push_back(static_cast<long>(
        std::min(operand.channel_max, first.shape.channels - operand.channel_offset)));
    REQUIRE(operand.edge <= MPSImageEdgeModeClamp, edge_mode, where, "%lu",
            static_cast<unsigned long>(operand.edge));
  }
  for (const auto& [image, count] : needed) {
    REQUIRE(read_count_of(image, where) >= count, source_read_count, where);
  }
  for (MPSImage* image in call.destinations) {
    const ImageBody& body = body_of(image, where);
    REQUIRE(index_of(body.device.get(), where) == device, different_devices, where,
            "destination image");
    REQUIRE((body.shape.usage & MTLTextureUsageShaderWrite) != 0, destination_usage, where);
    touch_temporary(image, call.command_buffer, where);
    REQUIRE(!body.temporary || body.read_count > 0, destination_read_count, where);
  }
  for (NSArray<MPSState*>* states : {call.read_states, call.written_states}) {
    if (states == nil) continue;
    REQUIRE([states count] == length, batch_length, where, "%lu states, %lu images",
            static_cast<unsigned long>([states count]), static_cast<unsigned long>(length));
    for (MPSState* state in states) {
      check_state(state, call.command_buffer, states == call.read_states, where);
    }
  }

  // Channels.
  REQUIRE(kernel.destination_channel_offset % 4 == 0, channel_offset, where, "destination: %lu",
          static_cast<unsigned long>(kernel.destination_channel_offset));
  const long channels = produced(plan.consumed);
  const ImageBody& target = body_of([call.destinations objectAtIndex:0], where);
  REQUIRE(static_cast<long>(kernel.destination_channel_offset) + channels <=
              static_cast<long>(target.shape.channels),
          destination_channels, where, "%lu + %ld in %lu",
          static_cast<unsigned long>(kernel.destination_channel_offset), channels,
          static_cast<unsigned long>(target.shape.channels));

  // Clip rectangle and images.
  const MTLRegion& clip = kernel.clip;
  const NSUInteger count = batch ? length : target.shape.count;
  plan.clip.x = static_cast<long>(std::min(clip.origin.x, target.shape.width));
  plan.clip.y = static_cast<long>(std::min(clip.origin.y, target.shape.height));
  plan.clip.z = static_cast<long>(std::min(clip.origin.z, count));
  plan.clip.w = overlap(clip.origin.x, clip.size.width, target.shape.width);
  plan.clip.h = overlap(clip.origin.y, clip.size.height, target.shape.height);
  plan.clip.d = overlap(clip.origin.z, clip.size.depth, count);
  REQUIRE(clip.size.depth == NSUIntegerMax || clip.origin.z + clip.size.depth <= count, clip_z,
          where, "%lu + %lu of %lu images", static_cast<unsigned long>(clip.origin.z),
          static_cast<unsigned long>(clip.size.depth), static_cast<unsigned long>(count));
  for (size_t index = 0; index < call.sources.size(); ++index) {
    const Operand& operand = kernel.sources[index];
    NSArray<MPSImage*>* images = call.sources[index];
    const NSUInteger available =
        batch ? [images count] : body_of([images objectAtIndex:0], where).shape.count;
    REQUIRE(!batch || index == 0 || [images count] == [call.sources[0] count], batch_length, where,
            "%lu and %lu source images", static_cast<unsigned long>([call.sources[0] count]),
            static_cast<unsigned long>([images count]));
    REQUIRE(operand.offset.z >= 0 &&
                static_cast<NSUInteger>(operand.offset.z + plan.clip.d) <= available,
            offset_z, where, "%ld + %ld of %lu images", static_cast<long>(operand.offset.z),
            plan.clip.d, static_cast<unsigned long>(available));
  }

  // Storage is allocated here, by the last check that needs it.
  for (NSArray<MPSImage*>* images : call.sources) {
    for (MPSImage* image in images) read_storage.insert(view_of(image, 0, where).storage.get());
  }
  for (MPSImage* image in call.destinations) {
    REQUIRE(read_storage.count(view_of(image, 0, where).storage.get()) == 0,
            destination_aliases_source, where);
  }
  for (long z = 0; z < plan.clip.d; ++z) {
    Job job;
    const auto at = [&](NSArray<MPSImage*>* images, long position) {
      const auto place = static_cast<NSUInteger>(position);
      return batch ? view_of([images objectAtIndex:place], 0, where)
                   : view_of([images objectAtIndex:0], place, where);
    };
    for (size_t index = 0; index < call.sources.size(); ++index) {
      job.sources.push_back(
          at(call.sources[index], static_cast<long>(kernel.sources[index].offset.z) + z));
    }
    job.destination = at(call.destinations, plan.clip.z + z);
    plan.jobs.push_back(std::move(job));
  }
  return plan;
}

void consume(const Call& call, const Where& where) {
  std::set<MPSImage*> distinct_images;
  for (NSArray<MPSImage*>* images : call.sources) {
    if (option("shared_source_reads") != 1) distinct_images.clear();
    for (MPSImage* image in images) {
      if (distinct_images.insert(image).second) decrement_read_count(image, 1, where);
    }
  }
  std::set<MPSState*> distinct;
  for (MPSState* state in call.read_states) {
    if (distinct.insert(state).second) decrement_read_count(state, where);
  }
}

float fetch(const Tensor& source, long y, long x, long channel, MPSImageEdgeMode edge) {
  if (edge == MPSImageEdgeModeClamp) {
    y = std::clamp(y, 0L, source.h - 1);
    x = std::clamp(x, 0L, source.w - 1);
  } else if (y < 0 || x < 0 || y >= source.h || x >= source.w) {
    return 0.0F;
  }
  return source.at(y, x, channel);
}

void record_work(const KernelBody& kernel, const Call& call, const Plan& plan, long produced,
                 const Work& work, const Where& where, const Extra& extra) {
  std::vector<long> offsets;
  for (const Operand& operand : kernel.sources) {
    offsets.push_back(static_cast<long>(operand.channel_offset));
  }
  const auto first = static_cast<long>(kernel.destination_channel_offset);
  for (size_t index = 0; index < plan.jobs.size(); ++index) {
    const Job& job = plan.jobs[index];
    Command command;
    command.reads = extra.reads;
    command.writes = extra.writes;
    for (const View& view : job.sources) command.reads.push_back(view.storage);
    const bool stores = !extra.leaves_destination;
    if (stores) command.writes.push_back(job.destination.storage);
    command.run = [job, work, offsets, consumed = plan.consumed, clip = plan.clip, first, produced,
                   index, stores] {
      std::vector<Tensor> sources;
      for (size_t s = 0; s < job.sources.size(); ++s) {
        sources.push_back(load(job.sources[s], offsets[s], consumed[s]));
      }
      Tensor out(clip.h, clip.w, produced);
      work(sources, out, index);
      if (stores) store(job.destination, clip, first, out);
    };
    record(call.command_buffer, where, std::move(command));
  }
  consume(call, where);
}

// ---------------------------------------------------------------- padding

namespace {

struct Span {
  long size, offset;
};

// One axis of a forward filter, or of one that upsamples.
Span pad(long length, long kernel, long dilation, long stride, bool backwards,
         MPSNNPaddingMethod method, bool right, const Where& where) {
  const long extent = (kernel - 1) * dilation + 1;
  const MPSNNPaddingMethod style_bits = method & MPSNNPaddingMethodSizeMask;
  const long style = style_bits == MPSNNPaddingMethodSizeValidOnly ? -1
                     : style_bits == MPSNNPaddingMethodSizeSame    ? 0
                                                                   : 1;
  if (backwards) {
    const long size = (length - 1) * stride + 1 + style * (extent - 1);
    REQUIRE(size > 0, padding_size, where, "%ld", size);
    return {size, 0};
  }
  const long span = length + style * (extent - 1);
  const long size = span > 0 ? (span + stride - 1) / stride : 0;
  REQUIRE(size > 0, padding_size, where, "source %ld, window %ld", length, extent);
  const long missing = (size - 1) * stride + extent - length;
  const MPSNNPaddingMethod align = method & MPSNNPaddingMethodAlignMask;
  long left = 0;
  if (align == MPSNNPaddingMethodAlignCentered) {
    const long share = missing + (right ? 0 : 1);
    left = option("padding_rounds_down") != 0 ? share >> 1 : share / 2;
  } else if (align == MPSNNPaddingMethodAlignTopLeft) {
    left = missing;
  }
  return {size, extent / 2 - left};
}

}  // namespace

MPSImageDescriptor* padded_descriptor(MPSKernel* kernel, NSArray<MPSImage*>* images,
                                      NSArray<MPSState*>* states, const ProducedChannels& produced,
                                      const Where& where) {
  KernelBody& body = *[kernel emulatedBody];
  REQUIRE(images != nil, nil_argument, where, "sourceImages");
  REQUIRE([images count] == body.sources.size(), source_count, where, "%lu, expected %lu",
          static_cast<unsigned long>([images count]),
          static_cast<unsigned long>(body.sources.size()));
  REQUIRE(body.padding, nil_argument, where, "padding");
  const id<MPSNNPadding> policy = body.padding.get();
  const MPSNNPaddingMethod method = [policy paddingMethod];
  REQUIRE((method & MPSNNPaddingMethodAlignMask) != MPSNNPaddingMethodAlign_reserved &&
              (method & MPSNNPaddingMethodSizeMask) <= MPSNNPaddingMethodSizeFull,
          padding_method, where, "0x%lx", static_cast<unsigned long>(method));
  const SEL adjust = @selector
      (destinationImageDescriptorForSourceImages:sourceStates:forKernel:suggestedDescriptor:);
  const bool custom = (method & MPSNNPaddingMethodCustom) != 0;
  REQUIRE(!custom || [policy respondsToSelector:adjust], padding_custom, where);

  std::vector<long> consumed;
  for (NSUInteger index = 0; index < [images count]; ++index) {
    const ImageBody& image = body_of([images objectAtIndex:index], where);
    REQUIRE(image.shape.count == 1, batch_number_of_images, where);
    const Operand& operand = body.sources[index];
    REQUIRE(operand.channel_offset < image.shape.channels, source_channels, where);
    consumed.push_back(static_cast<long>(
        std::min(operand.channel_max, image.shape.channels - operand.channel_offset)));
  }
  const ImageBody& first = body_of([images objectAtIndex:0], where);
  Operand& operand = body.sources[0];
  const auto l = [](NSUInteger value) { return static_cast<long>(value); };
  const Span x = pad(l(first.shape.width), l(operand.kernel_x), l(operand.dilation_x),
                     l(operand.stride_x), body.backwards, method, (method & 0x4) != 0, where);
  const Span y = pad(l(first.shape.height), l(operand.kernel_y), l(operand.dilation_y),
                     l(operand.stride_y), body.backwards, method, (method & 0x8) != 0, where);
  operand.offset.x = x.offset;
  operand.offset.y = y.offset;
  MPSImageDescriptor* descriptor = [MPSImageDescriptor
      imageDescriptorWithChannelFormat:first.shape.format
                                 width:static_cast<NSUInteger>(x.size)
                                height:static_cast<NSUInteger>(y.size)
                       featureChannels:body.destination_channel_offset +
                                       static_cast<NSUInteger>(produced(consumed))];
  if ([kernel isKindOfClass:[MPSCNNKernel class]]) {
    [static_cast<MPSCNNKernel*>(kernel) emulatedAdjustDescriptor:descriptor sources:images];
  }
  for (MPSState* state in states) {
    (void)body_of(state, where);
    descriptor = [state destinationImageDescriptorForSourceImages:images
                                                     sourceStates:states
                                                        forKernel:kernel
                                              suggestedDescriptor:descriptor];
  }
  if (custom) {
    descriptor = [policy destinationImageDescriptorForSourceImages:images
                                                      sourceStates:states
                                                         forKernel:kernel
                                               suggestedDescriptor:descriptor];
    REQUIRE(descriptor != nil, padding_custom, where, "it returned nil");
  }
  return descriptor;
}

NSArray<MPSImage*>* allocate_images(MPSKernel* kernel, id<MTLCommandBuffer> command_buffer,
                                    MPSImageDescriptor* descriptor, NSUInteger count,
                                    const Where& where) {
  const id<MPSImageAllocator> allocator = [kernel emulatedBody]->allocator.get();
  REQUIRE(allocator != nil, nil_argument, where, "destinationImageAllocator");
  NSArray<MPSImage*>* images = nil;
  if (count > 1 && [allocator respondsToSelector:@selector
                              (imageBatchForCommandBuffer:imageDescriptor:kernel:count:)]) {
    images = [allocator imageBatchForCommandBuffer:command_buffer
                                   imageDescriptor:descriptor
                                            kernel:kernel
                                             count:count];
  } else {
    NSMutableArray* list = [NSMutableArray array];
    for (NSUInteger index = 0; index < count; ++index) {
      MPSImage* image = [allocator imageForCommandBuffer:command_buffer
                                         imageDescriptor:descriptor
                                                  kernel:kernel];
      REQUIRE(image != nil, allocator_result, where);
      [list addObject:image];
    }
    images = list;
  }
  REQUIRE([images count] == count, allocator_result, where);
  return images;
}

}  // namespace emulated_metal
