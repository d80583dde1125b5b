// bind_neuron: descriptor and kernels of the neuron family; their documentation is in
// python/mpsgrad/neuron.py.
#include "core/arguments_py.hpp"
#include "kernels/neuron/neuron.hpp"

namespace mpsgrad {

void bind_neuron(py::module_& m) {
  using namespace pybind11::literals;
  py::class_<Neuron, UnaryKernel, py::smart_holder>(m, "Neuron")
      .def(py::init<std::shared_ptr<Device>, NeuronDescriptor>(), "device"_a.none(false),
           "descriptor"_a)
      .def_property_readonly(
          "descriptor", [](const Neuron& self) { return self.neuron(); },
          "A copy of the activation it was made with; read only.");
  py::class_<NeuronGradient, GradientKernel, py::smart_holder>(m, "NeuronGradient")
      .def(py::init<std::shared_ptr<Device>, NeuronDescriptor>(), "device"_a.none(false),
           "descriptor"_a)
      .def_property_readonly(
          "descriptor", [](const NeuronGradient& self) { return self.neuron(); },
          "A copy of the activation it was made with; read only.");
}

}  // namespace mpsgrad
