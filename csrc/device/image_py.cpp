// Binds image descriptors, images, batches, states and resource lists.
#include <pybind11/functional.h>
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>

#include <algorithm>

#include "core/arguments_py.hpp"
#include "core/numbers_py.hpp"
#include "device/buffer.hpp"
#include "device/image.hpp"
#include "device/state.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

py::dtype dtype_of(ChannelFormat format) { return py::dtype(dtype_name(format)); }

std::vector<py::ssize_t> image_shape(const ImageDescriptor& d, DataLayout layout) {
  return layout == DataLayout::HeightWidthChannels
             ? std::vector<py::ssize_t>{d.height, d.width, d.feature_channels}
             : std::vector<py::ssize_t>{d.feature_channels, d.height, d.width};
}

// Writes a whole image, or one of a container, from an array of exactly its dtype and shape.
void write_image(Image& image, const GivenArray& given, DataLayout layout,
                 const py::object& image_index) {
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

py::array read_image(const Image& image, DataLayout layout, const py::object& image_index,
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

// Images over an array (N, H, W, C) or, if it is not for a batch, one over an array (H, W, C).
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

std::shared_ptr<ImageBatch> batch_from_array(const std::shared_ptr<Device>& device,
                                             const GivenArray& array) {
  return images_over(device, array, true);
}

std::shared_ptr<Image> image_from_array(const std::shared_ptr<Device>& device,
                                        const GivenArray& array) {
  return (*images_over(device, array, false))[0];
}

// New memory for an array, 64-byte aligned as everything that the package hands out.
py::array aligned_array(const py::dtype& dtype, const std::vector<py::ssize_t>& shape) {
  constexpr std::align_val_t kAlignment{64};
  auto bytes = static_cast<std::size_t>(dtype.itemsize());
  for (const py::ssize_t length : shape) {
    bytes *= static_cast<std::size_t>(length);
  }
  void* data = ::operator new(bytes, kAlignment);
  const py::capsule keep(data, [](void* raw) { ::operator delete(raw, kAlignment); });
  return {dtype, shape, data, keep};
}

std::vector<py::ssize_t> batch_shape(const ImageBatch& batch) {
  const ImageDescriptor& d = batch[0]->descriptor();
  return {batch.size(), d.height, d.width, d.feature_channels};
}

// Throws unless the images are those that one array can hold.
void require_alike(const ImageBatch& batch) {
  const ImageDescriptor& d = batch[0]->descriptor();
  for (const auto& image : batch.images()) {
    require(image->descriptor().same_kind(d) && d.number_of_images == 1,
            "ImageBatch: an array holds images of one kind that hold one image each, got ", d,
            " and ", image->descriptor());
  }
}

// The batch's own memory where the device keeps it as one dense array, else None. Throws
// std::invalid_argument where there is no array of the images.
py::object batch_memory(const std::shared_ptr<ImageBatch>& batch) {
  require_alike(*batch);
  ImageStorage* storage = batch->whole_storage();
  if (storage && !(*batch)[0]->is_temporary()) {
    (*batch)[0]->require_readable();
    if (void* data = storage->dense_memory()) {
      py::array result(dtype_of((*batch)[0]->descriptor().channel_format), batch_shape(*batch),
                       data, keep_alive(batch));
      if (storage->is_read_only()) {
        result.attr("flags").attr("writeable") = false;
      }
      return result;
    }
  }
  return py::none();
}

// The same, or a copy.
py::array batch_to_array(const std::shared_ptr<ImageBatch>& batch) {
  const py::object memory = batch_memory(batch);
  if (!memory.is_none()) {
    return memory;
  }
  const ImageDescriptor& d = (*batch)[0]->descriptor();
  py::array result = aligned_array(dtype_of(d.channel_format), batch_shape(*batch));
  auto* data = static_cast<std::byte*>(result.mutable_data());
  for (Index i = 0; i < batch->size(); ++i) {
    (*batch)[i]->read(0, DataLayout::HeightWidthChannels, data + i * d.bytes_per_image());
  }
  return result;
}

// For what asks for no copy with copy=False.
template <class Error>
py::array batch_as_asked(const std::shared_ptr<ImageBatch>& batch, const py::object& copy) {
  if (copy.is_none() || copy.cast<bool>()) {
    return batch_to_array(batch);
  }
  const py::object memory = batch_memory(batch);
  if (memory.is_none()) {
    throw Error("ImageBatch: an array of these images is a copy, but copy is False");
  }
  return memory;
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

void bind_images(py::module_& m) {
  using Images = ImageBatch::Images;
  py::class_<Image, py::smart_holder> image(m, "Image",
                                            R"(Multi-channel image on a device (``MPSImage``).

Parameters
----------
device : Device
descriptor : ImageDescriptor
)");
  // Before any method: a signature shows only those Python names that exist already.
  py::class_<ImageBatch, py::smart_holder> batch(m, "ImageBatch",
                                                 R"(Images of one kind (``MPSImageBatch``).

Parameters
----------
images : sequence of Image
    Any images; an encode checks that they match.
)");
  const auto of = [](auto member) {
    return [member](const Image& self) { return self.descriptor().*member; };
  };
  image.def(py::init(&Image::make), "device"_a.none(false), "descriptor"_a)
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
      .def("read", &read_image, "layout"_a = DataLayout::HeightWidthChannels,
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
          "dtype"_a = py::none(), "copy"_a = py::none())
      .def(
          "batch_representation",
          [](Image& self, const py::object& first, const py::object& count) {
            const Index all = self.descriptor().number_of_images;
            const Index from = integer_or(first, 0, self.class_name(), ": first");
            require(from >= 0 && from < all, self.class_name(), ": image ", from,
                    " is outside a container of ", all);
            const Index images = integer_or(count, all - from, self.class_name(), ": count");
            require(images >= 1 && images <= all - from, self.class_name(), ": ", images,
                    " images from ", from, " on are outside a container of ", all);
            Images views;
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
)")
      .def("synchronize", &Image::synchronize, "command_buffer"_a.none(false),
           "Make the device's results visible to the CPU when the command buffer has completed.")
      .def("__repr__",
           [](const Image& self) { return text(self.class_name(), "(", self.descriptor(), ")"); });

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

  batch
      .def(
          py::init([](const py::sequence& images) {
            const ImageArgument argument = image_argument(py::list(images), "images", "ImageBatch");
            require(!argument.images().empty(), "ImageBatch: a batch must hold at least one image");
            return std::make_shared<ImageBatch>(argument.images());
          }),
          "images"_a)
      .def_static(
          "allocate",
          [](const std::shared_ptr<Device>& device, const ImageDescriptor& descriptor,
             Index count) { return ImageBatch::make(device, descriptor, count, true); },
          "device"_a.none(false), "descriptor"_a, "count"_a,
          R"(Return a batch of new zero-filled images, in one allocation where the device can.

Parameters
----------
device : Device
descriptor : ImageDescriptor
    Of each of them, with one image.
count : int
    How many, at least 1.

Returns
-------
ImageBatch

Raises
------
ValueError
    If a number is out of range.
)")
      .def_static(
          "temporary",
          [](const std::shared_ptr<CommandBuffer>& command_buffer,
             const ImageDescriptor& descriptor, Index count) {
            return ImageBatch::make_temporary(command_buffer, descriptor, count, true);
          },
          "command_buffer"_a.none(false), "descriptor"_a, "count"_a,
          R"(Return a batch of new `TemporaryImage` objects.

Parameters
----------
command_buffer : CommandBuffer
    They live on it.
descriptor : ImageDescriptor
    Of each of them, with one image.
count : int
    How many, at least 1.

Returns
-------
ImageBatch

Raises
------
ValueError
    If a number is out of range.
CommandBufferError
    If the command buffer has been committed.
)")
      .def_static("from_array", &batch_from_array, "device"_a.none(false), "array"_a,
                  R"(Return a batch over an array.

Parameters
----------
device : Device
array : ndarray, or what has a buffer or DLPack, shape (N, H, W, C), C-contiguous
    float32, float16, uint8 or uint16. The CPU device uses it in place; Metal copies it.

Raises
------
TypeError, ValueError
    If the array is of another kind.
)")
      .def("to_array", &batch_to_array, R"(Return the texels as one array, shape (N, H, W, C).

The CPU device returns its own memory, 64-byte aligned and writable, where the batch is one allocation; otherwise a copy.

Raises
------
ValueError
    If the images differ in size or format, or hold several each.
RuntimeError
    If the work that writes the batch has not been waited for.
)")
      .def(
          "__array__",
          [](const std::shared_ptr<ImageBatch>& self, const py::object& dtype,
             const py::object& copy) {
            return py::module_::import("numpy").attr("array")(
                batch_as_asked<std::invalid_argument>(self, copy), "dtype"_a = dtype,
                "copy"_a = copy);
          },
          "dtype"_a = py::none(), "copy"_a = py::none())
      .def("__dlpack__",
           [](const std::shared_ptr<ImageBatch>& self, const py::kwargs& options) {
             const py::object copy = options.attr("get")("copy");
             return batch_as_asked<py::buffer_error>(self, copy).attr("__dlpack__")(**options);
           })
      .def("__dlpack_device__", [](const ImageBatch&) { return py::make_tuple(1, 0); })
      .def("__len__", &ImageBatch::size)
      .def(
          "__getitem__",
          [](const ImageBatch& self, Index i) {
            const Index index = i < 0 ? i + self.size() : i;
            require<std::out_of_range>(index >= 0 && index < self.size(), "ImageBatch: index ", i,
                                       " is outside a batch of ", self.size());
            return self[index];
          },
          "index"_a)
      .def(
          "__getitem__",
          [](const ImageBatch& self, const py::slice& slice) {
            py::ssize_t start = 0, stop = 0, step = 0, count = 0;
            if (!slice.compute(self.size(), &start, &stop, &step, &count)) {
              throw py::error_already_set();
            }
            require(count > 0, "ImageBatch: a slice must hold at least one image, got ",
                    std::string(py::str(slice)), " of ", self.size());
            ImageBatch::Images images;
            for (py::ssize_t i = 0; i < count; ++i) {
              images.push_back(self[start + i * step]);
            }
            return std::make_shared<ImageBatch>(std::move(images));
          },
          "index"_a)
      .def_property_readonly(
          "shape",
          [](const ImageBatch& self) {
            require_alike(self);
            return py::tuple(py::cast(batch_shape(self)));
          },
          "Of an array of the texels, (N, H, W, C); read only. ValueError if the images differ in "
          "size or format.")
      .def(
          "__iter__",
          [](const ImageBatch& self) {
            return py::make_iterator(self.images().begin(), self.images().end());
          },
          py::keep_alive<0, 1>())
      .def("__repr__", [](const ImageBatch& self) {
        return text("ImageBatch(", self.size(), " x ", self[0]->class_name(), "(",
                    self[0]->descriptor(), "))");
      });
}

void bind_states(py::module_& m) {
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

  const auto list_of = [](const py::object& resources) {
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
  };
  py::class_<State, py::smart_holder>(m, "State",
                                      R"(Opaque carrier of buffers between kernels (``MPSState``).

Parameters
----------
device : Device
resources : int, TextureInfo, ResourceList or Buffer
    Size of one buffer, one texture, several of both, or an existing buffer. Storage is allocated when first needed.
)")
      .def(py::init([list_of](std::shared_ptr<Device> device, const py::object& resources) {
             return py::isinstance<Buffer>(resources)
                        ? std::make_shared<State>(std::move(device),
                                                  resources.cast<std::shared_ptr<Buffer>>())
                        : std::make_shared<State>(std::move(device), list_of(resources));
           }),
           "device"_a.none(false), "resources"_a)
      .def_static(
          "temporary",
          [list_of](const std::shared_ptr<CommandBuffer>& command_buffer,
                    const py::object& resources) {
            return std::make_shared<State>(command_buffer, list_of(resources));
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

void bind_functions(py::module_& m) {
  // Images or states; an ImageBatch, a list, or None for no states.
  const auto on = [](const char* who, const py::handle& batch, auto&& images, auto&& states) {
    if (batch.is_none()) {
      return states(StateBatch{});
    }
    const bool of_states = is_sequence(batch) && py::len(batch) > 0 &&
                           py::isinstance<State>(py::reinterpret_borrow<py::sequence>(batch)[0]);
    return of_states ? states(state_argument(batch, "batch", who))
                     : images(image_argument(batch, "batch", who).images());
  };
  m.def(
      "increment_read_count",
      [on](const py::object& batch, Index amount) {
        return on(
            "increment_read_count", batch,
            [&](const auto& images) { return increment_read_count(images, amount); },
            [&](const auto& states) { return increment_read_count(states, amount); });
      },
      "batch"_a, "amount"_a,
      R"(Add to the read count of every temporary in a batch, once per distinct object.

Returns
-------
int
    Number of distinct objects (``MPSImageBatchIncrementReadCount``, ``MPSStateBatchIncrementReadCount``).
)");
  m.def(
      "resource_size",
      [on](const py::object& batch) {
        return on(
            "resource_size", batch, [](const auto& images) { return resource_size(images); },
            [](const auto& states) { return resource_size(states); });
      },
      "batch"_a, "Bytes of the distinct objects of a batch (``MPSImageBatchResourceSize``).");
  m.def(
      "synchronize",
      [on](const py::object& batch, CommandBuffer& command_buffer) {
        on(
            "synchronize", batch,
            [&](const auto& images) {
              synchronize(images, command_buffer);
              return 0;
            },
            [&](const auto& states) {
              synchronize(states, command_buffer);
              return 0;
            });
      },
      "batch"_a, "command_buffer"_a.none(false),
      "Synchronise the distinct objects of a batch (``MPSImageBatchSynchronize``).");
  m.def(
      "iterate",
      [](const py::object& batch, const py::function& visit) {
        return iterate(image_argument(batch, "batch", "iterate").images(),
                       [&](const std::shared_ptr<Image>& image, Index i) -> std::optional<Index> {
                         const py::object result = visit(image, i);
                         return result.is_none()
                                    ? std::nullopt
                                    : std::optional(integer(result, "iterate: visit's result"));
                       });
      },
      "batch"_a, "visit"_a,
      R"(Call ``visit(image, first_index)`` once per distinct image (``MPSImageBatchIterate``).

Returns
-------
int or None
    What ``visit`` returned to stop, or None if it never did.
)");
}

}  // namespace

void bind_image(py::module_& m) {
  bind_image_descriptor(m);
  bind_images(m);
  bind_states(m);
  bind_functions(m);
}

}  // namespace mpsgrad
