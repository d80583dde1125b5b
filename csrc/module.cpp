// The extension module: exceptions, warnings, process-wide settings, then one bind_ call a layer or
// family.
#include <pybind11/pybind11.h>

#include <exception>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "base/warnings.hpp"
#include "core/arguments_py.hpp"
#include "cpu/isa.hpp"
#include "cpu/memory.hpp"
#include "cpu/threads.hpp"
#include "device/device.hpp"

namespace mpsgrad {

void bind_arithmetic(py::module_& m);
void bind_batch_normalization(py::module_& m);
void bind_convolution(py::module_& m);
void bind_core(py::module_& m);
void bind_device(py::module_& m);
void bind_dropout(py::module_& m);
void bind_image(py::module_& m);
void bind_gram_matrix(py::module_& m);
void bind_graph(py::module_& m);
void bind_group_normalization(py::module_& m);
void bind_local_normalization(py::module_& m);
void bind_loss(py::module_& m);
void bind_neuron(py::module_& m);
void bind_normalization_states(py::module_& m);
void bind_optimizer(py::module_& m);
void bind_peaks(py::module_& m);
void bind_pooling(py::module_& m);
void bind_prober(py::module_& m);
void bind_reduction(py::module_& m);
void bind_reshape(py::module_& m);
void bind_resize(py::module_& m);
void bind_softmax(py::module_& m);
void bind_state(py::module_& m);
void bind_upsampling(py::module_& m);
void bind_vector(py::module_& m);
void word_errors(py::module_& m);

namespace {

// The classes live in mpsgrad/errors.py.
template <class... Arguments>
void raise(const char* name, Arguments&&... arguments) {
  const py::object type = py::module_::import("mpsgrad.errors").attr(name);
  const py::object value = type(std::forward<Arguments>(arguments)...);
  PyErr_SetObject(type.ptr(), value.ptr());
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) {
      std::rethrow_exception(thrown);
    }
  } catch (const CommandBufferError& error) {
    raise("CommandBufferError", error.what(), error.code);
  } catch (const ReadCountError& error) {
    raise("ReadCountError", error.what());
  } catch (const StateError& error) {
    raise("StateError", error.what());
  } catch (const DeviceError& error) {
    raise("DeviceError", error.what());
  } catch (const UnsupportedError& error) {
    raise("UnsupportedError", error.what());
  } catch (const GraphError& error) {
    raise("GraphError", error.what());
  } catch (const TypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  }
}

// How many frames there are from the one that runs up to one that is not the package's: what a
// warning is to name.
int frames_of_package() {
  int frames = 1;
  try {
    auto frame = py::reinterpret_borrow<py::object>(
        reinterpret_cast<PyObject*>(PyEval_GetFrame()));  // null on threads of ours
    for (; frame && !frame.is_none(); frame = frame.attr("f_back")) {
      const std::string name = py::str(frame.attr("f_globals").attr("get")("__name__", ""));
      if (name != "mpsgrad" && !name.starts_with("mpsgrad.")) {
        return frames;
      }
      ++frames;
    }
  } catch (const std::exception&) {  // the name is none
  }
  return 1;
}

void warn_python(WarningKind kind, const std::string& message) {
  if (!may_call_python()) {
    return;
  }
  const py::gil_scoped_acquire locked;
  PyObject* category = kind == WarningKind::Resource ? PyExc_ResourceWarning : PyExc_RuntimeWarning;
  // A destructor may be unwinding with an exception set, and a filter may turn this warning into
  // one.
  const py::error_scope pending;
  if (PyErr_WarnEx(category, message.c_str(), frames_of_package()) < 0) {
    PyErr_WriteUnraisable(nullptr);
  }
}

void bind_process(py::module_& m) {
  m.def("get_num_threads", &cpu::thread_count, "Return how many threads the CPU device uses.");
  m.def("set_num_threads", &cpu::set_thread_count, py::arg("count"),
        R"(Set how many threads the CPU device uses.

Results do not depend on it.

Raises
------
ValueError
    If ``count`` is below 1 or above 1024.
)");
  m.def(
      "cpu_instruction_set", [] { return isa_name(selected_isa()); },
      "Return the instruction set the CPU device uses; ``MPSGRAD_CPU`` forces one.");
  m.def(
      "memory_statistics",
      [] {
        const cpu::MemoryStatistics statistics = cpu::MemoryPool::instance().statistics();
        py::dict result;
        result["in_use"] = statistics.in_use;
        result["cached"] = statistics.cached;
        result["peak"] = statistics.peak;
        result["system_requests"] = statistics.system_requests;
        return result;
      },
      R"(Return what the CPU device's storage takes.

Returns
-------
dict of int
    ``in_use`` and ``cached`` bytes now, ``peak`` bytes ever, and ``system_requests``, how often memory was taken from
    the system: it stands still while a program repeats the same step.
)");
  m.def(
      "release_cached_memory", [] { cpu::MemoryPool::instance().release_cached(); },
      "Give the CPU device's unused storage back to the system.");
  m.def("_drain", &drain_all_devices, py::call_guard<py::gil_scoped_release>());
}

// What object.__reduce__ does for protocols 0 and 1 would make an instance of pybind11's base
// class, which ends the process. So classes that cannot be pickled say so.
void guard_pickling(py::module_& m) {
  const py::object plain = py::module_::import("builtins").attr("object").attr("__reduce__");
  const auto refuse = [](const py::object& self) -> py::tuple {
    fail<TypeError>("cannot pickle '", type_name(self), "' object");
  };
  for_bound_classes(m, [&](const py::object& cls) {
    if (py::object(cls.attr("__reduce__")).is(plain)) {
      cls.attr("__reduce__") = py::cpp_function(refuse, py::name("__reduce__"), py::is_method(cls));
    }
  });
}

// What __new__ alone has made holds nothing, and pybind11 gives it memory that nobody has filled
// where it is first used. So every class refuses to.
void guard_use_before_init(py::module_& m) {
  for_bound_classes(m, [](const py::object& cls) {
    py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(cls.ptr()))->operator_new =
        [](std::size_t) -> void* {
      fail<TypeError>("__init__() of this object has not been called");
    };
  });
}

}  // namespace
}  // namespace mpsgrad

PYBIND11_MODULE(_core, m) {
  using namespace mpsgrad;
  m.doc() = "Compiled part of mpsgrad.";
  m.attr("__version__") = MPSGRAD_VERSION;
  selected_isa();  // a wrong MPSGRAD_CPU shows here
  py::register_local_exception_translator(&translate);
  set_warning_sink(&warn_python);
  bind_process(m);
  bind_device(m);
  bind_state(m);
  bind_image(m);
  bind_vector(m);
  bind_core(m);
  bind_normalization_states(m);
  bind_arithmetic(m);
  bind_batch_normalization(m);
  bind_convolution(m);
  bind_dropout(m);
  bind_gram_matrix(m);
  bind_group_normalization(m);
  bind_local_normalization(m);
  bind_loss(m);
  bind_neuron(m);
  bind_optimizer(m);
  bind_peaks(m);
  bind_pooling(m);
  bind_prober(m);
  bind_reduction(m);
  bind_reshape(m);
  bind_resize(m);
  bind_softmax(m);
  bind_upsampling(m);
  bind_graph(m);
  word_errors(m);
  guard_pickling(m);
  guard_use_before_init(m);
  // Work that is still running must not meet an interpreter that is shutting down.
  py::module_::import("atexit").attr("register")(m.attr("_drain"));
}
