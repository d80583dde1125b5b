// Every precondition that ends the process: one line each, name and reason.
#pragma once
#import <Foundation/Foundation.h>

#define EMULATED_METAL_TRAPS(TRAP)                                                             \
  /* objects */                                                                                \
  TRAP(message_to_deallocated, "message sent to a deallocated object")                         \
  TRAP(nil_argument, "a required argument is nil")                                             \
  TRAP(foreign_object, "the object was not made by this framework")                            \
  TRAP(init_unavailable, "this initializer or method is unavailable")                          \
  TRAP(different_devices, "objects belong to different devices")                               \
  /* command buffers and encoders */                                                           \
  TRAP(encode_after_commit, "encoding into a command buffer that was already committed")       \
  TRAP(encoder_open, "another encoder of this command buffer is still open")                   \
  TRAP(encoder_ended, "the encoder has already ended")                                         \
  TRAP(encoder_released_open, "the encoder was released without endEncoding")                  \
  TRAP(fence_order, "an encoder waits for a fence that no earlier encoder has updated")        \
  TRAP(heap_fence, "a blit of heap memory is not fenced off from kernels before and after")    \
  TRAP(double_commit, "the command buffer was already committed")                              \
  TRAP(enqueue_twice, "the command buffer was already enqueued or committed")                  \
  TRAP(handler_after_commit, "a handler was added after commit")                               \
  TRAP(wait_before_commit, "waiting for a command buffer that was not committed")              \
  TRAP(wait_in_handler, "waiting for a command buffer inside its own handler")                 \
  TRAP(queue_exhausted, "every command buffer of the queue is in use and none was committed")  \
  TRAP(predicate_offset, "the predicate offset is not a multiple of 4 inside the buffer")      \
  TRAP(heap_after_commit, "heap hint for a command buffer that was already committed")         \
  /* resources */                                                                              \
  TRAP(private_cpu_access, "the CPU may not access private storage")                           \
  TRAP(cpu_write_in_flight, "the CPU writes storage that submitted work still uses")           \
  TRAP(resource_options, "the resource options are not supported")                             \
  TRAP(buffer_length, "the buffer length is 0 or exceeds the device's maximum")                \
  TRAP(buffer_range, "the range lies outside the buffer")                                      \
  TRAP(not_managed, "only managed storage can be synchronized")                                \
  TRAP(texture_descriptor, "the texture descriptor is not valid")                              \
  TRAP(texture_region, "the region lies outside the texture")                                  \
  TRAP(texture_bytes_per_row, "bytesPerRow is too small")                                      \
  TRAP(texture_view, "the texture view does not fit its parent")                               \
  TRAP(texture_copy, "source and destination textures differ in size or format")               \
  TRAP(heap_full, "the resource does not fit into the heap or differs from its mode")          \
  /* images */                                                                                 \
  TRAP(image_descriptor, "the image descriptor is not valid")                                  \
  TRAP(image_texture, "the texture cannot hold that many feature channels")                    \
  TRAP(image_index, "the image index is outside the image")                                    \
  TRAP(image_region, "the region lies outside the image")                                      \
  TRAP(image_channel_info, "the feature channel range is not valid")                           \
  TRAP(image_data_layout, "the data layout or a stride is not valid")                          \
  TRAP(image_sub_range, "the sub-range is not valid")                                          \
  TRAP(temporary_cpu_access, "the CPU may not access a temporary image")                       \
  TRAP(temporary_other_buffer, "a temporary object is used on another command buffer")         \
  TRAP(temporary_count_zero, "the read count of a temporary object is already 0")              \
  TRAP(temporary_released_unread, "a temporary object was released with a read count above 0") \
  TRAP(read_count_overrun, "the read count would fall below 0")                                \
  TRAP(prefetch_not_private, "prefetch needs descriptors with private storage")                \
  TRAP(batch_empty, "the batch is empty")                                                      \
  /* states */                                                                                 \
  TRAP(state_resource_index, "the resource index is outside the state")                        \
  TRAP(state_not_temporary, "only temporary states have a read count")                         \
  TRAP(state_wrong_class, "the state is of another class than the kernel needs")               \
  TRAP(state_foreign_kernel, "the state was made by or for another kernel")                    \
  TRAP(state_not_encoded, "the state was not filled by a forward encode")                      \
  /* kernels */                                                                                \
  TRAP(abstract_kernel, "this class is abstract")                                              \
  TRAP(kernel_parameters, "a parameter of the kernel is not valid")                            \
  TRAP(coder_device, "the coder knows no device")                                              \
  TRAP(source_read_count, "source read count is 0")                                            \
  TRAP(destination_read_count, "destination read count is 0")                                  \
  TRAP(state_read_count, "state read count is 0")                                              \
  TRAP(source_usage, "a source does not allow shader reads")                                   \
  TRAP(destination_usage, "a destination does not allow shader writes")                        \
  TRAP(destination_aliases_source, "a destination shares storage with a source")               \
  TRAP(batch_length, "batches differ in length")                                               \
  TRAP(batch_descriptor, "images of a batch differ in size, channels or format")               \
  TRAP(batch_number_of_images, "images of a batch must hold one image each")                   \
  TRAP(offset_z, "the offset's z is negative or exceeds the source images")                    \
  TRAP(clip_z, "the clip rectangle's images exceed the destination")                           \
  TRAP(channel_offset, "a feature channel offset is not a multiple of 4")                      \
  TRAP(source_channels, "the source holds too few feature channels")                           \
  TRAP(destination_channels, "the produced feature channels do not fit the destination")       \
  TRAP(edge_mode, "the edge mode is not supported by this kernel")                             \
  TRAP(padding_method, "the padding method is not valid")                                      \
  TRAP(padding_custom, "the custom padding object lacks its method")                           \
  TRAP(padding_size, "the padding policy leaves no result")                                    \
  TRAP(allocator_result, "the image allocator returned nothing or another number of images")   \
  TRAP(source_count, "the number of source images differs from the kernel's")                  \
  TRAP(kernel_changed, "the kernel changed after it made the result state")                    \
  TRAP(gradient_shape, "gradient, source image and state do not fit together")                 \
  TRAP(stateless_gradient, "a gradient kernel needs its state")                                \
  TRAP(neuron_type, "the neuron type is not valid")                                            \
  TRAP(neuron_data, "the neuron data is missing or too short")                                 \
  /* convolution */                                                                            \
  TRAP(convolution_descriptor, "the convolution descriptor is not valid")                      \
  TRAP(data_source, "the data source returned unusable data")                                  \
  TRAP(weights_precision, "data type, kernel weights and accumulator do not go together")      \
  TRAP(weights_state, "the weights state does not fit the descriptor")                         \
  TRAP(state_not_shared, "the states of a batch are not one object")                           \
  TRAP(state_not_distinct, "one state is used for two images")                                 \
  TRAP(fused_neuron_gradient, "a fused neuron or batch normalization has no gradient")         \
  TRAP(sub_pixel_gradient, "sub-pixel convolution has no gradient")                            \
  TRAP(gradient_option, "the gradient option is not valid")                                    \
  TRAP(gradient_extent, "the gradient differs in size from the forward clip rectangle")        \
  TRAP(fully_connected_shape, "window, source and destination do not fit a full connection")   \
  /* vectors and matrices */                                                                   \
  TRAP(array_descriptor, "the vector or matrix descriptor is not valid")                       \
  TRAP(array_buffer, "the vector or matrix does not fit its buffer")                           \
  /* losses */                                                                                 \
  TRAP(loss_descriptor, "the loss descriptor is not valid")                                    \
  TRAP(loss_geometry, "a loss kernel takes no offset and no clip rectangle")                   \
  TRAP(loss_image_size, "the loss image does not fit the reduction")                           \
  TRAP(labels_missing, "a loss kernel needs labels")                                           \
  TRAP(labels_size, "labels or weights differ in size from the source")                        \
  TRAP(labels_repeated, "one labels object is used for two images")                            \
  /* normalization and dropout */                                                              \
  TRAP(normalization_state, "the buffers of the state do not fit the feature channels")        \
  TRAP(normalization_phase, "the normalization state is not in the right phase")               \
  TRAP(normalization_geometry, "this kernel takes no offset and no clip rectangle")            \
  TRAP(dropout_parameters, "keepProbability or mask stride is not valid")                      \
  /* Gram matrices */                                                                          \
  TRAP(gram_geometry, "this kernel takes no offset and no clip rectangle")                     \
  TRAP(gram_shape, "the matrix is not one row of as many pixels as it has channels")           \
  /* arithmetic */                                                                             \
  TRAP(arithmetic_stride, "a stride is not 0 or 1, or not that of the forward kernel")         \
  TRAP(arithmetic_limits, "minimumValue exceeds maximumValue, or is NaN")                      \
  TRAP(arithmetic_channels, "the feature channels of the sources differ")                      \
  /* reductions */                                                                             \
  TRAP(reduction_region, "a source clip rectangle leaves nothing, or less than is written")    \
  TRAP(reduction_channels, "the feature channels of the sources differ")                       \
  /* resize */                                                                                 \
  TRAP(resize_regions, "where the results of several regions go is not documented")            \
  TRAP(resize_edge, "this kernel has an extrapolation value in place of an edge mode")         \
  TRAP(grid_channels, "a grid has two feature channels")                                       \
  TRAP(grid_stride, "a stride of a grid sample is not 1")                                      \
  /* optimizers */                                                                             \
  TRAP(optimizer_settings, "a setting of the optimizer is not valid")                          \
  TRAP(optimizer_lengths, "gradients, values, history and result differ in length")            \
  TRAP(optimizer_data_type, "optimizers work on Float32")                                      \
  TRAP(optimizer_history, "the history vectors are missing or not one or two")                 \
  TRAP(optimizer_aliasing, "history shares storage with gradients, values or result")          \
  /* graphs */                                                                                 \
  TRAP(node_source_count, "the node takes another number of source images")                    \
  TRAP(node_gradient_missing, "this node has no gradient node")                                \
  TRAP(node_gradient_several, "this node has several gradient nodes: ask for all of them")     \
  TRAP(node_gradient_sources, "one image holds the gradient of a node's result")               \
  TRAP(training_style, "the training style is not None, CPU or GPU")                           \
  TRAP(graph_results, "a result is not produced by a filter, comes twice, or there is none")   \
  TRAP(graph_source_images, "the number of source batches differs from the graph's")           \
  TRAP(graph_source_states, "the number of state batches differs from the graph's")            \
  TRAP(graph_batch_length, "the batches of a graph's sources differ in length")                \
  TRAP(graph_state_class, "a source state is not of the class that its node stands for")       \
  TRAP(graph_source_index, "the graph has no source of that index")                            \
  TRAP(graph_read_count, "the read count of a source is below the graph's reads of it")        \
  TRAP(graph_concatenation, "the sources of a concatenation differ in size")                   \
  TRAP(graph_reload, "a graph reloads its data sources while work of it has not completed")    \
  TRAP(graph_deadlock, "an encode waits for a CPU update whose buffer is not committed")       \
  TRAP(update_read_count, "an update must lower the read count of each of its states by one")  \
  TRAP(update_state, "an update returned a state of another class")

namespace emulated_metal {

enum class Trap {
#define EMULATED_METAL_ENUM(name, text) name,
  EMULATED_METAL_TRAPS(EMULATED_METAL_ENUM)
#undef EMULATED_METAL_ENUM
};

// The call whose contract is broken: an object or class with a selector, or a C function.
struct Where {
  id object;
  SEL selector;
  const char* function = nullptr;
};

// Prints class, selector and reason on stderr and aborts. `detail` may add values.
[[noreturn]] void spring(Trap trap, const Where& where);
[[noreturn]] void spring(Trap trap, const Where& where, const char* detail, ...)
    __attribute__((format(printf, 3, 4)));

}  // namespace emulated_metal

#define HERE (::emulated_metal::Where{self, _cmd})
#define FUNCTION (::emulated_metal::Where{nil, nullptr, __func__})
// Details are evaluated only when the condition fails.
#define REQUIRE(condition, trap, where, ...)                                                    \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      ::emulated_metal::spring(::emulated_metal::Trap::trap, where __VA_OPT__(, ) __VA_ARGS__); \
    }                                                                                           \
  } while (false)
