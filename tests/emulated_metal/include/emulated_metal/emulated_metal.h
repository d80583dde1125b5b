// Switches and counters of the emulator, for the programs and test runners that use it.
#pragma once

#define EMULATED_METAL_EXPORT extern "C" __attribute__((visibility("default")))

// Options, also read from the environment as EMULATED_METAL_<NAME IN CAPITALS>:
//   devices            how many devices exist (1)
//   unified_memory     1: as Apple's GPUs, managed and shared storage need no synchronization;
//   2: as Intel's, no shared textures, and managed storage does need it (0)
//   delay_us           time that a command buffer takes before its first command (100)
//   stagger_us         extra time for all queues of a device but the newest, so that they overtake
//   (0) fail_next          MTLCommandBufferError with which the next committed buffer ends (0:
//   none) fail_after         number of committed buffers that still succeed before fail_next
//   applies (0) callback_thread    1: data sources are called from another thread (1) leaks at
//   exit: 2 fails the process, 1 reports, 0 is silent (2)
// Answers where Apple's documentation is silent, other than what mpsgrad assumes:
//   padding_rounds_down  1: an odd or negative share of padding is rounded down, not to zero (0)
//   shared_source_reads  1: an image that is both sources of an encode counts one read, not two (2)
//   state_encode_steps   2: an optimizer's encode of a state counts a step for each parameter (1)
//   batch_gradients_late 1: gradients of gamma and beta appear with the gradient of the source (0)
//   graph_pieces         2: a graph does not ask its MPSCommandBuffer to commit, it just does (1)
// Returns 0, or -1 for a name that is not listed.
EMULATED_METAL_EXPORT int emulated_metal_set_option(const char* name, long value);
EMULATED_METAL_EXPORT long emulated_metal_get_option(const char* name);

// Emulated objects alive now, devices excepted.
EMULATED_METAL_EXPORT long emulated_metal_live_objects(void);
// Prints live objects by class on stderr; returns their number.
EMULATED_METAL_EXPORT long emulated_metal_report_leaks(void);
// Blocks until no committed command buffer is still running.
EMULATED_METAL_EXPORT void emulated_metal_wait_idle(void);

// The table of preconditions: how many there are, the name and the text of each.
EMULATED_METAL_EXPORT int emulated_metal_trap_count(void);
EMULATED_METAL_EXPORT const char* emulated_metal_trap_name(int index);
EMULATED_METAL_EXPORT const char* emulated_metal_trap_text(int index);
