// Binds devices, queues, command buffers, predicates, buffers and the enumerations of the device
// layer.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>

#include "core/arguments_py.hpp"
#include "core/numbers_py.hpp"
#include "core/often_called_py.hpp"
#include "core/waiting_py.hpp"
#include "device/buffer.hpp"
#include "device/command_buffer.hpp"
#include "device/device.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

void bind_enumerations(py::module_& m) {
  py::native_enum<ChannelFormat>(m, "ChannelFormat", kEnumeration,
                                 "Storage of one channel value (``MPSImageFeatureChannelFormat``).")
      .value("NONE", ChannelFormat::None)
      .value("UNORM8", ChannelFormat::Unorm8)
      .value("UNORM16", ChannelFormat::Unorm16)
      .value("FLOAT16", ChannelFormat::Float16)
      .value("FLOAT32", ChannelFormat::Float32)
      .finalize();
  py::native_enum<EdgeMode>(m, "EdgeMode", kEnumeration,
                            "What lies outside an image (``MPSImageEdgeMode``).")
      .value("ZERO", EdgeMode::Zero)
      .value("CLAMP", EdgeMode::Clamp)
      .value("MIRROR", EdgeMode::Mirror)
      .value("MIRROR_WITH_EDGE", EdgeMode::MirrorWithEdge)
      .value("CONSTANT", EdgeMode::Constant)
      .finalize();
  py::native_enum<DataLayout>(m, "DataLayout", kEnumeration,
                              "Order of axes in CPU memory (``MPSDataLayout``).")
      .value("HWC", DataLayout::HeightWidthChannels)
      .value("CHW", DataLayout::ChannelsHeightWidth)
      .finalize();
  py::native_enum<StorageMode>(m, "StorageMode", kEnumeration,
                               "Who can see an image's memory (``MTLStorageMode``).")
      .value("SHARED", StorageMode::Shared)
      .value("MANAGED", StorageMode::Managed)
      .value("PRIVATE", StorageMode::Private)
      .value("MEMORYLESS", StorageMode::Memoryless)
      .finalize();
  py::native_enum<CommandBufferStatus>(m, "CommandBufferStatus", kEnumeration,
                                       "Life of a command buffer (``MTLCommandBufferStatus``).")
      .value("NOT_ENQUEUED", CommandBufferStatus::NotEnqueued)
      .value("ENQUEUED", CommandBufferStatus::Enqueued)
      .value("COMMITTED", CommandBufferStatus::Committed)
      .value("SCHEDULED", CommandBufferStatus::Scheduled)
      .value("COMPLETED", CommandBufferStatus::Completed)
      .value("ERROR", CommandBufferStatus::Error)
      .finalize();
}

// A Python callable as a handler: called with the buffer, on whatever thread the work runs. The
// buffer is held weakly, or the two would keep each other alive before the commit; from then on the
// work keeps it.
Work::Handler handler(const std::shared_ptr<CommandBuffer>& command_buffer, py::function function) {
  return [weak = std::weak_ptr(command_buffer), held = share_python(std::move(function))] {
    if (!may_call_python()) {
      return;
    }
    const py::gil_scoped_acquire locked;
    try {
      (*held)(weak.lock());
    } catch (py::error_already_set& error) {
      const bool interrupts = error.matches(PyExc_KeyboardInterrupt);  // who waits may run it
      error.discard_as_unraisable("CommandBuffer handler");
      if (interrupts) {
        PyErr_SetInterrupt();
      }
    }
  };
}

std::shared_ptr<CommandBuffer> make_command_buffer(CommandQueue& self) {
  auto made = self.try_make_command_buffer();
  while (!made) {
    wait_interruptibly([&](auto limit) { return self.wait_for_room(limit); });
    made = self.try_make_command_buffer();
  }
  return made;
}

void commit(CommandBuffer& self) { self.commit(); }

void wait_until_completed(CommandBuffer& self) {
  wait_interruptibly([&](auto limit) { return self.wait_until_completed(limit); });
}

// What a buffer is written with, C-contiguous.
py::array words_of(const GivenArray& data) {
  require<TypeError>(data.array.itemsize() == 4,
                     "Buffer: data must have items of 4 bytes (float32, uint32), got ",
                     std::string(py::str(data.array.dtype())));
  return py::array::ensure(data.array, py::array::c_style);
}

