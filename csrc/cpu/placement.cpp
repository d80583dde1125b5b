// Placement by the sets of processors that threads may run on.
#include "cpu/placement.hpp"

#include <cstddef>

namespace mpsgrad::cpu {

#if defined(__linux__)

int current_processor() { return sched_getcpu(); }

void Placement::keep_off(int processor, pthread_t thread) {
  if (processor < 0 || processor == kept_off_) {
    return;
  }
  release(thread);
  if (pthread_getaffinity_np(thread, sizeof(before_), &before_) != 0) {
    return;  // more processors than a set has room for
  }
  others_ = before_;
  CPU_CLR(static_cast<std::size_t>(processor), &others_);
  if (CPU_COUNT(&others_) > 0 && pthread_setaffinity_np(thread, sizeof(others_), &others_) == 0) {
    kept_off_ = processor;
  }
}

void Placement::release(pthread_t thread) {
  if (kept_off_ < 0) {
    return;
  }
  kept_off_ = -1;
  cpu_set_t now;
  if (pthread_getaffinity_np(thread, sizeof(now), &now) == 0 && CPU_EQUAL(&now, &others_) != 0) {
    pthread_setaffinity_np(thread, sizeof(before_), &before_);
  }
}

#else

int current_processor() { return -1; }
void Placement::keep_off(int /*processor*/, pthread_t /*thread*/) {}
void Placement::release(pthread_t /*thread*/) {}

#endif

}  // namespace mpsgrad::cpu
