// bind_group_normalization: instance and group normalization, their gradients and states;
// python/mpsgrad/group_normalization.py documents the kernels.
#include "core/normalization_py.hpp"
#include "kernels/group_normalization/group_normalization.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

template <class State>
void bind_state(py::module_& m, const char* name, const char* producer, const char* doc) {
  py::class_<State, GradientState, py::smart_holder> c(m, name, doc);
  c.def_property_readonly(producer, &State::producer, "The kernel that made it.")
      .def_property_readonly("gamma", &State::gamma,
                             "`Buffer` of the kernel's scale as it is now, float32, one a channel; "
                             "None where its data source has none.")
      .def_property_readonly("beta", &State::beta,
                             "`Buffer` of the kernel's offset as it is now; None where its data "
                             "source has none.")
      .def_property_readonly("gradient_for_gamma", &State::gradient_for_gamma,
                             "`Buffer` of this image's gradient, float32, one a channel; a "
                             "StateError before a gradient encode.")
      .def_property_readonly("gradient_for_beta", &State::gradient_for_beta,
                             "`Buffer` of this image's gradient, float32, one a channel; a "
                             "StateError before a gradient encode.");
  forbid_construction(c);
}

template <class Kernel>
py::class_<Kernel, UnaryKernel, py::smart_holder> bind_forward(py::module_& m, const char* name,
                                                               bool groups) {
  return py::class_<Kernel, UnaryKernel, py::smart_holder>(m, name)
      .def(py::init([name, groups](std::shared_ptr<Device> device, const py::object& source) {
             NormalizationProtocol protocol;
             protocol.groups = groups;
             return std::make_shared<Kernel>(std::move(device),
                                             normalization_source_argument(name, source, protocol));
           }),
           "device"_a.none(false), "data_source"_a)
      .def_property_readonly(
          "data_source",
          [](const Kernel& self) { return normalization_source_object(self.data_source()); },
          "The object given to the constructor, read again by every reload from the data source; "
          "read only.")
      .def_property_readonly(
          "number_of_feature_channels", [](const Kernel& self) { return self.settings().channels; },
          "Channels of the data source.")
      .def_property(
          "epsilon", [](const Kernel& self) { return self.settings().epsilon; },
          &Kernel::set_epsilon,
          "Added to the variance under the root; float32, finite and not negative. A state keeps "
          "the value it was made with.")
      .def("reload_gamma_and_beta_from_data_source",
           &Kernel::reload_gamma_and_beta_from_data_source,
           "Read scale and offset from the data source again; work that is encoded already keeps "
           "those it was encoded with.")
      .def(
          "reload_gamma_and_beta",
          [](Kernel& self, const std::shared_ptr<CommandBuffer>& command_buffer,
             const std::shared_ptr<NormalizationGammaAndBetaState>& state) {
            self.reload_gamma_and_beta(command_buffer, state);
          },
          "command_buffer"_a.none(false), "gamma_and_beta_state"_a.none(false),
          "Encode a copy of a state's scale and offset into the kernel, for the encodes after it. "
          "Reads the state once.");
}

}  // namespace

void bind_group_normalization(py::module_& m) {
  bind_state<InstanceNormalizationGradientState>(
      m, "InstanceNormalizationGradientState", "instance_normalization",
      R"(One image's weight gradients (``MPSCNNInstanceNormalizationGradientState``).

Made by `InstanceNormalization`, one for each image. The gradient of a batch is the sum over its states.
)");
  bind_state<GroupNormalizationGradientState>(
      m, "GroupNormalizationGradientState", "group_normalization",
      R"(One image's weight gradients (``MPSCNNGroupNormalizationGradientState``).

Made by `GroupNormalization`, one for each image. The gradient of a batch is the sum over its states.
)");
  bind_forward<InstanceNormalization>(m, "InstanceNormalization", false);
  bind_forward<GroupNormalization>(m, "GroupNormalization", true)
      .def_property_readonly(
          "number_of_groups", [](const GroupNormalization& self) { return self.settings().groups; },
          "Groups of consecutive channels; read from the data source once.");
  py::class_<InstanceNormalizationGradient, GradientKernel, py::smart_holder>(
      m, "InstanceNormalizationGradient")
      .def(py::init<std::shared_ptr<Device>>(), "device"_a.none(false));
  py::class_<GroupNormalizationGradient, GradientKernel, py::smart_holder>(
      m, "GroupNormalizationGradient")
      .def(py::init<std::shared_ptr<Device>>(), "device"_a.none(false));
}

}  // namespace mpsgrad
