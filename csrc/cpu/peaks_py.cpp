// Binds the measurements of peaks.hpp for the benchmarks.
#include <pybind11/pybind11.h>

#include "cpu/peaks.hpp"

namespace py = pybind11;

namespace mpsgrad {

void bind_peaks(py::module_& m) {
  using namespace py::literals;
  m.def("fma_peak", &cpu::fma_peak, "seconds"_a, py::call_guard<py::gil_scoped_release>());
  m.def("copy_bandwidth", &cpu::copy_bandwidth, "bytes"_a, "streaming"_a, "seconds"_a,
        py::call_guard<py::gil_scoped_release>());
}

}  // namespace mpsgrad
