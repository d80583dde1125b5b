// bind_reshape: the kernels that copy; their documentation is in python/mpsgrad/reshape.py.
#include "core/forward_encode_py.hpp"
#include "core/often_called_py.hpp"
#include "core/unary_kernel_py.hpp"
#include "kernels/reshape/reshape.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

py::object encode_reshape(Reshape& self, const std::shared_ptr<CommandBuffer>& command_buffer,
                          const ImagesGiven& source_object, const ImagesOrNone& destination_object,
                          const StatesOrNone& state_object, bool with_state, bool temporary_state,
                          const AllocatorGiven& allocator_object, const IntegerOrNone& width,
                          const IntegerOrNone& height, const IntegerOrNone& channels) {
  if (width.is_none() && height.is_none() && channels.is_none()) {
    return encode_unary(self, command_buffer, source_object, destination_object, state_object,
                        with_state, temporary_state, allocator_object);
  }
  require<TypeError>(!width.is_none() && !height.is_none() && !channels.is_none(),
                     "Reshape: reshaped_width, reshaped_height and reshaped_feature_channels go "
                     "together");
  require<TypeError>(
      destination_object.is_none() && state_object.is_none(),
      "Reshape: the shape of a given destination is its own; pass no reshaped_width, "
      "reshaped_height and reshaped_feature_channels with one");
  const ImageArgument source = image_argument(source_object, "source", self.class_name());
  const auto allocator = allocator_argument(allocator_object);
  const EncodeResult result = self.encode_reshaped(
      command_buffer, source.images(), source.batch, with_state, temporary_state, allocator.get(),
      {integer(width, "Reshape: reshaped_width"), integer(height, "Reshape: reshaped_height"),
       integer(channels, "Reshape: reshaped_feature_channels")});
  return created_result(result, source.batch, with_state);
}

py::object encode_slice(Slice& self, const std::shared_ptr<CommandBuffer>& command_buffer,
                        const ImagesGiven& source_object, const ImagesOrNone& destination_object,
                        const StatesOrNone& state_object, bool with_state, bool temporary_state,
                        const AllocatorGiven& allocator_object) {
  if (!destination_object.is_none() || !state_object.is_none()) {
    return encode_unary(self, command_buffer, source_object, destination_object, state_object,
                        with_state, temporary_state, allocator_object);
  }
  const ImageArgument source = image_argument(source_object, "source", self.class_name());
  const auto allocator = allocator_argument(allocator_object);
  return created_result(
      {self.encode_box(command_buffer, source.images(), source.batch, allocator.get()), {}},
      source.batch, with_state);
}

PaddingSize padding_size(const py::handle& value, const std::string& name) {
  require<TypeError>(is_sequence(value), "Pad: ", name, " must be (x, y, channel), got ",
                     type_name(value));
  const auto parts = py::reinterpret_borrow<py::sequence>(value);
  require(py::len(parts) == 3, "Pad: ", name, " must be (x, y, channel), got ", py::len(parts),
          " numbers");
  const auto part = [&](std::size_t i) { return integer(py::object(parts[i]), "Pad: " + name); };
  return {part(0), part(1), part(2)};
}

py::tuple padding_size_out(const PaddingSize& size) {
  return py::make_tuple(size.x, size.y, size.channel);
}

