// Encodes of kernels with one source and of gradient kernels.
#include "metal/metal_calls.hpp"

#include <set>

namespace mpsgrad::metal {
namespace {

MPSOffset to_mps(const Offset& offset) { return {offset.x, offset.y, offset.z}; }

// The effective clip: it never reaches outside, which some kernels would refuse.
MTLRegion to_mtl(const Region& clip) {
  return MTLRegionMake3D(to_ns(clip.origin.x), to_ns(clip.origin.y), to_ns(clip.origin.z),
                         to_ns(clip.size.width), to_ns(clip.size.height), to_ns(clip.size.depth));
}

// A count only where it limits something.
NSUInteger channel_maximum(Index channels, Index offset, Index used) {
  return offset + used == channels ? NSUIntegerMax : to_ns(used);
}

Index channels_of(const ImageBatch::Images& images) {
  return images.front()->descriptor().feature_channels;
}

void set_geometry(MPSCNNKernel* kernel, const UnaryProperties& p, const Region& clip,
                  Index source_channels, Index consumed_channels) {
  kernel.offset = to_mps(p.offset);
  kernel.clipRect = to_mtl(clip);
  kernel.edgeMode = static_cast<MPSImageEdgeMode>(p.edge_mode);
  kernel.destinationFeatureChannelOffset = to_ns(p.destination_channel_offset);
  kernel.sourceFeatureChannelOffset = to_ns(p.source_channel_offset);
  kernel.sourceFeatureChannelMaxCount =
      channel_maximum(source_channels, p.source_channel_offset, consumed_channels);
}

// An image that stands for its size; it never gets storage.
Retained<MPSImage*> outline(id<MTLDevice> device, Index width, Index height, Index channels) {
  MPSImageDescriptor* descriptor =
      [MPSImageDescriptor imageDescriptorWithChannelFormat:MPSImageFeatureChannelFormatFloat32
                                                     width:to_ns(width)
                                                    height:to_ns(height)
                                           featureChannels:to_ns(channels)];
  return Retained<MPSImage*>::adopt([[MPSImage alloc] initWithDevice:device
                                                     imageDescriptor:descriptor]);
}

}  // namespace

void set_label(MPSKernel* kernel, const KernelBase& ours) {
  kernel.label = ours.label.empty() ? nil : [NSString stringWithUTF8String:ours.label.c_str()];
}

void set_options(MPSKernel* kernel, const KernelBase& ours) {
  kernel.options = static_cast<MPSKernelOptions>(ours.options());
  set_label(kernel, ours);
}

NSArray<MPSState*>* fill_states(MetalCommandBuffer& command_buffer, MPSCNNKernel* kernel,
                                const UnaryCall& call, NSArray<MPSImage*>* sources,
                                NSArray<MPSImage*>* destinations) {
  if (call.states.empty()) {
    return nil;
  }
  std::set<const State*> done;
  for (std::size_t i = 0; i < call.states.size(); ++i) {
    State& state = *call.states[i];
    if (!done.insert(&state).second) {
      continue;
    }
    MPSImage* source = [sources objectAtIndex:i];
    MPSImage* destination = [destinations objectAtIndex:i];
    MPSState* made = state.count()
                         ? [kernel temporaryResultStateForCommandBuffer:command_buffer.for_kernel()
                                                            sourceImage:source
                                                           sourceStates:nil
                                                       destinationImage:destination]
                         : [kernel resultStateForSourceImage:source
                                                sourceStates:nil
                                            destinationImage:destination];
    require<DeviceError>(made != nil, call.kernel.class_name(), ": the device made no state");
    payload_of(state).assign(made, command_buffer.temporaries());
  }
  return mps_states(call.kernel.class_name(), call.states);
}

MPSImage* mps_image(const Image& image) {
  return as<MetalImageStorage>(image.storage()).image(image.index());
}

NSArray<MPSImage*>* mps_images(const ImageBatch::Images& images, bool kernel_writes) {
  auto& first = as<MetalImageStorage>(images.front()->storage());
  bool whole = first.count() == static_cast<Index>(images.size());
  for (std::size_t i = 0; whole && i < images.size(); ++i) {
    whole = &images[i]->storage() == &first && images[i]->index() == static_cast<Index>(i);
  }
  NSArray<MPSImage*>* result = nil;
  if (whole) {
    result = first.images();
  } else {
    NSMutableArray<MPSImage*>* gathered = [NSMutableArray arrayWithCapacity:images.size()];
    for (const auto& image : images) {
      [gathered addObject:mps_image(*image)];
    }
    result = gathered;
  }
  if (kernel_writes) {
    for (const auto& image : images) {
      as<MetalImageStorage>(image->storage()).note_written_by_kernel(image->index());
    }
  }
  return result;
}

MetalStatePayload& payload_of(const State& state) {
  const auto* ours = dynamic_cast<const ForwardState*>(&state);
  auto* payload = ours ? dynamic_cast<MetalStatePayload*>(ours->payload.get()) : nullptr;
  require(payload != nullptr, "object belongs to another device");
  return *payload;
}

NSArray<MPSState*>* mps_states(const char* who, const StateBatch& states) {
  NSMutableArray<MPSState*>* result = [NSMutableArray arrayWithCapacity:states.size()];
  for (const auto& state : states) {
    MPSState* filled = payload_of(*state).get();
    require<StateError>(filled != nil, who,
                        ": no forward encode has filled this state; encode the forward kernel "
                        "with it first");
    [result addObject:filled];
  }
  return result;
}

void describe_states(MetalCommandBuffer& command_buffer, const StateBatch& states) {
  for (const auto& state : states) {
    MetalStatePayload& payload = payload_of(*state);
    if (payload.get() != nil || !payload.maker()) {
      continue;
    }
    const bool temporary = state->count() != nullptr;
    MPSState* made = payload.maker()(static_cast<const GradientState&>(*state).snapshot(),
                                     temporary ? command_buffer.for_transfer() : nil);
    require<DeviceError>(made != nil, state->class_name(), ": the device made no state");
    payload.assign(made, command_buffer.temporaries());
  }
}

MPSState* describe_state(MPSCNNKernel* kernel, const ForwardSnapshot& shot,
                         MPSCommandBuffer* temporary) {
  const id<MTLDevice> device = kernel.device;
  const auto source = outline(device, shot.source_width, shot.source_height, shot.source_channels);
  const auto destination =
      outline(device, shot.destination_width, shot.destination_height, shot.destination_channels);
  return temporary != nil ? [kernel temporaryResultStateForCommandBuffer:temporary
                                                             sourceImage:source.get()
                                                            sourceStates:nil
                                                        destinationImage:destination.get()]
                          : [kernel resultStateForSourceImage:source.get()
                                                 sourceStates:nil
                                             destinationImage:destination.get()];
}

MetalStatePayload::Maker state_maker(Retained<MPSCNNKernel*> kernel,
                                     void (*set_more)(MPSCNNKernel*, const UnaryProperties&)) {
  return [kernel = std::move(kernel), set_more](const ForwardSnapshot& shot,
                                                MPSCommandBuffer* temporary) {
    const id<MTLDevice> device = kernel.get().device;
    // The kernel itself may be at work for another encode.
    const auto twin = Retained<MPSCNNKernel*>::adopt([kernel.get() copyWithZone:nullptr
                                                                         device:device]);
    set_geometry(twin.get(), shot.properties, shot.clip, shot.source_channels,
                 shot.consumed_channels);
    if (set_more != nullptr) {
      set_more(twin.get(), shot.properties);
    }
    return describe_state(twin.get(), shot, temporary);
  };
}

void set_properties(MPSCNNKernel* kernel, const UnaryCall& call) {
  set_options(kernel, call.kernel);
  set_geometry(kernel, call.properties, call.clip, channels_of(call.sources),
               call.consumed_channels);
}

namespace {

// What the encodes of every kernel with two sources use.
void set_binary(MPSCNNBinaryKernel* kernel, const KernelBase& ours, const BinaryProperties& p,
                const Region& clip) {
  set_options(kernel, ours);
  kernel.primaryOffset = to_mps(p.primary.offset);
  kernel.secondaryOffset = to_mps(p.secondary.offset);
  kernel.clipRect = to_mtl(clip);
  kernel.primaryEdgeMode = static_cast<MPSImageEdgeMode>(p.primary.edge_mode);
  kernel.secondaryEdgeMode = static_cast<MPSImageEdgeMode>(p.secondary.edge_mode);
  kernel.primaryStrideInPixelsX = to_ns(p.primary.window.stride_x);
  kernel.primaryStrideInPixelsY = to_ns(p.primary.window.stride_y);
  kernel.secondaryStrideInPixelsX = to_ns(p.secondary.window.stride_x);
  kernel.secondaryStrideInPixelsY = to_ns(p.secondary.window.stride_y);
  kernel.destinationFeatureChannelOffset = to_ns(p.destination_channel_offset);
  kernel.primarySourceFeatureChannelOffset = to_ns(p.primary.channel_offset);
  kernel.secondarySourceFeatureChannelOffset = to_ns(p.secondary.channel_offset);
}

}  // namespace

void set_properties(MPSCNNBinaryKernel* kernel, const BinaryCall& call) {
  const BinaryProperties& p = call.properties;
  set_binary(kernel, call.kernel, p, call.clip);
  kernel.primarySourceFeatureChannelMaxCount =
      channel_maximum(channels_of(call.primaries), p.primary.channel_offset, call.primary_channels);
  kernel.secondarySourceFeatureChannelMaxCount = channel_maximum(
      channels_of(call.secondaries), p.secondary.channel_offset, call.secondary_channels);
}

void set_properties(MPSCNNGradientKernel* kernel, const GradientCall& call) {
  const BinaryProperties& p = call.properties;
  set_binary(kernel, call.kernel, p, call.clip);
  kernel.primarySourceFeatureChannelMaxCount = channel_maximum(
      channels_of(call.gradients), p.primary.channel_offset, call.gradient_channels);
  kernel.secondarySourceFeatureChannelMaxCount =
      channel_maximum(channels_of(call.sources), p.secondary.channel_offset, call.source_channels);
  kernel.kernelOffsetX = p.kernel_offset_x;
  kernel.kernelOffsetY = p.kernel_offset_y;
}

void encode(CommandBuffer& command_buffer, MPSCNNKernel* kernel, const UnaryCall& call) {
  set_properties(kernel, call);
  NSArray<MPSState*>* states =
      fill_states(as<MetalCommandBuffer>(command_buffer), kernel, call,
                  mps_images(call.sources, false), mps_images(call.destinations, true));
  encode_prepared(command_buffer, kernel, call, states);
}

void encode_prepared(CommandBuffer& command_buffer, MPSCNNKernel* kernel, const UnaryCall& call,
                     NSArray<MPSState*>* states) {
  auto& own = as<MetalCommandBuffer>(command_buffer);
  NSArray<MPSImage*>* sources = mps_images(call.sources, false);
  NSArray<MPSImage*>* destinations = mps_images(call.destinations, true);
  MPSCommandBuffer* buffer = own.for_kernel();
  // Some classes do not have the methods with states, not even for nil.
  if (call.batch && states != nil) {
    [kernel encodeBatchToCommandBuffer:buffer
                          sourceImages:sources
                     destinationStates:states
                     destinationImages:destinations];
  } else if (call.batch) {
    [kernel encodeBatchToCommandBuffer:buffer sourceImages:sources destinationImages:destinations];
  } else if (states != nil) {
    [kernel encodeToCommandBuffer:buffer
                      sourceImage:[sources objectAtIndex:0]
                 destinationState:[states objectAtIndex:0]
                 destinationImage:[destinations objectAtIndex:0]];
  } else {
    [kernel encodeToCommandBuffer:buffer
                      sourceImage:[sources objectAtIndex:0]
                 destinationImage:[destinations objectAtIndex:0]];
  }
  if (states != nil) {
    own.keep(states);
  }
  own.keep(sources);
  own.keep(destinations);
  own.keep(kernel);
}

void encode(CommandBuffer& command_buffer, MPSCNNGradientKernel* kernel, const GradientCall& call) {
  set_properties(kernel, call);
  encode_prepared(command_buffer, kernel, call);
}

void encode_prepared(CommandBuffer& command_buffer, MPSCNNGradientKernel* kernel,
                     const GradientCall& call) {
  auto& own = as<MetalCommandBuffer>(command_buffer);
  describe_states(own, call.states);
  NSArray<MPSState*>* states = mps_states(call.kernel.class_name(), call.states);
  NSArray<MPSImage*>* gradients = mps_images(call.gradients, false);
  NSArray<MPSImage*>* sources = mps_images(call.sources, false);
  NSArray<MPSImage*>* destinations = mps_images(call.destinations, true);
  MPSCommandBuffer* buffer = own.for_kernel();
  if (call.batch) {
    [kernel encodeBatchToCommandBuffer:buffer
                       sourceGradients:gradients
                          sourceImages:sources
                        gradientStates:states
                  destinationGradients:destinations];
  } else {
    [kernel encodeToCommandBuffer:buffer
                   sourceGradient:[gradients objectAtIndex:0]
                      sourceImage:[sources objectAtIndex:0]
                    gradientState:[states objectAtIndex:0]
              destinationGradient:[destinations objectAtIndex:0]];
  }
  own.keep_all({states, gradients, sources, destinations, kernel});
}

void encode_prepared(CommandBuffer& command_buffer, MPSCNNBinaryKernel* kernel,
                     const BinaryCall& call) {
  auto& own = as<MetalCommandBuffer>(command_buffer);
  NSArray<MPSImage*>* primaries = mps_images(call.primaries, false);
  NSArray<MPSImage*>* secondaries = mps_images(call.secondaries, false);
  NSArray<MPSImage*>* destinations = mps_images(call.destinations, true);
  if (call.batch) {
    [kernel encodeBatchToCommandBuffer:own.for_kernel()
                         primaryImages:primaries
                       secondaryImages:secondaries
                     destinationImages:destinations];
  } else {
    [kernel encodeToCommandBuffer:own.for_kernel()
                     primaryImage:[primaries objectAtIndex:0]
                   secondaryImage:[secondaries objectAtIndex:0]
                 destinationImage:[destinations objectAtIndex:0]];
  }
  own.keep_all({primaries, secondaries, destinations, kernel});
}

void encode_zeros(CommandBuffer& command_buffer, const GradientCall& call) {
  auto& own = as<MetalCommandBuffer>(command_buffer);
  NSArray<MPSImage*>* destinations = mps_images(call.destinations, true);
  own.keep(as<MetalDeviceBase>(*command_buffer.device())
               .encode_clear(own.for_kernel(), destinations,
                             {call.properties.destination_channel_offset, call.produced_channels})
               .get());
  own.keep(destinations);
}

}  // namespace mpsgrad::metal
