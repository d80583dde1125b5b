// Binds image descriptors, images and temporary images.
#include <pybind11/numpy.h>

#include "core/arguments_py.hpp"
#include "core/numbers_py.hpp"
#include "device/image_py.hpp"

namespace mpsgrad {
namespace {

ChannelFormat format_of(const py::array& array, const char* who) {
  for (const ChannelFormat format : {ChannelFormat::Float32, ChannelFormat::Float16,
                                     ChannelFormat::Unorm8, ChannelFormat::Unorm16}) {
    if (array.dtype().equal(dtype_of(format))) {
      return format;
    }
  }
  fail<TypeError>(who, ": array must be float32, float16, uint8 or uint16, got ",
                  std::string(py::str(array.dtype())));
}

}  // namespace

std::shared_ptr<ImageBatch> images_over(const std::shared_ptr<Device>& device,
                                        const GivenArray& given, bool batch) {
  const py::array& array = given.array;
  const char* who = batch ? "ImageBatch" : "Image";
  const py::ssize_t first = batch ? 1 : 0;
  require(array.ndim() == first + 3, who, ": array must have shape ",
          batch ? "(N, H, W, C)" : "(H, W, C)", ", got ", shape_text(array));
  const ChannelFormat format = format_of(array, who);
  require_usable_in_place(array, who, "array");
  ImageDescriptor d;
  d.height = array.shape(first);
  d.width = array.shape(first + 1);
  d.feature_channels = array.shape(first + 2);
  d.channel_format = format;
  LentMemory lent{const_cast<void*>(array.data()), static_cast<std::size_t>(array.nbytes()),
                  share_python(py::reinterpret_borrow<py::object>(array)), !array.writeable()};
  return ImageBatch::from_memory(device, d, batch ? array.shape(0) : 1, std::move(lent));
}

namespace {

using namespace pybind11::literals;

std::vector<py::ssize_t> image_shape(const ImageDescriptor& d, DataLayout layout) {
  return layout == DataLayout::HeightWidthChannels
             ? std::vector<py::ssize_t>{d.height, d.width, d.feature_channels}
             : std::vector<py::ssize_t>{d.feature_channels, d.height, d.width};
}

// Writes a whole image, or one of a container, from an array of exactly its dtype and shape.
void write_image(Image& image, const GivenArray& given, DataLayout layout,
                 const IntegerOrNone& image_index) {
  const py::array& array = given.array;
  const ImageDescriptor& d = image.descriptor();
  require<TypeError>(array.dtype().equal(dtype_of(d.channel_format)), image.class_name(),
                     ": array must be ", dtype_name(d.channel_format), ", got ",
                     std::string(py::str(array.dtype())));
  std::vector<py::ssize_t> expected = image_shape(d, layout);
  const bool all = image_index.is_none() && d.number_of_images > 1;
  if (all) {
    expected.insert(expected.begin(), d.number_of_images);
  }
  const std::vector<py::ssize_t> got(array.shape(), array.shape() + array.ndim());
  require(got == expected, image.class_name(), ": array must have shape ", shape_text(expected),
          ", got ", shape_text(got));
  const py::array dense = py::array::ensure(array, py::array::c_style);
  const auto* data = static_cast<const std::byte*>(dense.data());
  const Index first = integer_or(image_index, 0, image.class_name(), ": image_index");
  for (Index i = 0; i < (all ? d.number_of_images : 1); ++i) {
    image.write(first + i, layout, data + i * d.bytes_per_image());
  }
}

py::array read_image(const Image& image, DataLayout layout, const IntegerOrNone& image_index,
                     const py::object& dtype) {
  const ImageDescriptor& d = image.descriptor();
  std::vector<py::ssize_t> shape = image_shape(d, layout);
  const bool all = image_index.is_none() && d.number_of_images > 1;
  if (all) {
    shape.insert(shape.begin(), d.number_of_images);
  }
  image.require_readable();  // before memory is taken
  py::array result(dtype_of(d.channel_format), shape);
  auto* data = static_cast<std::byte*>(result.mutable_data());
  const Index first = integer_or(image_index, 0, image.class_name(), ": image_index");
  for (Index i = 0; i < (all ? d.number_of_images : 1); ++i) {
    image.read(first + i, layout, data + i * d.bytes_per_image());
  }
  return dtype.is_none() ? result : py::array(result.attr("astype")(dtype));
}

std::shared_ptr<Image> image_from_array(const std::shared_ptr<Device>& device,
                                        const GivenArray& array) {
  return (*images_over(device, array, false))[0];
}

template <class Class>
void bind_descriptor_fields(Class& c) {
  const auto field = [&](const char* name, auto member, const char* doc) {
    c.def_property(
        name, [member](const ImageDescriptor& self) { return self.*member; },
        [member](ImageDescriptor& self, std::remove_reference_t<decltype(self.*member)> value) {
          ImageDescriptor changed = self;
          changed.*member = value;
          changed.check("ImageDescriptor");
          self = changed;
        },
        doc);
  };
  field("width", &ImageDescriptor::width,
        "Columns in pixels, 1 (default) to 16384, or ValueError.");
  field("height", &ImageDescriptor::height, "Rows in pixels, 1 (default) to 16384, or ValueError.");
  field("feature_channels", &ImageDescriptor::feature_channels,
        "Channels of one image, at least 1; ValueError if that makes more than 2048 slices of four "
        "in all images.");
  field("number_of_images", &ImageDescriptor::number_of_images,
        "Images in one container, at least 1; ValueError if that makes more than 2048 slices of "
        "four channels.");
  field("channel_format", &ImageDescriptor::channel_format,
        "`ChannelFormat` of the texels, FLOAT32 by default; ValueError for NONE.");
  field("storage_mode", &ImageDescriptor::storage_mode,
        "`StorageMode` of the texels, MANAGED by default; Python can read and write those of "
        "SHARED and MANAGED images only.");
  field("usage", &ImageDescriptor::usage,
        "Bits of `TextureUsage`; ValueError without SHADER_READ and SHADER_WRITE, the default.");
  field("cpu_cache_mode", &ImageDescriptor::cpu_cache_mode,
        "``MTLCPUCacheMode`` on Metal: 0 (default), or 1 for write combined; ValueError for "
        "others.");
}

void bind_image_descriptor(py::module_& m) {
  py::class_<ImageDescriptor> c(m, "ImageDescriptor",
                                R"(An image before it exists (``MPSImageDescriptor``).

Parameters
----------
width, height : int, default 1
    Pixels, 1 to 16384.
feature_channels : int, default 1
    Channels of one image.
number_of_images : int, default 1
    Images in one container; at most 2048 slices of four channels in all.
channel_format : ChannelFormat, default FLOAT32
    Storage of the texels; not NONE.
storage_mode : StorageMode, default MANAGED
    Python can read and write the texels of SHARED and MANAGED images only.
usage : int, default SHADER_READ and SHADER_WRITE
    Bits of `TextureUsage`, those two among them.

Raises
------
ValueError
    If a field is out of range.
)");
  c.def(py::init([](Index width, Index height, Index channels, Index images, ChannelFormat format,
                    StorageMode mode, Index usage) {
          ImageDescriptor d{width, height, channels, images, format, mode, usage, 0};
          d.check("ImageDescriptor");
          return d;
        }),
        "width"_a = 1, "height"_a = 1, "feature_channels"_a = 1, "number_of_images"_a = 1,
        "channel_format"_a = ChannelFormat::Float32, "storage_mode"_a = StorageMode::Managed,
        "usage"_a = 3);
  bind_descriptor_fields(c);
  c.def_property_readonly("pixel_format", &ImageDescriptor::pixel_format,
                          "``MTLPixelFormat`` number.")
      .def_property_readonly("slices", &ImageDescriptor::slices,
                             "Slices of four channels in one image.")
      .def_property_readonly(
          "array_length",
          [](const ImageDescriptor& self) { return self.slices() * self.number_of_images; },
          "Slices of four channels in all images of the container; read only.")
      .def_property_readonly(
          "texture_type",
          [](const ImageDescriptor& self) { return self.is_texture_array() ? 3 : 2; },
          "``MTLTextureType``: 2 is 2D, 3 is a 2D array.")
      .def(
          "copy", [](const ImageDescriptor& self) { return self; }, "Return an equal descriptor.")
      .def("__copy__", [](const ImageDescriptor& self) { return self; })
      .def("__reduce__",
           [](const py::object& self) {
             const auto& d = self.cast<const ImageDescriptor&>();
             const py::tuple arguments =
                 py::make_tuple(d.width, d.height, d.feature_channels, d.number_of_images,
                                d.channel_format, d.storage_mode, d.usage);
             const py::dict rest("cpu_cache_mode"_a = d.cpu_cache_mode);
             return py::make_tuple(py::type::of(self), arguments, py::make_tuple(py::none(), rest));
           })
      .def(
          "__deepcopy__", [](const ImageDescriptor& self, const py::dict&) { return self; },
          "memo"_a)
      .def(
          "__eq__", [](const ImageDescriptor& a, const ImageDescriptor& b) { return a == b; },
          py::is_operator())
      .def("__repr__",
           [](const ImageDescriptor& self) { return text("ImageDescriptor(", self, ")"); });
}

void bind_image_properties(ImageClass& c) {
  const auto of = [](auto member) {
    return [member](const Image& self) { return self.descriptor().*member; };
  };
  c.def(py::init(&Image::make), "device"_a.none(false), "descriptor"_a)
      .def_static("from_array", &image_from_array, "device"_a.none(false), "array"_a,
                  R"(Return an image over an array.

Parameters
----------
device : Device
array : ndarray, or what has a buffer or DLPack, shape (H, W, C), C-contiguous
    float32, float16, uint8 or uint16. The CPU device uses it in place; Metal copies it.

Returns
-------
Image

Raises
------
TypeError, ValueError
    If the array is of another kind.
)")
      .def_property_readonly("device", &Image::device, "`Device` that holds the texels; read only.")
      .def_property_readonly(
          "descriptor", [](const Image& self) { return self.descriptor(); }, "A copy of it.")
      .def_property_readonly("width", of(&ImageDescriptor::width), "Columns in pixels; read only.")
      .def_property_readonly("height", of(&ImageDescriptor::height), "Rows in pixels; read only.")
      .def_property_readonly("feature_channels", of(&ImageDescriptor::feature_channels),
                             "Channels of one image; read only.")
      .def_property_readonly("number_of_images", of(&ImageDescriptor::number_of_images),
                             "Images in this container; those of a batch hold one each. Read only.")
      .def_property_readonly("feature_channel_format", of(&ImageDescriptor::channel_format),
                             "`ChannelFormat` of the texels, which decides the dtype of `read` and "
                             "`write`; read only.")
      .def_property_readonly("usage", of(&ImageDescriptor::usage),
                             "Bits of `TextureUsage`; read only.")
      .def_property_readonly(
          "pixel_format", [](const Image& self) { return self.descriptor().pixel_format(); },
          "``MTLPixelFormat`` number, by channel format and channels; read only.")
      .def_property_readonly(
          "pixel_size", [](const Image& self) { return self.descriptor().pixel_size(); },
          "Bytes of one texel of one slice.")
      .def_property_readonly(
          "texture_type",
          [](const Image& self) { return self.descriptor().is_texture_array() ? 3 : 2; },
          "``MTLTextureType``: 2 is 2D, 3 is a 2D array, of several images or more than four "
          "channels; read only.")
      .def_property_readonly("precision", &Image::precision,
                             "Bits of significand: 8, 16, 11 or 24.")
      .def_property_readonly("parent", &Image::parent, "The image this one is a view of, or None.")
      .def_property_readonly("resource_size", &Image::resource_size,
                             "Bytes of backing store; 0 for views.")
      .def_property_readonly("is_temporary", &Image::is_temporary,
                             "Whether it lives on one command buffer and cannot be read from "
                             "Python; read only.")
      .def_readwrite("label", &Image::label, "Free text, empty by default.")
      .def("synchronize", &Image::synchronize, "command_buffer"_a.none(false),
           "Make the device's results visible to the CPU when the command buffer has completed.")
      .def("__repr__",
           [](const Image& self) { return text(self.class_name(), "(", self.descriptor(), ")"); });
}

void bind_texels(ImageClass& c) {
  c.def("read", &read_image, "layout"_a = DataLayout::HeightWidthChannels,
        "image_index"_a = py::none(), "dtype"_a = py::none(),
        R"(Return the texels, in the storage encoding.

Parameters
----------
layout : DataLayout, default HWC
image_index : int, optional
    One image of a container; by default all of them, along a leading axis.
dtype : dtype, optional
    Convert with NumPy afterwards; unorm values stay 0 to 255 or 65535.

Returns
-------
ndarray, shape (H, W, C) or (C, H, W)
    float32, float16, uint8 or uint16, as the channel format says.

Raises
------
TypeError
    If ``image_index`` is not an integer.
IndexError
    If the container has no such image.
RuntimeError
    If the work that writes the image has not been waited for, or the image is temporary or hidden by its storage mode.
)")
      .def("write", &write_image, "array"_a, "layout"_a = DataLayout::HeightWidthChannels,
           "image_index"_a = py::none(),
           R"(Replace the texels; visible to work that has been encoded but not committed.

Parameters
----------
array : ndarray, or what has a buffer or DLPack
    Exactly the dtype and shape that `read` returns; nothing is converted.
layout : DataLayout, default HWC
    Order of the array's axes.
image_index : int, optional
    One image of a container; by default all of them, along a leading axis.

Raises
------
TypeError, ValueError
    If dtype or shape differ, ``image_index`` is not an integer, or the image is over a read-only array.
IndexError
    If the container has no such image.
RuntimeError
    If committed work that nobody has waited for uses the image, or it is temporary or hidden by its storage mode.
)")
      .def(
          "__array__",
          [](const Image& self, const py::object& dtype, const py::object& copy) {
            require(copy.is_none() || copy.cast<bool>(),
                    "Image: an array of its texels is always a copy, but copy is False");
            return read_image(self, DataLayout::HeightWidthChannels, py::none(), dtype);
          },
          "dtype"_a = py::none(), "copy"_a = py::none());
}

void bind_views(ImageClass& c) {
  c.def(
       "batch_representation",
       [](Image& self, const IntegerOrNone& first, const IntegerOrNone& count) {
         const Index all = self.descriptor().number_of_images;
         const Index from = integer_or(first, 0, self.class_name(), ": first");
         require(from >= 0 && from < all, self.class_name(), ": image ", from,
                 " is outside a container of ", all);
         const Index images = integer_or(count, all - from, self.class_name(), ": count");
         require(images >= 1 && images <= all - from, self.class_name(), ": ", images,
                 " images from ", from, " on are outside a container of ", all);
         ImageBatch::Images views;
         for (Index i = 0; i < images; ++i) {
           views.push_back(self.sub_image(from + i, 1));
         }
         return std::make_shared<ImageBatch>(std::move(views));
       },
       "first"_a = py::none(), "count"_a = py::none(),
       R"(Return views of the contained images as a batch.

Parameters
----------
first : int, default 0
    The first image that is shown.
count : int, optional
    How many are; by default all from ``first`` on.

Returns
-------
ImageBatch

Raises
------
TypeError, ValueError
    If a number is not an integer, or the container does not have these images.
ReadCountError
    If it is a temporary image whose texels are gone.
)")
      .def("sub_image_with_feature_channel_range", &Image::sub_image_with_feature_channel_range,
           "first"_a, "channels"_a, R"(Return a view of some channels of every image.

Parameters
----------
first : int
    The first channel that is shown, a multiple of 4.
channels : int
    How many are, a positive multiple of 4; those beyond the last are left out.

Returns
-------
Image

Raises
------
ValueError
    If a number is no such multiple, or the image does not have the first channel.
ReadCountError
    If it is a temporary image whose texels are gone.
)");
}

void bind_temporary_image(py::module_& m) {
  py::class_<TemporaryImage, Image, py::smart_holder>(
      m, "TemporaryImage", R"(Scratch image of one command buffer (``MPSTemporaryImage``).

Parameters
----------
command_buffer : CommandBuffer
descriptor : ImageDescriptor
)")
      .def(py::init([](const std::shared_ptr<CommandBuffer>& command_buffer,
                       const ImageDescriptor& descriptor) {
             descriptor.check("TemporaryImage");
             command_buffer->require_encodable("TemporaryImage");
             const auto& device = command_buffer->device();
             return std::make_shared<TemporaryImage>(
                 device, descriptor,
                 device->make_temporary_images(*command_buffer, descriptor, 1, true), 0,
                 command_buffer);
           }),
           "command_buffer"_a.none(false), "descriptor"_a)
      .def_property(
          "read_count", [](TemporaryImage& self) { return self.read_count()->value(); },
          [](TemporaryImage& self, Index value) {
            self.read_count()->set(value);
            self.after_count_change();
          },
          "How many more encodes may read it; at 0 the texels are gone.");
}

}  // namespace

void bind_image(py::module_& m) {
  bind_image_descriptor(m);
  ImageClass image(m, "Image",
                   R"(Multi-channel image on a device (``MPSImage``).

Parameters
----------
device : Device
descriptor : ImageDescriptor
)");
  // Before any method: a signature shows only those Python names that exist already.
  ImageBatchClass batch(m, "ImageBatch",
                        R"(Images of one kind (``MPSImageBatch``).

Parameters
----------
images : sequence of Image
    Any images; an encode checks that they match.
)");
  bind_image_properties(image);
  bind_texels(image);
  bind_views(image);
  bind_temporary_image(m);
  bind_image_batch(m, batch);
}

}  // namespace mpsgrad