py::array_t<float> buffer_array(Buffer& buffer) {
  const auto count = static_cast<py::ssize_t>(buffer.size() / sizeof(float));
  py::array_t<float> result(count);
  std::memcpy(result.mutable_data(), buffer.for_reading(),
              static_cast<std::size_t>(count) * sizeof(float));
  return result;
}

// numpy.from_dlpack and torch.from_dlpack take the capsule of an array over the same memory.
py::array shared_array(const std::shared_ptr<Buffer>& buffer) {
  auto* data = reinterpret_cast<float*>(buffer->for_writing());
  buffer->for_reading();
  return py::array_t<float>(static_cast<py::ssize_t>(buffer->size() / sizeof(float)), data,
                            keep_alive(buffer));
}

py::class_<Device, py::smart_holder> bind_device_class(py::module_& m) {
  py::class_<Device, py::smart_holder> device(m, "Device",
                                              R"(A device that runs kernels (``MTLDevice``).

Parameters
----------
kind : {"cpu", "metal"}, optional
    Which device; by default Metal where there is a supported GPU, else the CPU.

Raises
------
DeviceError
    If this build or this machine has no such device.
)");
  device.def(py::init([](const std::string& kind) { return find_device(kind); }), "kind"_a = "")
      .def_property_readonly("kind", &Device::kind, "``\"cpu\"`` or ``\"metal\"``.")
      .def_property_readonly("name", &Device::name,
                             "What runs the work: instruction set and threads, or the GPU.")
      .def("__eq__",
           [](const Device& self, const py::object& other) {
             return py::isinstance<Device>(other) && other.cast<const Device*>() == &self;
           })
      .def("__hash__", [](const Device& self) { return std::hash<const Device*>()(&self); })
      .def(
          "__repr__",
          [](const Device& self) { return text("Device('", self.kind(), "': ", self.name(), ")"); })
      .def("__reduce__", [](const py::object& self) -> py::tuple {
        return py::make_tuple(py::type::of(self), py::make_tuple(self.attr("kind")));
      });
  return device;
}

using QueueClass = py::class_<CommandQueue, py::smart_holder>;
using CommandsClass = py::class_<CommandBuffer, py::smart_holder>;

void bind_queue(QueueClass& queue) {
  def_often_called(queue, "command_buffer", &make_command_buffer, R"(Return a new `CommandBuffer`.

Waits while 64 buffers of this queue are under way.

Raises
------
CommandBufferError
    If 64 buffers exist of which none is committed.
)");
  queue.def(py::init([](Device& device) { return device.make_queue(); }), "device"_a.none(false))
      .def_property_readonly("device", &CommandQueue::device,
                             "`Device` that runs the command buffers; read only.")
      .def_readwrite("label", &CommandQueue::label,
                     "Free text, empty by default; Metal's tools show it.")
      .def("__repr__", [](const CommandQueue& self) {
        return text("CommandQueue(", self.device()->kind(), ")");
      });
}

void bind_predicate(py::module_& m) {
  py::class_<Predicate, py::smart_holder>(
      m, "Predicate", R"(Decides on the device whether kernels run (``MPSPredicate``).

Parameters
----------
buffer : Buffer
    Holds the condition.
offset : int, default 0
    Byte offset of a uint32, a multiple of 4. Kernels encoded while the predicate is set on a command buffer run if it
    is not 0 when their turn comes.
)")
      .def(py::init<std::shared_ptr<Buffer>, std::int64_t>(), "buffer"_a.none(false),
           "offset"_a = 0)
      .def_property_readonly("buffer", &Predicate::buffer,
                             "`Buffer` that holds the condition; read only.")
      .def_property_readonly("offset", &Predicate::offset,
                             "Bytes from the buffer's start to the uint32 that decides, a multiple "
                             "of 4; read only.");
}

