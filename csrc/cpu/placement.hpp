// On which processor a thread wakes. The system looks for an idle one, but the guest of a
// hypervisor may take idle processors for busy ones: then the thread waits on its waker's until a
// time slice ends, up to milliseconds, while another processor has nothing to do.
#pragma once

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

namespace mpsgrad::cpu {

// The calling thread's, -1 where that is not known.
int current_processor();

// Of one thread, which sleeps where another wakes it. Only Linux lets a program choose.
class Placement {
 public:
  // By the waker, just before: the thread is not to wake on this processor, if it may run on
  // others.
  void keep_off(int processor, pthread_t thread);
  // By the thread, as soon as it is awake: it may run again where it might before, unless somebody
  // else has said where since.
  void release(pthread_t thread);

#if defined(__linux__)
 private:
  int kept_off_ = -1;
  cpu_set_t before_{}, others_{};
#endif
};

}  // namespace mpsgrad::cpu
