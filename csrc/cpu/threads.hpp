// The one thread pool of the CPU device. What is added to what, and in which order, never depends
// on the number of threads, so results are the same bits at any setting.
#pragma once

#include "base/types.hpp"

namespace mpsgrad::cpu {

int thread_count();
void set_thread_count(int count);  // 1 to 1024; throws std::invalid_argument

using Chunk = void (*)(void* context, Index index);
void run_chunks(Index count, Chunk chunk, void* context);

// Calls body(0) .. body(count - 1), in any order, on the pool; returns when all are done. The first
// exception thrown by a body is rethrown. Called from inside a body, or while another thread uses
// the pool, it runs in the calling thread.
template <class Body>
void parallel_for(Index count, const Body& body) {
  run_chunks(
      count, [](void* context, Index index) { (*static_cast<const Body*>(context))(index); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// How many chunks of up to `target` items there are.
constexpr Index chunks_of(Index items, Index target) {
  return items <= 0 ? 0 : ceil_div(items, target);
}

}  // namespace mpsgrad::cpu
