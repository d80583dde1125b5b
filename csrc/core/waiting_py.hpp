// Waits that Python's other threads, and Ctrl-C, get past.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <exception>

namespace mpsgrad {

// Calls wait(limit) with the GIL released, in slices, until it returns true: so Ctrl-C ends a wait
// for what never ends.
template <class Wait>
void wait_interruptibly(const Wait& wait) {
  constexpr std::chrono::milliseconds kSlice{100};
  for (;;) {
    bool done = false;
    std::exception_ptr thrown;
    // By hand: an interpreter that is ending may end this thread where it takes the GIL back, which
    // no destructor would let pass.
    PyThreadState* const thread = PyEval_SaveThread();
    try {
      done = wait(kSlice);
    } catch (...) {
      thrown = std::current_exception();
    }
    PyEval_RestoreThread(thread);
    if (thrown) {
      std::rethrow_exception(thrown);
    }
    if (done) {
      return;
    }
    if (PyErr_CheckSignals() != 0) {
      throw pybind11::error_already_set();
    }
  }
}

}  // namespace mpsgrad
