// bind_dropout: the dropout kernels and their state; the kernels are documented in
// python/mpsgrad/dropout.py.
#include <pybind11/numpy.h>

#include <algorithm>
#include <vector>

#include "core/arguments_py.hpp"
#include "core/numbers_py.hpp"
#include "core/waiting_py.hpp"
#include "kernels/dropout/dropout.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

std::uint64_t seed_argument(const char* who, const py::handle& object) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (!number) {
    PyErr_Clear();
    fail<TypeError>(who, ": seed must be an integer, got ", type_name(object));
  }
  const unsigned long long seed = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    fail(who, ": seed must lie between 0 and 2^64 - 1, got ", std::string(py::str(number)));
  }
  return seed;
}

DropoutSettings settings_argument(const char* who, float keep_probability, const Integer& seed,
                                  const Integers& stride) {
  const std::string name = text(who, ": mask_stride_in_pixels");
  require<TypeError>(is_sequence(stride), name, " must be (width, height, depth), got ",
                     type_name(stride));
  require(py::len(stride) == 3, name, " must be (width, height, depth), got ", py::len(stride),
          " numbers");
  std::vector<Index> strides;
  for (const auto& item : stride) {
    strides.push_back(integer(item, name));
  }
  return {keep_probability, seed_argument(who, seed), {strides[0], strides[1], strides[2]}};
}

template <class Kernel, class Base>
void bind_kernel(py::module_& m, const char* name) {
  py::class_<Kernel, Base, py::smart_holder>(m, name)
      .def(py::init([name](std::shared_ptr<Device> device, float keep_probability,
                           const Integer& seed, const Integers& stride) {
             return std::make_shared<Kernel>(
                 std::move(device), settings_argument(name, keep_probability, seed, stride));
           }),
           "device"_a.none(false), "keep_probability"_a, "seed"_a, "mask_stride_in_pixels"_a)
      .def_property_readonly(
          "keep_probability", [](const Kernel& self) { return self.settings().keep_probability; },
          "Probability that an element is kept, a float32.")
      .def_property_readonly(
          "seed", [](const Kernel& self) { return self.settings().seed; },
          "Seed of the random numbers.")
      .def_property_readonly(
          "mask_stride_in_pixels",
          [](const Kernel& self) {
            const MaskStride& stride = self.settings().stride;
            return py::make_tuple(stride.width, stride.height, stride.depth);
          },
          "(width, height, depth): 1 for a random value at every position, 0 for a shared one.");
}

py::array_t<float> mask_array(const MaskShape& shape) {
  return py::array_t<float>(
      std::vector<py::ssize_t>{shape.images, shape.height, shape.width, shape.channels});
}

py::array_t<float> get_mask(DropoutGradientState& state) {
  auto mask = mask_array(state.shape());
  // Encodes hold the lock while they replace a mask, so the copy does too.
  state.read_mask(mask.mutable_data(), [](CommandBuffer& command_buffer) {
    wait_interruptibly([&](auto limit) { return command_buffer.wait_until_completed(limit); });
  });
  return mask;
}

void set_mask(DropoutGradientState& state, const OneOf<py::array_t<float>>& object) {
  const char* const who = "DropoutGradientState.mask";
  const auto given = py::array::ensure(object);
  if (!given) {
    PyErr_Clear();
    fail<TypeError>(who, " must be an array, got ", type_name(object));
  }
  require<TypeError>(std::string("biuf").find(given.dtype().kind()) != std::string::npos, who,
                     " must hold numbers, got ", std::string(py::str(given.dtype())));
  const auto mask = mask_array(state.shape());
  const bool same = given.ndim() == mask.ndim() &&
                    std::equal(given.shape(), given.shape() + given.ndim(), mask.shape());
  require(same, who, " must have shape ", shape_text(mask), ", got ", shape_text(given));
  const py::array_t<float, py::array::c_style | py::array::forcecast> numbers(given);
  const float* in = numbers.data();
  const bool flags = std::all_of(in, in + numbers.size(),
                                 [](float value) { return value == 0.0F || value == 1.0F; });
  require(flags, who, " must hold zeros and ones");
  state.write_mask(in);
}

void bind_state(py::module_& m) {
  using S = DropoutGradientState;
  py::class_<S, GradientState, py::smart_holder> c(
      m, "DropoutGradientState",
      R"(What a forward encode has kept (``MPSCNNDropoutGradientState``).

Made by `Dropout`. One object serves the whole batch, and holds a mask for each of its images.
)");
  c.def_property(
      "mask", &get_mask, &set_mask,
      R"(The masks, float32, shape (N, H, W, C), 1 where an element was kept and 0 where not.

N, H, W and C are those of the clipped forward result, 1 along dimensions that share values. Reading gives a copy;
on Metal it asks the gradient kernel. An array of zeros and ones can be assigned, on the CPU device only, and makes do
for a forward encode: work encoded since the last forward encode, and committed later, finds it.

Raises
------
StateError
    If no forward encode has filled the state.
RuntimeError
    If unfinished work uses the state, or the state is temporary.
TypeError, ValueError
    If what is assigned is not an array of numbers, has another shape, or values other than 0 and 1.
UnsupportedError
    If the device takes no masks.
)");
  c.def_property_readonly(
       "keep_probability", [](const S& self) { return self.settings().keep_probability; },
       "The forward kernel's.")
      .def_property_readonly(
          "mask_stride_in_pixels",
          [](const S& self) {
            const MaskStride& stride = self.settings().stride;
            return py::make_tuple(stride.width, stride.height, stride.depth);
          },
          "The forward kernel's.");
  forbid_construction(c);
}

}  // namespace

void bind_dropout(py::module_& m) {
  bind_state(m);
  bind_kernel<Dropout, UnaryKernel>(m, "Dropout");
  bind_kernel<DropoutGradient, GradientKernel>(m, "DropoutGradient");
}

}  // namespace mpsgrad
