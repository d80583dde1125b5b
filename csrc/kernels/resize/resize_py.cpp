// bind_resize: kernels that read between pixels; their documentation is in
// python/mpsgrad/resize.py.
#include <array>

#include "core/forward_encode_py.hpp"
#include "core/often_called_py.hpp"
#include "kernels/resize/resize.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

using Numbers = std::array<double, 4>;  // x, y, width, height

template <class Class>
void bind_size(Class& c) {
  using Kernel = typename Class::type;
  c.def_property_readonly(
       "resize_width", [](const Kernel& k) { return k.size().width; }, "Columns of the result.")
      .def_property_readonly(
          "resize_height", [](const Kernel& k) { return k.size().height; }, "Rows of the result.");
}

NormalizedRegions regions_in(const std::vector<Numbers>& regions) {
  NormalizedRegions result;
  for (const auto& [x, y, width, height] : regions) {
    result.push_back({x, y, width, height});
  }
  return result;
}

std::vector<Numbers> regions_out(const NormalizedRegions& regions) {
  std::vector<Numbers> result;
  for (const NormalizedRegion& r : regions) {
    result.push_back({r.x, r.y, r.width, r.height});
  }
  return result;
}

py::object encode_regions(CropAndResizeBilinear& self,
                          const std::shared_ptr<CommandBuffer>& command_buffer,
                          const ImagesGiven& source_object, const ImagesOrNone& destination_object,
                          const StatesOrNone& state_object, bool with_state,
                          bool /*temporary_state*/, const AllocatorGiven& allocator_object) {
  const ImageArgument source = image_argument(source_object, "source", self.class_name());
  require<TypeError>(state_object.is_none(), self.class_name(),
                     ": destination_state must be None, for the kernel has no state");
  if (!destination_object.is_none()) {
    require(!with_state, self.class_name(), ": with_state goes with a destination that is created");
    const ImageArgument destination =
        image_argument(destination_object, "destination", self.class_name());
    self.encode_regions(command_buffer, source.images(), destination.images());
    return destination_object;
  }
  const auto allocator = allocator_argument(allocator_object);
  return created_result(
      {self.encode_regions_creating(command_buffer, source.images(), allocator.get()), {}}, true,
      with_state);
}

void bind_crop(py::module_& m) {
  using Kernel = CropAndResizeBilinear;
  py::class_<Kernel, UnaryKernel, py::smart_holder> c(m, "CropAndResizeBilinear");
  c.def(py::init([](const std::shared_ptr<Device>& device, Index width, Index height,
                    const std::vector<Numbers>& regions) {
          return std::make_shared<Kernel>(device, width, height, regions_in(regions));
        }),
        "device"_a.none(false), "resize_width"_a, "resize_height"_a, "regions"_a);
  bind_size(c);
  c.def_property_readonly("number_of_regions", &Kernel::region_count, "Results of one source.");
  c.def_property_readonly(
      "regions", [](const Kernel& k) { return py::tuple(py::cast(regions_out(k.regions()))); },
      "Of each, x, y, width and height in parts of the source.");
  def_often_called(c, "encode", &encode_regions, "command_buffer"_a.none(false), "source"_a,
                   "destination"_a = py::none(), py::kw_only(), "destination_state"_a = py::none(),
                   "with_state"_a = false, "temporary_state"_a = false, "allocator"_a = py::none(),
                   text(R"(Encode the kernel, as `UnaryKernel.encode` and with several results.

Parameters
----------
command_buffer : CommandBuffer
source : Image, or batch
    Images that hold one image each.
destination : Image, or batch, optional
    An image for each source and region, those of the first source first.
destination_state : None
    The kernel has no state.
with_state, temporary_state : bool, default False
    Return a pair whose second part is None.
allocator : optional
    Overrides `destination_image_allocator` for this call.

Returns
-------
ImageBatch, or with ``with_state`` a pair of it and None
    The destination. Nothing in it is valid before the command buffer has completed.

Raises
------
TypeError, ValueError
    If an argument is of another kind, device or command buffer, there are more or fewer destinations than sources times
    regions, a destination is read-only or shares memory with a source, ``destination_state`` is not None,
    ``with_state`` comes with a destination, or a property has a value that the kernel cannot use.
)",
                        kWorkRaises)
                       .c_str());
  def_often_called(c, "encode_batch", &encode_regions, "command_buffer"_a.none(false), "sources"_a,
                   "destinations"_a = py::none(), py::kw_only(),
                   "destination_states"_a = py::none(), "with_state"_a = false,
                   "temporary_state"_a = false, "allocator"_a = py::none(),
                   batch_form("``destinations`` holds one for each source and region. There are no "
                              "states.",
                              "ImageBatch, or with ``with_state`` a pair of it and None")
                       .c_str());
}

}  // namespace

void bind_resize(py::module_& m) {
  py::class_<ResizeBilinear, UnaryKernel, py::smart_holder> resize(m, "ResizeBilinear");
  resize.def(py::init<std::shared_ptr<Device>, Index, Index, bool>(), "device"_a.none(false),
             "resize_width"_a, "resize_height"_a, "align_corners"_a);
  bind_size(resize);
  resize.def_property_readonly("align_corners", &ResizeBilinear::align_corners,
                               "Whether the corner pixels of source and result coincide.");
  bind_crop(m);
  py::class_<GridSample, ForwardBinaryKernel, py::smart_holder>(m, "GridSample")
      .def(py::init<std::shared_ptr<Device>>(), "device"_a.none(false))
      .def_property("use_grid_value_as_input_coordinate",
                    &GridSample::use_grid_value_as_input_coordinate,
                    &GridSample::set_use_grid_value_as_input_coordinate,
                    "Whether the grid holds positions, or displacements; at first True.");
}

}  // namespace mpsgrad
