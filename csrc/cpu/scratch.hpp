// Scratch arrays of the threads that run kernels.
#pragma once

#include "base/types.hpp"

namespace mpsgrad::cpu {

// A float array of the calling thread, grown as needed and kept for the next piece of work. Slots
// tell apart arrays in use at the same time.
float* thread_scratch(int slot, Index floats);
// The same for elements of either type; null where none are needed.
template <class Element>
Element* scratch_of(int slot, Index elements) {
  return elements == 0 ? nullptr : reinterpret_cast<Element*>(thread_scratch(slot, elements));
}

// Gives back those of the calling thread that are too large to be kept, as the copies of wide rows
// are. For whoever runs the work, when a piece is over.
void trim_thread_scratch();

}  // namespace mpsgrad::cpu
