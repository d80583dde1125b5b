// bind_normalization_states: the states that carry arrays into normalization kernels; and data
// sources written in Python.
#include "core/normalization_py.hpp"

#include <cstring>

#include "core/normalization_states.hpp"
#include "core/numbers_py.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

std::vector<float> float_vector(const char* who, const char* name, const py::object& values) {
  const FloatArray array = float_array(text(who, ": ", name), values);
  require(array.ndim() == 1, who, ": ", name, " must have one axis, got ", array.ndim());
  return values_of(array);
}

// Called on whatever thread a kernel needs the numbers.
class PySource final : public NormalizationDataSource {
 public:
  PySource(py::object source, const NormalizationProtocol& protocol)
      : source_(share_python(std::move(source))), protocol_(protocol) {}
  const py::object& object() const { return *source_; }

  NormalizationSourceData read(const char* who, const NormalizationWanted& wanted) override {
    const py::gil_scoped_acquire locked;
    const py::object& source = *source_;
    const bool loads = protocol_.load || py::hasattr(source, "load");
    const py::object loaded = loads ? source.attr("load")() : py::bool_(true);
    require(py::bool_(loaded), who, ": load() of ", type_name(source), " must return True, got ",
            std::string(py::repr(loaded)));
    NormalizationSourceData data;
    try {
      data = read_loaded(who, wanted);
    } catch (...) {
      const py::error_scope pending;
      purge();  // exactly one a load, whatever happened between
      throw;
    }
    purge();
    return data;
  }

 private:
  void purge() const {
    if (protocol_.load || py::hasattr(*source_, "purge")) {
      source_->attr("purge")();
    }
  }

  // Null if there is no such member; an AttributeError out of one that is there is passed on.
  py::object find(const char* name) const {
    PyObject* value = PyObject_GetAttrString(source_->ptr(), name);
    if (value != nullptr) {
      return py::reinterpret_steal<py::object>(value);
    }
    const py::error_already_set error;
    const py::object nothing = py::module_::import("builtins").attr("object")();
    if (!error.matches(PyExc_AttributeError) ||
        !py::module_::import("inspect")
             .attr("getattr_static")(*source_, name, nothing)
             .is(nothing)) {
      throw error;
    }
    return {};
  }

  py::object member(const char* who, const char* name) const {
    py::object value = find(name);
    require<TypeError>(static_cast<bool>(value), who, ": data_source must have ", name, ", but ",
                       type_name(*source_), " has none");
    return value;
  }

  std::optional<std::vector<float>> array(const char* who, const char* name) const {
    const py::object value = member(who, name);
    return value.is_none() ? std::nullopt : std::optional(float_vector(who, name, value));
  }

  NormalizationSourceData read_loaded(const char* who, const NormalizationWanted& wanted) const {
    NormalizationSourceData data;
    data.channels = integer(member(who, "number_of_feature_channels"), who,
                            ": number_of_feature_channels of the data source");
    if (wanted.gamma_and_beta) {
      data.gamma = array(who, "gamma");
      data.beta = array(who, "beta");
    }
    if (wanted.mean_and_variance && protocol_.statistics) {
      data.mean = array(who, "mean");
      data.variance = array(who, "variance");
    }
    if (wanted.settings) {
      if (protocol_.groups) {
        data.groups =
            integer(member(who, "number_of_groups"), who, ": number_of_groups of the data source");
      }
      const py::object epsilon = find("epsilon");
      if (epsilon && !epsilon.is_none()) {
        const double number = PyFloat_AsDouble(epsilon.ptr());
        if (PyErr_Occurred() != nullptr) {
          PyErr_Clear();
          fail<TypeError>(who, ": epsilon of the data source must be a number, got ",
                          type_name(epsilon));
        }
        data.epsilon = static_cast<float>(number);
      }
      const py::object label = member(who, "label");
      if (!label.is_none()) {
        require<TypeError>(py::isinstance<py::str>(label), who,
                           ": label of the data source must be a str or None, got ",
                           type_name(label));
        data.label = label.cast<std::string>();
      }
    }
    return data;
  }

  std::shared_ptr<py::object> source_;
  NormalizationProtocol protocol_;
};

// Buffers are used where they are, arrays are copied into one.
std::shared_ptr<Buffer> buffer_argument(const char* who, const char* name, const py::object& values,
                                        const std::shared_ptr<Device>& device) {
  if (py::isinstance<Buffer>(values)) {
    return values.cast<std::shared_ptr<Buffer>>();
  }
  const std::vector<float> numbers = float_vector(who, name, values);
  require(!numbers.empty(), who, ": ", name, " must not be empty");
  auto buffer = device->make_buffer(numbers.size() * sizeof(float));
  std::memcpy(buffer->for_writing(), numbers.data(), numbers.size() * sizeof(float));
  return buffer;
}

