// Binds the measurements of peaks.hpp for the benchmarks.
#include <pybind11/pybind11.h>

#include "cpu/peaks.hpp"

namespace py = pybind11;

namespace mpsgrad {

void bind_peaks(py::module_& m) {
  m.def("fma_peak", &cpu::fma_peak, py::arg("seconds"), py::call_guard<py::gil_scoped_release>(),
        R"(Measure the most floating-point operations a second that one thread can do.

Multiply-adds in registers, on the selected instruction set; each counts as two operations.

Parameters
----------
seconds : float
    How long to measure.

Returns
-------
float
    Operations a second, the best of many short runs.

Raises
------
ValueError
    If ``seconds`` is not a positive number.
)");
  m.def("copy_bandwidth", &cpu::copy_bandwidth, py::arg("bytes"), py::arg("streaming"),
        py::arg("seconds"), py::call_guard<py::gil_scoped_release>(),
        R"(Measure how fast one thread copies an array.

Parameters
----------
bytes : int
    Size of the array.
streaming : bool
    Whether to use stores that bypass the caches.
seconds : float
    How long to measure; there are at least three runs.

Returns
-------
float
    Bytes read plus bytes written a second, the best of the runs.

Raises
------
ValueError
    If ``bytes`` is below 4 or ``seconds`` is not a positive number.
)");
  m.def("read_bandwidth", &cpu::read_bandwidth, py::arg("bytes"), py::arg("seconds"),
        py::call_guard<py::gil_scoped_release>(),
        R"(Measure how fast one thread reads an array of which it writes nothing.

Parameters
----------
bytes : int
    Size of the array.
seconds : float
    How long to measure; there are at least three runs.

Returns
-------
float
    Bytes a second, the best of the runs.

Raises
------
ValueError
    If ``bytes`` is below 4 or ``seconds`` is not a positive number.
)");
}

}  // namespace mpsgrad