// Work on its way: committing, waiting, and calls when it starts and ends.
void bind_progress(CommandsClass& c) {
  def_often_called(c, "commit", &commit, "Hand the work to the device.");
  def_often_called(c, "wait_until_completed", &wait_until_completed,
                   R"(Wait for everything committed.

Raises
------
CommandBufferError
    If the work failed, or would never end because it is not committed.
)");
  c.def("enqueue", &CommandBuffer::enqueue, "Reserve this buffer's place in the queue.")
      .def(
          "commit_and_continue",
          [](CommandBuffer& self) {
            wait_interruptibly([&](auto limit) { return self.queue()->wait_for_room(limit); });
            self.commit_and_continue();
          },
          "Commit what is encoded and go on encoding; temporaries stay usable.")
      .def(
          "wait_until_scheduled",
          [](CommandBuffer& self) {
            wait_interruptibly([&](auto limit) { return self.wait_until_scheduled(limit); });
          },
          R"(Wait until the device starts on the work, or has failed to.

Raises
------
CommandBufferError
    If the wait would never end because the work is not committed.
)")
      .def(
          "add_scheduled_handler",
          [](const std::shared_ptr<CommandBuffer>& self, py::function function) {
            self->add_scheduled_handler(handler(self, std::move(function)));
          },
          "handler"_a, "Call ``handler(command_buffer)`` when the work starts, on any thread.")
      .def(
          "add_completed_handler",
          [](const std::shared_ptr<CommandBuffer>& self, py::function function) {
            self->add_completed_handler(handler(self, std::move(function)));
          },
          "handler"_a, R"(Call ``handler(command_buffer)`` when the work has ended, on any thread.

What it raises goes to ``sys.unraisablehook``, which prints it: nobody waits for a handler.
)");
}

void bind_command_buffer(CommandsClass& c) {
  c.def(py::init(
            [](const std::shared_ptr<CommandQueue>& queue) { return make_command_buffer(*queue); }),
        "queue"_a.none(false))
      .def_property_readonly("queue", &CommandBuffer::queue,
                             "`CommandQueue` where the work runs; read only.")
      .def_property_readonly("device", &CommandBuffer::device,
                             "`Device` that runs the work, that of the queue; read only.")
      .def_property_readonly("status", &CommandBuffer::status,
                             "`CommandBufferStatus` of the current root.")
      .def_property_readonly(
          "error",
          [](CommandBuffer& self) -> py::object {
            const std::exception_ptr failure = self.error();
            if (!failure) {
              return py::none();
            }
            try {
              std::rethrow_exception(failure);
            } catch (const CommandBufferError& error) {
              return py::module_::import("mpsgrad.errors")
                  .attr("CommandBufferError")(error.what(), error.code);
            }
          },
          "The `CommandBufferError` that waiting would raise, or None.")
      .def_property(
          "predicate",
          [](const CommandBuffer& self) {
            return std::const_pointer_cast<Predicate>(self.predicate);
          },
          [](CommandBuffer& self, std::shared_ptr<Predicate> predicate) {
            require(!predicate || predicate->buffer()->device() == self.device(),
                    "CommandBuffer: predicate is on another device");
            self.predicate = std::move(predicate);
          },
          "`Predicate` of the kernels encoded from now on, or None.")
      .def_readwrite("label", &CommandBuffer::label,
                     "Free text, empty by default; Metal's tools show it if it is set before "
                     "`commit`.")
      .def("__enter__", [](const std::shared_ptr<CommandBuffer>& self) { return self; })
      .def("__exit__",
           [](CommandBuffer& self, const py::object& type, const py::object&, const py::object&) {
             if (type.is_none() && self.work()->is_open()) {
               self.commit();
             }
           })
      .def("__repr__", [](CommandBuffer& self) {
        return text("CommandBuffer(", self.device()->kind(), ", ",
                    std::string(py::str(py::cast(self.work()->status()).attr("name"))), ")");
      });
}

void bind_commands(py::module_& m, py::class_<Device, py::smart_holder>& device) {
  // Classes first, then methods: a signature shows only those Python names that exist already.
  QueueClass queue(m, "CommandQueue",
                   R"(Runs command buffers in the order they are enqueued (``MTLCommandQueue``).

Parameters
----------
device : Device
    What runs them.
)");
  CommandsClass command_buffer(
      m, "CommandBuffer",
      R"(Work that is encoded now and runs after `commit` (``MPSCommandBuffer``).

Use it as a context manager to commit on a clean exit; that does not wait.

Parameters
----------
queue : CommandQueue
    Where the work will run.
)");
  device.def("command_queue", &Device::make_queue, "Return a new `CommandQueue`.");
  bind_queue(queue);
  bind_predicate(m);
  bind_progress(command_buffer);
  bind_command_buffer(command_buffer);
}

