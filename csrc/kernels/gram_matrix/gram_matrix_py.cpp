// bind_gram_matrix: kernels of the family; their documentation is in
// python/mpsgrad/gram_matrix.py.
#include "core/arguments_py.hpp"
#include "kernels/gram_matrix/gram_matrix.hpp"

namespace mpsgrad {
namespace {

template <class Kernel, class Base>
void bind_kernel(py::module_& m, const char* name, const char* alpha) {
  using namespace pybind11::literals;
  py::class_<Kernel, Base, py::smart_holder>(m, name)
      .def(py::init<std::shared_ptr<Device>, double>(), "device"_a.none(false), "alpha"_a = 1.0)
      .def_property("alpha", &Kernel::alpha, &Kernel::set_alpha, alpha);
}

}  // namespace

void bind_gram_matrix(py::module_& m) {
  bind_kernel<GramMatrixCalculation, UnaryKernel>(m, "GramMatrixCalculation",
                                                  "Factor of the result.");
  bind_kernel<GramMatrixCalculationGradient, GradientKernel>(
      m, "GramMatrixCalculationGradient",
      "Factor of the result; the state that an encode is given replaces it.");
}

}  // namespace mpsgrad
