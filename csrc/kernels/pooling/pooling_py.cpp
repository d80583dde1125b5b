// bind_pooling: kernels of the pooling family; their documentation is in python/mpsgrad/pooling.py.
#include "core/arguments_py.hpp"
#include "kernels/pooling/pooling.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

template <class Kernel, class Base>
py::class_<Kernel, Base, py::smart_holder> bind_kernel(py::module_& m, const char* name) {
  return py::class_<Kernel, Base, py::smart_holder>(m, name).def(
      py::init([](const std::shared_ptr<Device>& device, Index width, Index height, Index stride_x,
                  Index stride_y) {
        return std::make_shared<Kernel>(device, Window{width, height, stride_x, stride_y, 1, 1});
      }),
      "device"_a.none(false), "kernel_width"_a, "kernel_height"_a, "stride_in_pixels_x"_a,
      "stride_in_pixels_y"_a);
}

template <class Kernel, class Base>
void bind_dilated(py::module_& m, const char* name) {
  py::class_<Kernel, Base, py::smart_holder>(m, name).def(
      py::init([](const std::shared_ptr<Device>& device, Index width, Index height,
                  Index dilation_x, Index dilation_y, Index stride_x, Index stride_y) {
        return std::make_shared<Kernel>(
            device, Window{width, height, stride_x, stride_y, dilation_x, dilation_y});
      }),
      "device"_a.none(false), "kernel_width"_a, "kernel_height"_a, "dilation_rate_x"_a,
      "dilation_rate_y"_a, "stride_in_pixels_x"_a, "stride_in_pixels_y"_a);
}

template <class Class>
void bind_zero_pad(Class&& c) {
  using Kernel = typename std::decay_t<Class>::type;
  c.def_property(
       "zero_pad_size_x", [](const Kernel& k) { return k.zero_pad().x; },
       [](Kernel& k, Index value) { k.set_zero_pad(false, value); },
       "Width of a border of counted zeros on the left and on the right; only with CLAMP.")
      .def_property(
          "zero_pad_size_y", [](const Kernel& k) { return k.zero_pad().y; },
          [](Kernel& k, Index value) { k.set_zero_pad(true, value); },
          "Height of a border of counted zeros at the top and at the bottom; only with CLAMP.");
}

using SizeOrNone = OneOf<std::vector<IntegerOrNone>, py::none>;

// None, or a part that is None, is no limit.
Size size_in(const PoolingGradient& kernel, const SizeOrNone& value) {
  if (value.is_none()) {
    return {kUnlimited, kUnlimited, kUnlimited};
  }
  require<TypeError>(
      py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value), kernel.class_name(),
      ": source_size must be None or (width, height) or (width, height, depth), got ",
      type_name(value));
  const py::sequence parts = value;
  require(py::len(parts) == 2 || py::len(parts) == 3, kernel.class_name(),
          ": source_size must have 2 or 3 numbers, got ", py::len(parts));
  const auto part = [&](std::size_t i) {
    return py::len(parts) <= i
               ? kUnlimited
               : integer_or(parts[i], kUnlimited, kernel.class_name(), ": source_size");
  };
  return {part(0), part(1), part(2)};
}

OneOf<py::tuple, py::none> size_out(const Size& size) {
  if (size == Size{kUnlimited, kUnlimited, kUnlimited}) {
    return py::none();
  }
  const auto part = [](Index value) {
    return value == kUnlimited ? py::object(py::none()) : py::object(py::int_(value));
  };
  return py::make_tuple(part(size.width), part(size.height), part(size.depth));
}

}  // namespace

void bind_pooling(py::module_& m) {
  py::class_<Pooling, UnaryKernel, py::smart_holder>(
      m, "Pooling", "Base class of all pooling kernels (``MPSCNNPooling``); never made directly.");
  bind_kernel<PoolingMax, Pooling>(m, "PoolingMax");
  bind_zero_pad(bind_kernel<PoolingAverage, Pooling>(m, "PoolingAverage"));
  bind_kernel<PoolingL2Norm, Pooling>(m, "PoolingL2Norm");
  bind_dilated<DilatedPoolingMax, Pooling>(m, "DilatedPoolingMax");

  py::class_<PoolingGradient, GradientKernel, py::smart_holder>(
      m, "PoolingGradient",
      "Base class of all pooling gradients (``MPSCNNPoolingGradient``); never made directly.")
      .def_property_readonly(
          "stride_in_pixels_x", [](const PoolingGradient& k) { return k.window().stride_x; },
          "Columns from one window of the forward pooling to the next; read only.")
      .def_property_readonly(
          "stride_in_pixels_y", [](const PoolingGradient& k) { return k.window().stride_y; },
          "Rows from one window of the forward pooling to the next; read only.")
      .def_property(
          "source_size", [](const PoolingGradient& k) { return size_out(k.source_size()); },
          [](PoolingGradient& k, const SizeOrNone& value) { k.set_source_size(size_in(k, value)); },
          "Part of the incoming gradient that counts, from `primary_offset` on: (width, height, "
          "depth), None for no limit.");
  bind_kernel<PoolingMaxGradient, PoolingGradient>(m, "PoolingMaxGradient");
  bind_zero_pad(bind_kernel<PoolingAverageGradient, PoolingGradient>(m, "PoolingAverageGradient"));
  bind_kernel<PoolingL2NormGradient, PoolingGradient>(m, "PoolingL2NormGradient");
  bind_dilated<DilatedPoolingMaxGradient, PoolingGradient>(m, "DilatedPoolingMaxGradient");
}

}  // namespace mpsgrad