void bind_reshape_kernels(py::module_& m) {
  using Device = std::shared_ptr<Device>;
  py::class_<Reshape, UnaryKernel, py::smart_holder> reshape(m, "Reshape");
  reshape.def(py::init<Device>(), "device"_a.none(false));
  def_often_called(
      reshape, "encode", &encode_reshape, "command_buffer"_a.none(false), "source"_a,
      "destination"_a = py::none(), py::kw_only(), "destination_state"_a = py::none(),
      "with_state"_a = false, "temporary_state"_a = false, "allocator"_a = py::none(),
      "reshaped_width"_a = py::none(), "reshaped_height"_a = py::none(),
      "reshaped_feature_channels"_a = py::none(),
      text(R"(Encode the kernel, as `UnaryKernel.encode` and with a shape.

Parameters
----------
command_buffer : CommandBuffer
source : Image, or batch
    A list or `ImageBatch` selects the batch form.
destination : Image, or batch, optional
    Its shape is the result's.
destination_state : State, or list, optional
    From `result_state`; only together with ``destination``.
with_state, temporary_state : bool, default False
    Create a state for the gradient kernel as well.
allocator : optional
    Overrides `destination_image_allocator` for this call.
reshaped_width, reshaped_height, reshaped_feature_channels : int, optional
    The shape of a destination that is created; all three, or none for a copy.

Returns
-------
Image or ImageBatch, or with ``with_state`` a pair of it and the state or list of states
    The destination. Nothing in it is valid before the command buffer has completed.
)",
           forward_raises(
               R"(    Source and result must have equally many elements, and be taken whole.
    A shape is given complete, and without a destination.
)"))
          .c_str());
  def_often_called(reshape, "encode_batch", &encode_reshape, "command_buffer"_a.none(false),
                   "sources"_a, "destinations"_a = py::none(), py::kw_only(),
                   "destination_states"_a = py::none(), "with_state"_a = false,
                   "temporary_state"_a = false, "allocator"_a = py::none(),
                   "reshaped_width"_a = py::none(), "reshaped_height"_a = py::none(),
                   "reshaped_feature_channels"_a = py::none(), forward_batch_form().c_str());
  py::class_<ReshapeGradient, GradientKernel, py::smart_holder>(m, "ReshapeGradient")
      .def(py::init<Device>(), "device"_a.none(false));

  py::class_<Slice, UnaryKernel, py::smart_holder> slice(m, "Slice");
  slice.def(py::init<Device>(), "device"_a.none(false));
  def_often_called(slice, "encode", &encode_slice, "command_buffer"_a.none(false), "source"_a,
                   "destination"_a = py::none(), py::kw_only(), "destination_state"_a = py::none(),
                   "with_state"_a = false, "temporary_state"_a = false, "allocator"_a = py::none(),
                   text(R"(Encode the kernel, as `UnaryKernel.encode`, and `offset` stays as it is.

Parameters
----------
command_buffer : CommandBuffer
source : Image, or batch
    A list or `ImageBatch` selects the batch form.
destination : Image, or batch, optional
    The box goes to `clip_rect`. Without it a new one is made that ends where `clip_rect` does, or
    if that has no limit, where the source does.
destination_state : None
    There is no gradient kernel that could read one.
with_state, temporary_state : bool, default False
    Return a pair whose second part is None.
allocator : optional
    Overrides `destination_image_allocator` for this call.

Returns
-------
Image or ImageBatch, or with ``with_state`` a pair of it and None
    The destination. Nothing in it is valid before the command buffer has completed.
)",
                        forward_raises("    The box must hold a pixel.\n"))
                       .c_str());
  def_often_called(slice, "encode_batch", &encode_slice, "command_buffer"_a.none(false),
                   "sources"_a, "destinations"_a = py::none(), py::kw_only(),
                   "destination_states"_a = py::none(), "with_state"_a = false,
                   "temporary_state"_a = false, "allocator"_a = py::none(),
                   forward_batch_form().c_str());
}

void bind_pad_kernels(py::module_& m) {
  using Device = std::shared_ptr<Device>;
  py::class_<Pad, UnaryKernel, py::smart_holder>(m, "Pad")
      .def(py::init([](const Device& device, const Integers& before, const Integers& after,
                       const FillValues& fill_values) {
             return std::make_shared<Pad>(device, padding_size(before, "padding_size_before"),
                                          padding_size(after, "padding_size_after"), fill_values);
           }),
           "device"_a.none(false), "padding_size_before"_a, "padding_size_after"_a,
           "fill_value_array"_a)
      .def_property(
          "padding_size_before",
          [](const Pad& self) { return padding_size_out(self.settings().before); },
          [](Pad& self, const Integers& value) {
            self.set_padding_size(false, padding_size(value, "padding_size_before"));
          },
          "Pixels on the left and at the top, and channels before the first: (x, y, channel).")
      .def_property(
          "padding_size_after",
          [](const Pad& self) { return padding_size_out(self.settings().after); },
          [](Pad& self, const Integers& value) {
            self.set_padding_size(true, padding_size(value, "padding_size_after"));
          },
          "Pixels on the right and at the bottom, and channels after the last: (x, y, channel).")
      .def_property(
          "fill_value", [](const Pad& self) { return self.settings().fill_value(); },
          &Pad::set_fill_value,
          "What lies outside the source with edge mode CONSTANT, unless there is an array.")
      .def_property_readonly(
          "fill_value_array",
          [](const Pad& self) -> OneOf<py::tuple, py::none> {
            if (self.fill_values().empty()) {
              return py::none();
            }
            return py::tuple(py::cast(self.fill_values()));
          },
          "The same for each channel that is written, from the first one on; None if there is "
          "none.");
  py::class_<PadGradient, GradientKernel, py::smart_holder>(m, "PadGradient")
      .def(py::init<Device>(), "device"_a.none(false));
}

}  // namespace

void bind_reshape(py::module_& m) {
  bind_reshape_kernels(m);
  bind_pad_kernels(m);
}

}  // namespace mpsgrad