void bind_buffer(py::module_& m) {
  py::class_<Buffer, py::smart_holder>(m, "Buffer", py::buffer_protocol(),
                                       R"(Plain device memory (``MTLBuffer``).

Exports the buffer protocol and DLPack without a copy, as a one-dimensional float32 array.

Parameters
----------
device : Device
data : ndarray of float32, uint32 or int32, or what has a buffer or DLPack
    Initial contents, copied.
size : int
    In place of ``data``: bytes, a multiple of 4, zero-filled.

Raises
------
TypeError, ValueError
    If ``data`` is no array, is empty or has items of other than 4 bytes, or ``size`` is not a positive multiple of 4.
MemoryError, DeviceError
    If the device has no room for so many bytes, or takes no buffer of that size.
)")
      .def(py::init([](Device& device, const GivenArray& data) {
             const py::array array = words_of(data);
             require(array.nbytes() > 0, "Buffer: data must not be empty");
             auto buffer = device.make_buffer(static_cast<std::size_t>(array.nbytes()));
             std::memcpy(buffer->for_writing(), array.data(),
                         static_cast<std::size_t>(array.nbytes()));
             return buffer;
           }),
           "device"_a.none(false), "data"_a)
      .def(py::init([](Device& device, Index size) {
             require(size > 0 && size % 4 == 0,
                     "Buffer: size must be a positive multiple of 4, got ", size);
             return device.make_buffer(static_cast<std::size_t>(size));
           }),
           "device"_a.none(false), "size"_a)
      .def_property_readonly("device", &Buffer::device, "`Device` whose memory it is; read only.")
      .def_property_readonly("nbytes", &Buffer::size, "Bytes of memory; read only.")
      .def("to_numpy", &buffer_array, R"(Return a copy as a one-dimensional float32 array.

Raises
------
RuntimeError
    If the command buffer that writes it has not been waited for, or the memory is private to the device.
)")
      .def(
          "write",
          [](Buffer& self, const GivenArray& data, Index offset) {
            const py::array dense = words_of(data);
            const Index bytes = dense.nbytes();
            require(offset >= 0 && offset <= static_cast<Index>(self.size()) - bytes,
                    "Buffer: ", bytes, " bytes at offset ", offset, " do not fit ", self.size());
            // which may be an array of this buffer
            std::memmove(self.for_writing() + offset, dense.data(),
                         static_cast<std::size_t>(bytes));
          },
          "data"_a, "offset"_a = 0, R"(Copy an array's bytes into the buffer.

Parameters
----------
data : ndarray of float32, uint32 or int32
offset : int, default 0
    Where in the buffer, bytes.

Raises
------
TypeError, ValueError
    If the items are not of 4 bytes, or the bytes do not fit.
RuntimeError
    If committed work that nobody has waited for uses the buffer, or the memory is private to the device.
)")
      .def(
          "__array__",
          [](const std::shared_ptr<Buffer>& self, const py::object& dtype,
             const py::object& copy) -> py::array {
            return as_asked(
                "Buffer", dtype, copy, [&] { return shared_array(self); },
                [&] { return py::array(buffer_array(*self)); });
          },
          "dtype"_a = py::none(), "copy"_a = py::none())
      .def("__dlpack__",
           [](const std::shared_ptr<Buffer>& self, const py::kwargs& options) {
             return shared_array(self).attr("__dlpack__")(**options);
           })
      .def("__dlpack_device__", [](const std::shared_ptr<Buffer>&) { return py::make_tuple(1, 0); })
      .def_buffer([](Buffer& self) {
        auto* data = reinterpret_cast<float*>(self.for_writing());
        self.for_reading();
        return py::buffer_info(data, static_cast<py::ssize_t>(self.size() / sizeof(float)));
      })
      .def("__len__", [](const Buffer& self) { return self.size() / sizeof(float); })
      .def("__repr__", [](const Buffer& self) {
        return text("Buffer(", self.device()->kind(), ", ", self.size(), " bytes)");
      });
}

}  // namespace

void bind_device(py::module_& m) {
  bind_enumerations(m);
  auto device = bind_device_class(m);
  bind_buffer(m);
  bind_commands(m, device);
}

}  // namespace mpsgrad
