// Binds batches of images, their arrays, and the functions of a batch.
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/arguments_py.hpp"
#include "core/numbers_py.hpp"
#include "device/image_py.hpp"
#include "device/state.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

std::shared_ptr<ImageBatch> batch_from_array(const std::shared_ptr<Device>& device,
                                             const GivenArray& array) {
  return images_over(device, array, true);
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

// Batches of given images, of new ones, and over arrays.
void bind_making(ImageBatchClass& c) {
  c.def(py::init([](const BatchGiven& images) {
          require<TypeError>(PySequence_Check(images.ptr()) != 0,
                             "ImageBatch: images must be a sequence of images, got ",
                             NoImage{images});
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
)");
}

// What NumPy and DLPack see of a batch.
void bind_arrays(ImageBatchClass& c) {
  c.def("to_array", &batch_to_array, R"(Return the texels as one array, shape (N, H, W, C).

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
      .def_property_readonly(
          "shape",
          [](const ImageBatch& self) {
            require_alike(self);
            return py::tuple(py::cast(batch_shape(self)));
          },
          "Of an array of the texels, (N, H, W, C); read only. ValueError if the images differ in "
          "size or format.");
}

void bind_sequence(ImageBatchClass& c) {
  c.def("__len__", &ImageBatch::size)
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

using ImagesOrStates = OneOf<Image, ImageBatch, ImageBatch::Images, State, StateBatch, py::none>;

void bind_functions(py::module_& m) {
  // Images or states; an ImageBatch, a list, or None for no states.
  const auto on = [](const char* who, const py::handle& batch, auto&& images, auto&& states) {
    if (batch.is_none()) {
      return states(StateBatch{});
    }
    const bool several = is_sequence(batch) && py::len(batch) > 0;
    const bool of_states =
        py::isinstance<State>(several ? py::object(py::reinterpret_borrow<py::sequence>(batch)[0])
                                      : py::reinterpret_borrow<py::object>(batch));
    return of_states ? states(state_argument(batch, "batch", who))
                     : images(image_argument(batch, "batch", who).images());
  };
  m.def(
      "increment_read_count",
      [on](const ImagesOrStates& batch, Index amount) {
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
      [on](const ImagesOrStates& batch) {
        return on(
            "resource_size", batch, [](const auto& images) { return resource_size(images); },
            [](const auto& states) { return resource_size(states); });
      },
      "batch"_a, "Bytes of the distinct objects of a batch (``MPSImageBatchResourceSize``).");
  m.def(
      "synchronize",
      [on](const ImagesOrStates& batch, CommandBuffer& command_buffer) {
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
      [](const ImagesGiven& batch, const py::function& visit) {
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

void bind_image_batch(py::module_& m, ImageBatchClass& c) {
  bind_making(c);
  bind_arrays(c);
  bind_sequence(c);
  bind_functions(m);
}

}  // namespace mpsgrad
