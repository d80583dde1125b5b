// bind_softmax: kernels of the softmax family; their documentation is in python/mpsgrad/softmax.py.
#include "core/arguments_py.hpp"
#include "kernels/softmax/softmax.hpp"

namespace mpsgrad {

void bind_softmax(py::module_& m) {
  using namespace pybind11::literals;
  using Device = std::shared_ptr<Device>;
  py::class_<SoftMax, UnaryKernel, py::smart_holder>(m, "SoftMax")
      .def(py::init<Device>(), "device"_a.none(false));
  py::class_<LogSoftMax, UnaryKernel, py::smart_holder>(m, "LogSoftMax")
      .def(py::init<Device>(), "device"_a.none(false));
  py::class_<SoftMaxGradient, GradientKernel, py::smart_holder>(m, "SoftMaxGradient")
      .def(py::init<Device>(), "device"_a.none(false));
  py::class_<LogSoftMaxGradient, GradientKernel, py::smart_holder>(m, "LogSoftMaxGradient")
      .def(py::init<Device>(), "device"_a.none(false));
}

}  // namespace mpsgrad
