// bind_arithmetic: kernels of the arithmetic family; their documentation is in
// python/mpsgrad/arithmetic.py.
#include <pybind11/native_enum.h>

#include "core/arguments_py.hpp"
#include "kernels/arithmetic/arithmetic.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;
using Settings = ArithmeticSettings;

template <class Class>
void bind_number(Class& c, const char* name, ArithmeticNumber number, const char* doc) {
  using Kernel = typename Class::type;
  c.def_property(
      name, [=](const Kernel& k) { return k.settings().*number; },
      [=](Kernel& k, float value) { k.set_number(name, number, value); }, doc);
}

template <class Class>
void bind_limits(Class& c) {
  bind_number(c, "minimum_value", &Settings::minimum_value,
              "Least result, float32; at first -FLT_MAX.");
  bind_number(c, "maximum_value", &Settings::maximum_value,
              "Greatest result, float32; at first FLT_MAX.");
}

void bind_forward(py::module_& m) {
  using Kernel = Arithmetic;
  py::class_<Kernel, ForwardBinaryKernel, py::smart_holder> c(
      m, "Arithmetic",
      R"(Element by element, with broadcasting by stride (``MPSCNNArithmetic``); never made directly.

The result r of ``primary_scale * x`` and ``secondary_scale * y``, plus ``bias``, is limited to
``minimum_value`` and ``maximum_value``. A source with a stride of 0 along an axis is read at one place for all of it:
at its offset.
)");
  bind_number(c, "primary_scale", &Settings::primary_scale,
              "Factor of the primary source, float32.");
  bind_number(c, "secondary_scale", &Settings::secondary_scale,
              "Factor of the secondary source, float32.");
  bind_number(c, "bias", &Settings::bias, "Added to the result, float32.");
  bind_limits(c);
  for (const bool secondary : {false, true}) {
    c.def_property(
        secondary ? "secondary_stride_in_feature_channels" : "primary_stride_in_feature_channels",
        [=](const Kernel& k) { return k.settings().channel_stride(secondary); },
        [=](Kernel& k, Index value) { k.set_channel_stride(secondary, value); },
        "1, or 0 to use the first channel read for all channels of the result.");
  }
}

template <class Kernel>
void bind_operation(py::module_& m, const char* name) {
  py::class_<Kernel, Arithmetic, py::smart_holder>(m, name).def(py::init<std::shared_ptr<Device>>(),
                                                                "device"_a.none(false));
}

void bind_compare(py::module_& m) {
  py::native_enum<ComparisonType>(m, "ComparisonType", kEnumeration,
                                  "What `Compare` asks, the primary source on the left "
                                  "(``MPSNNComparisonType``).")
      .value("EQUAL", ComparisonType::Equal)
      .value("NOT_EQUAL", ComparisonType::NotEqual)
      .value("LESS", ComparisonType::Less)
      .value("LESS_OR_EQUAL", ComparisonType::LessOrEqual)
      .value("GREATER", ComparisonType::Greater)
      .value("GREATER_OR_EQUAL", ComparisonType::GreaterOrEqual)
      .finalize();
  py::class_<Compare, Arithmetic, py::smart_holder> c(m, "Compare");
  c.def(py::init<std::shared_ptr<Device>>(), "device"_a.none(false));
  c.def_property("comparison_type", &Compare::comparison_type, &Compare::set_comparison_type,
                 "A `ComparisonType`; at first EQUAL.");
  bind_number(c, "threshold", &Settings::threshold,
              "Largest difference of values that count as equal, float32; at first 0.");
}

void bind_gradients(py::module_& m) {
  using Kernel = ArithmeticGradient;
  py::class_<Kernel, GradientKernel, py::smart_holder> c(
      m, "ArithmeticGradient",
      R"(Gradient of an `Arithmetic` kernel with respect to one source (``MPSCNNArithmeticGradient``).

Never made directly. The scales are the caller's to set; they are not copied from the forward kernel.
)");
  bind_number(c, "primary_scale", &Settings::primary_scale,
              "Factor of the incoming gradient, float32.");
  bind_number(c, "secondary_scale", &Settings::secondary_scale,
              "Factor of the source that a product's gradient reads, float32.");
  bind_number(c, "bias", &Settings::bias, "Not used by the backward pass, float32.");
  bind_limits(c);
  c.def_property(
      "secondary_stride_in_feature_channels",
      [](const Kernel& k) { return k.settings().secondary_channel_stride; },
      &Kernel::set_secondary_channel_stride,
      "1, or 0 where the forward kernel broadcast the image passed as ``source``.");
  c.def_property_readonly("is_secondary_source_filter", &Kernel::is_secondary_source_filter,
                          "Whether the gradient is with respect to the secondary source.");
}

template <class Kernel>
void bind_gradient(py::module_& m, const char* name) {
  py::class_<Kernel, ArithmeticGradient, py::smart_holder>(m, name).def(
      py::init<std::shared_ptr<Device>, bool>(), "device"_a.none(false),
      "is_secondary_source_filter"_a);
}

}  // namespace

void bind_arithmetic(py::module_& m) {
  bind_forward(m);
  bind_operation<Add>(m, "Add");
  bind_operation<Subtract>(m, "Subtract");
  bind_operation<Multiply>(m, "Multiply");
  bind_operation<Divide>(m, "Divide");
  bind_compare(m);
  bind_gradients(m);
  bind_gradient<AddGradient>(m, "AddGradient");
  bind_gradient<SubtractGradient>(m, "SubtractGradient");
  bind_gradient<MultiplyGradient>(m, "MultiplyGradient");
  py::class_<ArithmeticGradientState, BinaryGradientState, py::smart_holder> state(
      m, "ArithmeticGradientState",
      "What the gradients of an `Arithmetic` kernel need of its encode, one an image: sizes, "
      "strides and offsets, and where the result was clamped (``MPSCNNArithmeticGradientState``).");
  forbid_construction(state);
}

}  // namespace mpsgrad
