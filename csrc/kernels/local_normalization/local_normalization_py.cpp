// bind_local_normalization: kernels of the family; their documentation is in
// python/mpsgrad/local_normalization.py.
#include "core/arguments_py.hpp"
#include "kernels/local_normalization/local_normalization.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;
using Parameter = LocalNormalizationParameter;
using Parameters = LocalNormalizationParameters;

template <class Class>
void bind_parameter(Class& c, const char* name, Parameter parameter, float Parameters::* member,
                    const char* doc) {
  using Kernel = typename Class::type;
  c.def_property(
      name, [member](const Kernel& k) { return k.parameters().*member; },
      [parameter](Kernel& k, double value) { k.set_parameter(parameter, value); }, doc);
}

template <class Class>
void bind_base(Class& c) {
  bind_parameter(c, "alpha", Parameter::Alpha, &Parameters::alpha, "Weight of the window.");
  bind_parameter(c, "beta", Parameter::Beta, &Parameters::beta, "Exponent of the denominator.");
  bind_parameter(c, "delta", Parameter::Delta, &Parameters::delta,
                 "What the denominator's base begins with.");
}

template <class Kernel, class Base>
void bind_channels(py::module_& m, const char* name) {
  py::class_<Kernel, Base, py::smart_holder> c(m, name);
  c.def(py::init<std::shared_ptr<Device>, Index>(), "device"_a.none(false), "kernel_size"_a)
      .def_property_readonly("kernel_size", &Kernel::kernel_size, "Channels in a window.");
  bind_base(c);
}

template <class Kernel, class Base>
py::class_<Kernel, Base, py::smart_holder> bind_pixels(py::module_& m, const char* name) {
  py::class_<Kernel, Base, py::smart_holder> c(m, name);
  c.def(py::init<std::shared_ptr<Device>, Index, Index>(), "device"_a.none(false), "kernel_width"_a,
        "kernel_height"_a);
  bind_base(c);
  return c;
}

template <class Kernel, class Base>
void bind_contrast(py::module_& m, const char* name) {
  auto c = bind_pixels<Kernel, Base>(m, name);
  bind_parameter(c, "p0", Parameter::P0, &Parameters::p0, "Weight of the mean.");
  bind_parameter(c, "pm", Parameter::Pm, &Parameters::pm, "Added to the result.");
  bind_parameter(c, "ps", Parameter::Ps, &Parameters::ps, "Scale of the result.");
}

}  // namespace

void bind_local_normalization(py::module_& m) {
  bind_channels<CrossChannelNormalization, UnaryKernel>(m, "CrossChannelNormalization");
  bind_channels<CrossChannelNormalizationGradient, GradientKernel>(
      m, "CrossChannelNormalizationGradient");
  bind_pixels<SpatialNormalization, UnaryKernel>(m, "SpatialNormalization");
  bind_pixels<SpatialNormalizationGradient, GradientKernel>(m, "SpatialNormalizationGradient");
  bind_contrast<LocalContrastNormalization, UnaryKernel>(m, "LocalContrastNormalization");
  bind_contrast<LocalContrastNormalizationGradient, GradientKernel>(
      m, "LocalContrastNormalizationGradient");
}

}  // namespace mpsgrad