std::shared_ptr<Device> device_for(const char* who, const py::object& first,
                                   const py::object& second, const py::object& device) {
  if (py::isinstance<Device>(device)) {
    return device.cast<std::shared_ptr<Device>>();
  }
  require<TypeError>(device.is_none() || py::isinstance<py::str>(device), who,
                     ": device must be a Device, a kind or None, got ", type_name(device));
  if (device.is_none()) {
    for (const py::object* values : {&first, &second}) {
      if (py::isinstance<Buffer>(*values)) {
        return values->cast<const Buffer&>().device();
      }
    }
  }
  return find_device(device.is_none() ? std::string() : device.cast<std::string>());
}

using Values = OneOf<Buffer, FloatArray>;

template <class PairState>
void bind_pair(py::module_& m, const char* name, const char* first_name, const char* second_name,
               const char* doc) {
  py::class_<PairState, State, py::smart_holder>(m, name, doc)
      .def(
          py::init([name, first_name, second_name](const Values& first, const Values& second,
                                                   const OneOf<Device, py::str, py::none>& device) {
            const auto chosen = device_for(name, first, second, device);
            auto one = buffer_argument(name, first_name, first, chosen);
            auto other = buffer_argument(name, second_name, second, chosen);
            return std::make_shared<PairState>(std::move(one), std::move(other));
          }),
          py::arg(first_name), py::arg(second_name), py::kw_only(), "device"_a = py::none())
      .def_static(
          "temporary",
          [name](const std::shared_ptr<CommandBuffer>& command_buffer, const Integer& channels) {
            return std::make_shared<PairState>(
                command_buffer, integer(channels, name, ".temporary: number_of_feature_channels"));
          },
          "command_buffer"_a.none(false), "number_of_feature_channels"_a,
          "Return a state that lives on one command buffer, for up to so many channels.")
      .def_property_readonly(first_name, &PairState::first, "`Buffer` of one float32 a channel.")
      .def_property_readonly(second_name, &PairState::second, "`Buffer` of one float32 a channel.");
}

}  // namespace

std::shared_ptr<NormalizationDataSource> normalization_source_argument(
    const char* who, const py::object& source, const NormalizationProtocol& protocol) {
  require<TypeError>(!source.is_none(), who, ": data_source must not be None");
  if (protocol.load) {
    for (const char* method : {"load", "purge"}) {
      require<TypeError>(py::hasattr(source, method), who, ": data_source must have ", method,
                         "(), but ", type_name(source), " has none");
    }
  }
  return std::make_shared<PySource>(source, protocol);
}

py::object normalization_source_object(const std::shared_ptr<NormalizationDataSource>& source) {
  return dynamic_cast<const PySource&>(*source).object();
}

void bind_normalization_states(py::module_& m) {
  bind_pair<NormalizationGammaAndBetaState>(
      m, "NormalizationGammaAndBetaState", "gamma", "beta",
      R"(Scale and offset on their way into a kernel (``MPSCNNNormalizationGammaAndBetaState``).

Optimizers write them, and ``reload_gamma_and_beta`` of a normalization kernel copies them from here.

Parameters
----------
gamma, beta : array_like or Buffer, float32, shape (C,)
    Of equal lengths. Arrays are copied, buffers are used where they are. They may be longer than a kernel needs.
device : Device or str, optional
    Of the arrays; by default that of the buffers, else Metal where there is a supported GPU, else the CPU.

Raises
------
TypeError, ValueError
    If one of them holds no numbers, has other than one axis, or is of another length or device.
)");
  bind_pair<NormalizationMeanAndVarianceState>(
      m, "NormalizationMeanAndVarianceState", "mean", "variance",
      R"(Statistics on their way into a kernel (``MPSCNNNormalizationMeanAndVarianceState``).

``BatchNormalization.reload_mean_and_variance`` copies them from here.

Parameters
----------
mean, variance : array_like or Buffer, float32, shape (C,)
    Of equal lengths. Arrays are copied, buffers are used where they are. They may be longer than a kernel needs.
device : Device or str, optional
    Of the arrays; by default that of the buffers, else Metal where there is a supported GPU, else the CPU.

Raises
------
TypeError, ValueError
    If one of them holds no numbers, has other than one axis, or is of another length or device.
)");
}

}  // namespace mpsgrad
