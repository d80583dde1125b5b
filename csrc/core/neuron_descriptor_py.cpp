// Binds the activation descriptor that neuron kernels and fused neurons share;
// python/mpsgrad/neuron.py documents it.
#include <pybind11/native_enum.h>

#include "core/arguments_py.hpp"
#include "core/neuron_descriptor.hpp"

namespace mpsgrad {

void bind_neuron_descriptor(py::module_& m) {
  using namespace pybind11::literals;
  py::native_enum<NeuronType>(m, "NeuronType", kEnumeration,
                              "Activation functions (``MPSCNNNeuronType``).")
      .value("NONE", NeuronType::None)
      .value("RELU", NeuronType::ReLU)
      .value("LINEAR", NeuronType::Linear)
      .value("SIGMOID", NeuronType::Sigmoid)
      .value("HARD_SIGMOID", NeuronType::HardSigmoid)
      .value("TANH", NeuronType::TanH)
      .value("ABSOLUTE", NeuronType::Absolute)
      .value("SOFT_PLUS", NeuronType::SoftPlus)
      .value("SOFT_SIGN", NeuronType::SoftSign)
      .value("ELU", NeuronType::ELU)
      .value("PRELU", NeuronType::PReLU)
      .value("RELUN", NeuronType::ReLUN)
      .value("POWER", NeuronType::Power)
      .value("EXPONENTIAL", NeuronType::Exponential)
      .value("LOGARITHM", NeuronType::Logarithm)
      .value("GELU", NeuronType::GeLU)
      .finalize();
  py::class_<NeuronDescriptor>(m, "NeuronDescriptor")
      .def(py::init([](NeuronType type, float a, float b, float c, std::vector<float> data) {
             return NeuronDescriptor{type, a, b, c, std::move(data)};
           }),
           "type"_a, "a"_a, "b"_a, "c"_a, "data"_a)
      .def_readwrite("neuron_type", &NeuronDescriptor::type,
                     "`NeuronType` that says which function it is; a new one leaves the parameters "
                     "as they are.")
      .def_readwrite(
          "a", &NeuronDescriptor::a,
          "Slope below zero of RELU and RELUN, factor of TANH, SOFT_PLUS and ELU, factor "
          "of x in LINEAR, HARD_SIGMOID, POWER, EXPONENTIAL and LOGARITHM; "
          "dimensionless.")
      .def_readwrite("b", &NeuronDescriptor::b,
                     "Limit of RELUN, factor of x in TANH and SOFT_PLUS, summand in LINEAR, "
                     "HARD_SIGMOID, POWER, EXPONENTIAL and LOGARITHM; dimensionless.")
      .def_readwrite("c", &NeuronDescriptor::c,
                     "Exponent of POWER, base of EXPONENTIAL and LOGARITHM, where -1 stands for e; "
                     "dimensionless.")
      .def_readwrite("data", &NeuronDescriptor::data,
                     "Slope of PRELU below zero, one float for each channel read; a new list each "
                     "time, so assign to change it.")
      .def(
          "__eq__", [](const NeuronDescriptor& x, const NeuronDescriptor& y) { return x == y; },
          py::is_operator());
}

}  // namespace mpsgrad
