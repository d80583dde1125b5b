// Binds states, and the lists of resources they are made from.
#include <pybind11/native_enum.h>

#include <memory>
#include <utility>

#include "core/arguments_py.hpp"
#include "device/buffer.hpp"
#include "device/state.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

void bind_resources(py::module_& m) {
  py::class_<TextureInfo>(m, "TextureInfo", R"(Texture of a state (``MPSStateTextureInfo``).

Its numbers are checked when a `State` is made with it.

Parameters
----------
width : int
    Columns in texels.
height, depth, array_length : int, default 1
    Rows in texels, layers of a 3D texture, slices of a texture array.
pixel_format : int, default 55
    ``MTLPixelFormat`` number; 55 is one float32 a texel.
texture_type : int, default 2
    ``MTLTextureType`` number; 2 is 2D.
usage : int, default 3
    Bits of `TextureUsage`: SHADER_READ and SHADER_WRITE.
)")
      .def(py::init<Index, Index, Index, Index, Index, Index, Index>(), "width"_a, "height"_a = 1,
           "depth"_a = 1, "array_length"_a = 1, "pixel_format"_a = 55, "texture_type"_a = 2,
           "usage"_a = 3)
      .def_readonly("width", &TextureInfo::width,
                    "Columns in texels; a state takes 1 to 16384. Read only.")
      .def_readonly("height", &TextureInfo::height,
                    "Rows in texels, 1 by default; a state takes 1 to 16384. Read only.")
      .def_readonly("depth", &TextureInfo::depth,
                    "Layers of a 3D texture, 1 by default; a state takes 1 to 2048. Read only.")
      .def_readonly("array_length", &TextureInfo::array_length,
                    "Slices of a texture array, 1 by default; a state takes 1 to 2048. Read only.")
      .def_readonly("pixel_format", &TextureInfo::pixel_format,
                    "``MTLPixelFormat`` number, by default 55, one float32 a texel; read only.")
      .def_readonly("texture_type", &TextureInfo::texture_type,
                    "``MTLTextureType`` number, by default 2, which is 2D; read only.")
      .def_readonly("usage", &TextureInfo::usage,
                    "Bits of `TextureUsage`, by default SHADER_READ and SHADER_WRITE; read only.");
  py::native_enum<StateResourceType>(m, "StateResourceType", kEnumeration,
                                     "Kind of a state's resource (``MPSStateResourceType``).")
      .value("NONE", StateResourceType::None)
      .value("BUFFER", StateResourceType::Buffer)
      .value("TEXTURE", StateResourceType::Texture)
      .finalize();
  py::class_<ResourceList>(
      m, "ResourceList",
      "Resources a state shall have (``MPSStateResourceList``); textures come first.")
      .def(py::init<>())
      .def("append_texture", &ResourceList::append_texture, "info"_a,
           "Add a texture; in the state it comes after those added before, and before all buffers.")
      .def("append_buffer", &ResourceList::append_buffer, "size"_a,
           "Add a buffer of so many bytes, 1 to 2**48, or ValueError; in the state it comes after "
           "those added before.");
}

ResourceList resource_list(const py::object& resources) {
  if (py::isinstance<ResourceList>(resources)) {
    return resources.cast<ResourceList>();
  }
  ResourceList list;
  if (py::isinstance<TextureInfo>(resources)) {
    list.append_texture(resources.cast<TextureInfo>());
  } else if (!resources.is_none()) {
    require<TypeError>(py::isinstance<py::int_>(resources),
                       "State: resources must be a size in bytes, a TextureInfo or a "
                       "ResourceList, got ",
                       type_name(resources));
    list.append_buffer(integer(resources, "State: resources"));
  }
  return list;
}

}  // namespace

void bind_state(py::module_& m) {
  bind_resources(m);
  py::class_<State, py::smart_holder>(m, "State",
                                      R"(Opaque carrier of buffers between kernels (``MPSState``).

Parameters
----------
device : Device
resources : int, TextureInfo, ResourceList or Buffer
    Size of one buffer, one texture, several of both, or an existing buffer. Storage is allocated when first needed.
)")
      .def(py::init([](std::shared_ptr<Device> device,
                       const OneOf<Index, TextureInfo, ResourceList, Buffer>& resources) {
             return py::isinstance<Buffer>(resources)
                        ? std::make_shared<State>(std::move(device),
                                                  resources.cast<std::shared_ptr<Buffer>>())
                        : std::make_shared<State>(std::move(device), resource_list(resources));
           }),
           "device"_a.none(false), "resources"_a)
      .def_static(
          "temporary",
          [](const std::shared_ptr<CommandBuffer>& command_buffer,
             const OneOf<Index, TextureInfo, ResourceList, py::none>& resources) {
            return std::make_shared<State>(command_buffer, resource_list(resources));
          },
          "command_buffer"_a.none(false), "resources"_a = py::none(),
          R"(Return a state that lives on one command buffer.

Parameters
----------
command_buffer : CommandBuffer
resources : int, TextureInfo or ResourceList, optional
    As for the constructor.

Returns
-------
State

Raises
------
TypeError, ValueError
    If ``resources`` is something else, or one of its numbers is out of range.
CommandBufferError
    If the command buffer has been committed.
)")
      .def_property_readonly("device", &State::device,
                             "`Device` that holds the resources; read only.")
      .def_property_readonly("is_temporary", &State::is_temporary,
                             "Whether it lives on one command buffer; a plain `State` without "
                             "resources never does. Read only.")
      .def_property(
          "read_count", &State::read_count, &State::set_read_count,
          "How many more encodes may read a temporary state, 1 at first; at 0 its contents "
          "are gone, and any change is a ReadCountError. 0 for an ordinary state, which "
          "has no count to set: RuntimeError.")
      .def_readwrite("label", &State::label, "Free text, empty by default.")
      .def_property_readonly("resource_count", &State::resource_count,
                             "How many buffers and textures it has; read only.")
      .def_property_readonly("resource_size", &State::resource_size, "Bytes of all resources.")
      .def("resource_type_at", &State::resource_type_at, "index"_a,
           "Return the `StateResourceType` of one resource; IndexError if there is none of that "
           "index.")
      .def("buffer_size_at", &State::buffer_size_at, "index"_a,
           "Return the bytes of one resource, 0 if it is not a buffer; IndexError if there is none "
           "of that index.")
      .def("texture_info_at", &State::texture_info_at, "index"_a,
           "Return the `TextureInfo` of one resource, all zero if it is not a texture; IndexError "
           "if there is none of that index.")
      .def("resource_at", &State::resource_at, "index"_a, "allocate"_a = true,
           R"(Return the memory of one resource.

Parameters
----------
index : int
    Which one, textures first.
allocate : bool, default True
    Make the memory if it does not exist yet.

Returns
-------
Buffer or None
    None if it does not exist yet and ``allocate`` is False.

Raises
------
IndexError
    If there is no resource of that index.
ReadCountError
    If the memory of a temporary state would have to be made, and its read count is 0.
CommandBufferError
    If it would have to be made, and the command buffer of the state has been committed.
)")
      .def("synchronize", &State::synchronize, "command_buffer"_a.none(false),
           "Make the device's results visible to the CPU when the command buffer has completed.")
      .def("__repr__", [](const State& self) {
        return text(self.class_name(), "(", self.device()->kind(),
                    self.is_temporary() ? ", temporary" : "", ")");
      });
}

}  // namespace mpsgrad
