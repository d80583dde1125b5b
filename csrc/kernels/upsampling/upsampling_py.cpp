// bind_upsampling: kernels of the upsampling family; their documentation is in
// python/mpsgrad/upsampling.py.
#include "core/arguments_py.hpp"
#include "kernels/upsampling/upsampling.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

// Of Apple's type: a double that holds a whole number.
template <class Class>
void bind_factors(Class&& c) {
  using Kernel = typename std::decay_t<Class>::type;
  c.def_property_readonly(
       "scale_factor_x", [](const Kernel& k) { return static_cast<double>(k.factors().x); },
       "Columns of the larger image for one of the smaller.")
      .def_property_readonly(
          "scale_factor_y", [](const Kernel& k) { return static_cast<double>(k.factors().y); },
          "Rows of the larger image for one of the smaller.");
}

template <class Kernel, class Base>
void bind_kernel(py::module_& m, const char* name) {
  py::class_<Kernel, Base, py::smart_holder>(m, name).def(
      py::init<std::shared_ptr<Device>, double, double>(), "device"_a.none(false),
      "integer_scale_factor_x"_a, "integer_scale_factor_y"_a);
}

}  // namespace

void bind_upsampling(py::module_& m) {
  bind_factors(
      py::class_<Upsampling, UnaryKernel, py::smart_holder>(
          m, "Upsampling",
          "Base class of all upsampling kernels (``MPSCNNUpsampling``); never made directly.")
          .def_property_readonly("align_corners", &Upsampling::align_corners,
                                 "Whether the corner pixels of source and result coincide."));
  bind_kernel<UpsamplingNearest, Upsampling>(m, "UpsamplingNearest");
  py::class_<UpsamplingBilinear, Upsampling, py::smart_holder>(m, "UpsamplingBilinear")
      .def(py::init<std::shared_ptr<Device>, double, double, bool>(), "device"_a.none(false),
           "integer_scale_factor_x"_a, "integer_scale_factor_y"_a, "align_corners"_a);

  bind_factors(py::class_<UpsamplingGradient, GradientKernel, py::smart_holder>(
      m, "UpsamplingGradient",
      "Base class of all upsampling gradients (``MPSCNNUpsamplingGradient``); never made "
      "directly."));
  bind_kernel<UpsamplingNearestGradient, UpsamplingGradient>(m, "UpsamplingNearestGradient");
  bind_kernel<UpsamplingBilinearGradient, UpsamplingGradient>(m, "UpsamplingBilinearGradient");
}

}  // namespace mpsgrad
