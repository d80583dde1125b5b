// bind_convolution: descriptors, data sources written in Python, states and kernels;
// python/mpsgrad/convolution.py documents the kernels.
#include <pybind11/native_enum.h>

#include <algorithm>
#include <set>

#include "core/forward_encode_py.hpp"
#include "core/numbers_py.hpp"
#include "core/often_called_py.hpp"
#include "kernels/convolution/convolution_transpose.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

bool has(const py::object& source, const char* method) { return py::hasattr(source, method); }

std::string name_of(const char* method) { return text("ConvolutionDataSource: ", method, "()"); }

std::vector<float> float_values(const py::object& source, const char* method) {
  return values_of(float_array(name_of(method), source.attr(method)()));
}

// One of Apple's numbers, as the method returns it; the words of `allowed` name them.
template <class T>
T one_of(const py::object& result, const char* method, std::initializer_list<T> values,
         const char* allowed) {
  const Index number = integer(result, name_of(method));
  for (const T value : values) {
    if (number == static_cast<Index>(value)) {
      return value;
    }
  }
  fail(name_of(method), " must be ", allowed, ", got ", std::string(py::str(result)));
}

DataType data_type(const py::object& result, const char* method) {
  return one_of(result, method, {DataType::Float32, DataType::Float16, DataType::UInt8},
                "FLOAT32, FLOAT16 or UINT8");
}

constexpr int kOhwi = 0;  // MPSCNNConvolutionWeightsLayoutOHWI, the only layout

const char* dtype_of(DataType type) {
  return type == DataType::Float32 ? "float32" : type == DataType::Float16 ? "float16" : "uint8";
}

py::tuple shape_tuple(const ConvolutionWeightShape& s) {
  if (s.depthwise) {
    return py::make_tuple(s.output_channels, s.kernel_height, s.kernel_width);
  }
  return py::make_tuple(s.output_channels, s.kernel_height, s.kernel_width,
                        s.input_channels_per_group);
}

// Any object with the methods of Apple's protocol; called on whatever thread a kernel needs
// weights.
class PyDataSource final : public ConvolutionDataSource {
 public:
  explicit PyDataSource(py::object source) : source_(share_python(std::move(source))) {}
  const py::object& object() const { return *source_; }

  ConvolutionSourceData read() override {
    const py::gil_scoped_acquire locked;
    const py::object& source = *source_;
    const py::object loaded = source.attr("load")();
    require<std::runtime_error>(py::bool_(loaded), "ConvolutionDataSource: load() of ",
                                type_name(source), " must return True, got ",
                                std::string(py::repr(loaded)));
    ConvolutionSourceData data;
    try {
      data = read_loaded(source);
    } catch (...) {
      const py::error_scope pending;
      source.attr("purge")();  // exactly one a load, whatever happened between
      throw;
    }
    source.attr("purge")();
    return data;
  }

 private:
  // Weights may be flat, or in axes that are parts or products of the shape's; other ones show that
  // they lie in another order.
  static void check_axes(const py::array& weights, const ConvolutionWeightShape& shape) {
    const auto products_of =
        [](const py::sequence& lengths) {  // of the first axis, the first two, ...
          std::set<Index> result;
          Index product = 1;
          for (const py::handle length : lengths) {
            result.insert(product *= length.cast<Index>());
          }
          return result;
        };
    const py::tuple wanted = shape_tuple(shape);
    const py::tuple came = weights.attr("shape");
    const std::set<Index> ours = products_of(wanted), theirs = products_of(came);
    const auto has = [](const std::set<Index>& all, const std::set<Index>& some) {
      return std::includes(all.begin(), all.end(), some.begin(), some.end());
    };
    require(weights.size() != shape.weight_count() || has(ours, theirs) || has(theirs, ours),
            "ConvolutionDataSource: weights() must have shape ", std::string(py::repr(wanted)),
            " or be flat, got ", std::string(py::repr(came)));
  }

  static ConvolutionSourceData read_loaded(const py::object& source) {
    ConvolutionSourceData data;
    const py::object descriptor = source.attr("descriptor")();
    require<TypeError>(
        py::isinstance<ConvolutionDescriptor>(descriptor),
        "ConvolutionDataSource: descriptor() must return a ConvolutionDescriptor, got ",
        type_name(descriptor));
    data.descriptor = descriptor.cast<ConvolutionDescriptor>();
    data.data_type = data_type(source.attr("data_type")(), "data_type");
    if (has(source, "kernel_weights_data_type")) {
      const py::object kernel_type = source.attr("kernel_weights_data_type")();
      if (!kernel_type.is_none()) {
        data.kernel_type = data_type(kernel_type, "kernel_weights_data_type");
      }
    }
    if (has(source, "weights_layout")) {
      const py::object layout = source.attr("weights_layout")();
      require(layout.equal(py::int_(kOhwi)),
              "ConvolutionDataSource: weights_layout() must be OHWI, Apple's only one, got ",
              std::string(py::repr(layout)));
    }
    if (has(source, "weights_quantization_type")) {
      constexpr const char* kMethod = "weights_quantization_type";
      data.quantization = one_of(source.attr(kMethod)(), kMethod,
                                 {WeightsQuantization::None, WeightsQuantization::Linear,
                                  WeightsQuantization::LookupTable},
                                 "NONE, LINEAR or LOOKUP_TABLE");
    }
    const py::array weights = py::array::ensure(source.attr("weights")(), py::array::c_style);
    require<TypeError>(static_cast<bool>(weights),
                       "ConvolutionDataSource: weights() must return an array");
    require<TypeError>(weights.dtype().equal(py::dtype(dtype_of(data.data_type))),
                       "ConvolutionDataSource: weights() must be ", dtype_of(data.data_type),
                       " as data_type() says, got ", std::string(py::str(weights.dtype())));
    check_axes(weights, data.descriptor.weight_shape());
    if (data.data_type == DataType::UInt8) {
      const auto* bytes = static_cast<const std::uint8_t*>(weights.data());
      data.bytes.assign(bytes, bytes + weights.size());
      if (data.quantization == WeightsQuantization::Linear) {
        data.ranges = float_values(source, "ranges_for_uint8_kernel");
      } else if (data.quantization == WeightsQuantization::LookupTable) {
        data.lookup_table = float_values(source, "lookup_table_for_uint8_kernel");
      }
    } else {
      data.weights = values_of(weights);
    }
    const py::object biases = source.attr("bias_terms")();
    if (!biases.is_none()) {
      const py::array array = py::array::ensure(biases);
      require<TypeError>(array && array.dtype().equal(py::dtype("float32")),
                         "ConvolutionDataSource: bias_terms() must be float32 or None");
      data.biases = values_of(array);
    }
    if (has(source, "label")) {
      const py::object label = source.attr("label")();
      require<TypeError>(label.is_none() || py::isinstance<py::str>(label), name_of("label"),
                         " must be a str or None, got ", type_name(label));
      data.label = label.is_none() ? std::string() : label.cast<std::string>();
    }
    return data;
  }

  std::shared_ptr<py::object> source_;
};

std::shared_ptr<ConvolutionDataSource> source_argument(const py::object& source,
                                                       const std::string& who) {
  if (PyType_Check(source.ptr()) != 0) {
    fail<TypeError>(who, ": weights must be a ConvolutionDataSource, got the class ",
                    std::string(py::str(source.attr("__name__"))));
  }
  for (const char* method : {"load", "purge", "descriptor", "data_type", "weights", "bias_terms"}) {
    require<TypeError>(has(source, method), who,
                       ": weights must be a ConvolutionDataSource, for one an "
                       "ArrayConvolutionDataSource of an array: ",
                       type_name(source), " has no ", method, "()");
  }
  return std::make_shared<PyDataSource>(source);
}

py::object source_object(const std::shared_ptr<ConvolutionDataSource>& source) {
  return dynamic_cast<const PyDataSource&>(*source).object();
}

constexpr const char* kShapeDoc =
    "(O, kernel_height, kernel_width, I / groups), or without the last for a depthwise "
    "convolution; read only.";

using ValuesOrNone = OneOf<FloatArray, py::none>;

void bind_descriptor_fields(py::class_<ConvolutionDescriptor>& c) {
  using D = ConvolutionDescriptor;
  const auto field = [&](const char* name, auto get, const char* doc) {
    c.def_property(
        name, [get](const D& self) { return get(const_cast<D&>(self)); },
        [get](D& self, Index value) {
          D changed = self;
          get(changed) = value;
          changed.check("ConvolutionDescriptor");
          self = std::move(changed);
        },
        doc);
  };
  field(
      "kernel_width", [](D& d) -> Index& { return d.window.kernel_width; },
      "Taps of the window in a row, before dilation; at least 1, or ValueError.");
  field(
      "kernel_height", [](D& d) -> Index& { return d.window.kernel_height; },
      "Taps of the window in a column, before dilation; at least 1, or ValueError.");
  field(
      "input_feature_channels", [](D& d) -> Index& { return d.input_feature_channels; },
      "Channels read of the source, at least 1; ValueError if `groups`, or the outputs of a "
      "depthwise convolution, do not allow the number.");
  field(
      "output_feature_channels", [](D& d) -> Index& { return d.output_feature_channels; },
      "Channels of the result before depth to space, at least 1; ValueError if `groups` or another "
      "property does not allow the number.");
  field(
      "stride_in_pixels_x", [](D& d) -> Index& { return d.window.stride_x; },
      "Columns of the source from one window to the next (in a transposed convolution, of the "
      "destination); at least 1, or ValueError.");
  field(
      "stride_in_pixels_y", [](D& d) -> Index& { return d.window.stride_y; },
      "Rows of the source from one window to the next (in a transposed convolution, of the "
      "destination); at least 1, or ValueError.");
  field(
      "dilation_rate_x", [](D& d) -> Index& { return d.window.dilation_x; },
      "Columns of the source from one tap to the next, 1 without dilation; at least 1, or "
      "ValueError.");
  field(
      "dilation_rate_y", [](D& d) -> Index& { return d.window.dilation_y; },
      "Rows of the source from one tap to the next, 1 without dilation; at least 1, or "
      "ValueError.");
  field(
      "groups", [](D& d) -> Index& { return d.groups; },
      "Parts that inputs and outputs are divided into, each fed by its own inputs alone; "
      "ValueError unless it divides both, into multiples of 4 if it is above 1.");
  field(
      "sub_pixel_scale_factor", [](D& d) -> Index& { return d.sub_pixel_scale_factor; },
      "Growth of width and height by depth to space, 1 for none; ValueError if its square does "
      "not divide the output channels.");
}

// The arguments that make such a descriptor, those that differ from their defaults.
std::string descriptor_text(const py::object& self) {
  const auto& d = self.cast<const ConvolutionDescriptor&>();
  const Window& w = d.window;
  std::string result = text(type_name(self), "(", w.kernel_width, ", ", w.kernel_height,
                            ", input_feature_channels=", d.input_feature_channels,
                            ", output_feature_channels=", d.output_feature_channels);
  const auto add = [&](const char* name, Index value) {
    if (value != 1) {
      result += text(", ", name, "=", value);
    }
  };
  add("stride_in_pixels_x", w.stride_x);
  add("stride_in_pixels_y", w.stride_y);
  add("dilation_rate_x", w.dilation_x);
  add("dilation_rate_y", w.dilation_y);
  add("groups", d.groups);
  add("sub_pixel_scale_factor", d.sub_pixel_scale_factor);
  if (d.neuron.type != NeuronType::None) {
    const py::object neuron = py::module_::import("mpsgrad.neuron")
                                  .attr("NeuronDescriptor")(d.neuron.type, d.neuron.a, d.neuron.b,
                                                            d.neuron.c, d.neuron.data);
    result += ", fused_neuron_descriptor=" + std::string(py::repr(neuron));
  }
  return result + ")";
}

void bind_descriptor(py::module_& m) {
  using D = ConvolutionDescriptor;
  py::class_<D> c(m, "ConvolutionDescriptor");
  c.def(py::init([](Index kernel_width, Index kernel_height, Index inputs, Index outputs,
                    Index stride_x, Index stride_y, Index dilation_x, Index dilation_y,
                    Index groups, bool depthwise, Index scale, const NeuronDescriptor& neuron) {
          D d;
          d.window = {kernel_width, kernel_height, stride_x, stride_y, dilation_x, dilation_y};
          d.input_feature_channels = inputs;
          d.output_feature_channels = outputs;
          d.groups = groups;
          d.depthwise = depthwise;
          d.sub_pixel_scale_factor = scale;
          d.neuron = neuron;
          d.check("ConvolutionDescriptor");
          return d;
        }),
        "kernel_width"_a, "kernel_height"_a, "input_feature_channels"_a,
        "output_feature_channels"_a, "stride_in_pixels_x"_a, "stride_in_pixels_y"_a,
        "dilation_rate_x"_a, "dilation_rate_y"_a, "groups"_a, "depthwise"_a,
        "sub_pixel_scale_factor"_a, "fused_neuron_descriptor"_a);
  bind_descriptor_fields(c);
  c.def("__eq__", [](const D& a, const D& b) { return a == b; }, py::is_operator());
  c.def("__repr__", &descriptor_text);
  c.def_property_readonly(
       "channel_multiplier", [](const D& self) { return self.depthwise ? 1 : 0; },
       "Outputs of each input channel in a depthwise convolution, 1; 0 in a regular one. Read "
       "only.")
      .def_property(
          "fused_neuron_descriptor", [](const D& self) { return self.neuron; },
          [](D& self, const NeuronDescriptor& neuron) {
            check_neuron(neuron, "ConvolutionDescriptor", self.output_feature_channels);
            self.neuron = neuron;
          },
          "Activation applied to the result, a copy each time; ValueError for PRELU with fewer "
          "slopes than output channels.")
      .def_property_readonly(
          "weight_shape", [](const D& self) { return shape_tuple(self.weight_shape()); }, kShapeDoc)
      .def(
          "set_batch_normalization_parameters_for_inference",
          [](D& self, const ValuesOrNone& mean, const ValuesOrNone& variance,
             const ValuesOrNone& gamma, const ValuesOrNone& beta, float epsilon) {
            D changed = self;
            const auto values = [](const char* name, const py::object& array) {
              return array.is_none()
                         ? std::vector<float>()
                         : values_of(float_array(text("ConvolutionDescriptor: ", name), array));
            };
            changed.mean = values("mean", mean);
            changed.variance = values("variance", variance);
            changed.gamma = values("gamma", gamma);
            changed.beta = values("beta", beta);
            changed.epsilon = epsilon;
            changed.has_batch_normalization =
                !(mean.is_none() && variance.is_none() && gamma.is_none() && beta.is_none());
            changed.check("ConvolutionDescriptor");
            self = std::move(changed);
          },
          "mean"_a, "variance"_a, "gamma"_a, "beta"_a, "epsilon"_a,
          R"(Fold batch normalization into weights and biases, before the fused neuron.

For inference: kernels of such a descriptor have no gradient. Four times None undoes it.

Parameters
----------
mean, variance, gamma, beta : array_like of float32, shape (O,), or None
    One number for each output channel, copied; None stands for 0, 1, 1 and 0.
epsilon : float
    Added to the variance under the root.

Raises
------
ValueError
    If an array has another length than there are output channels.
)")
      .def_property_readonly("_batch_normalization", [](const D& self) -> py::object {
        return self.has_batch_normalization
                   ? py::object(py::make_tuple(self.mean, self.variance, self.gamma, self.beta,
                                               self.epsilon))
                   : py::object(py::none());
      });
}

void bind_states(py::module_& m) {
  using Gradients = ConvolutionGradientState;
  py::class_<Gradients, GradientState, py::smart_holder> gradients(
      m, "ConvolutionGradientState",
      R"(Weight and bias gradients of one batch (``MPSCNNConvolutionGradientState``).

Made by `Convolution` or `FullyConnected`. One object serves the whole batch; every gradient encode adds to it.
)");
  gradients
      .def_property_readonly("gradient_for_weights", &Gradients::gradient_for_weights,
                             "`Buffer` of float32 in the layout of the weights.")
      .def_property_readonly("gradient_for_biases", &Gradients::gradient_for_biases,
                             "`Buffer` of float32, one an output channel.")
      .def_property_readonly(
          "gradient_for_weights_layout",
          [](const Gradients&) {
            return py::module_::import("mpsgrad.convolution")
                .attr("ConvolutionWeightsLayout")(kOhwi);
          },
          "`ConvolutionWeightsLayout` of the weight gradients.")
      .def_property_readonly("convolution", &Gradients::producer, "The kernel that made it.")
      .def_property_readonly(
          "weight_shape", [](const Gradients& self) { return shape_tuple(self.shape()); },
          kShapeDoc);
  forbid_construction(gradients);

  using Transposed = ConvolutionTransposeGradientState;
  py::class_<Transposed, Gradients, py::smart_holder> transposed(
      m, "ConvolutionTransposeGradientState",
      R"(As `ConvolutionGradientState`, of `ConvolutionTranspose` (``MPSCNNConvolutionTransposeGradientState``).
)");
  transposed
      .def_property_readonly("convolution_transpose", &Transposed::producer,
                             "The kernel that made it.")
      .def_property_readonly(
          "convolution",
          [](const Transposed& self) -> std::shared_ptr<KernelBase> {
            return self.undone() ? self.undone()->producer() : nullptr;
          },
          "The convolution whose state the forward encode was given, or None.");
  forbid_construction(transposed);

  using Weights = ConvolutionWeightsAndBiasesState;
  py::class_<Weights, State, py::smart_holder>(
      m, "ConvolutionWeightsAndBiasesState",
      R"(Weights and biases on the device (``MPSCNNConvolutionWeightsAndBiasesState``).

Parameters
----------
weights : Buffer
    Exactly the weights, float32, in the layout of the data source.
biases : Buffer, optional
    Exactly the biases, float32.
)")
      .def(py::init(
               [](std::shared_ptr<Buffer> weights, std::optional<std::shared_ptr<Buffer>> biases) {
                 auto device = weights->device();
                 return std::make_shared<Weights>(std::move(device), std::move(weights),
                                                  biases.value_or(nullptr));
               }),
           "weights"_a.none(false), "biases"_a = py::none())
      .def_static(
          "for_descriptor",
          [](std::shared_ptr<Device> device, const ConvolutionDescriptor& descriptor) {
            return std::make_shared<Weights>(std::move(device), descriptor.weight_shape(), true);
          },
          "device"_a.none(false), "descriptor"_a,
          "Return a zero-filled state for the weights and biases a descriptor describes.")
      .def_static(
          "temporary",
          [](const std::shared_ptr<CommandBuffer>& command_buffer,
             const ConvolutionDescriptor& descriptor) {
            return std::make_shared<Weights>(command_buffer, descriptor.weight_shape(), true);
          },
          "command_buffer"_a.none(false), "descriptor"_a,
          "Return a state that lives on one command buffer.")
      .def_static(
          "with_offsets",
          [](std::shared_ptr<Buffer> weights, Index weights_offset, std::shared_ptr<Buffer> biases,
             Index biases_offset, const ConvolutionDescriptor& descriptor) {
            auto device = weights->device();
            return std::make_shared<Weights>(std::move(device), descriptor.weight_shape(),
                                             std::move(weights), weights_offset, std::move(biases),
                                             biases_offset);
          },
          "weights"_a.none(false), "weights_offset"_a, "biases"_a, "biases_offset"_a,
          "descriptor"_a,
          "Return a state over parts of buffers; offsets in bytes, multiples of 4. Both may be one "
          "buffer.")
      .def_property_readonly("weights", &Weights::weights,
                             "`Buffer` of float32, from `weights_offset` on in the layout of the "
                             "data source; ReadCountError if a temporary state has been used up.")
      .def_property_readonly("biases", &Weights::biases, "None where the state has none.")
      .def_property_readonly("weights_offset", &Weights::weights_offset, "Bytes.")
      .def_property_readonly("biases_offset", &Weights::biases_offset, "Bytes.");
}

constexpr const char* kDescriptorDoc =
    "A copy of the data source's descriptor, as it was when the kernel was made; read only.";
constexpr const char* kSourceDoc =
    "The object given to the constructor, read again by every reload from the data source; read "
    "only.";
constexpr const char* kReloadFromSourceDoc =
    "Read the data source again; work that is encoded already keeps the weights it was encoded "
    "with.";
std::string reload_doc() {
  return text(
      R"(Encode a copy of a state's weights and biases into the kernel, for the encodes after it.

Parameters
----------
command_buffer : CommandBuffer
state : ConvolutionWeightsAndBiasesState
    Read once. If it has no biases, those of the kernel stay.

Raises
------
TypeError, ValueError
    If an argument is of another class, device or command buffer, or the state has more or fewer weights or biases than
    the kernel.
)",
      kWorkRaises);
}

template <class Class>
void bind_constructor(Class& c) {
  using Kernel = typename Class::type;
  const auto name = c.attr("__name__").template cast<std::string>();
  c.def(py::init([name](std::shared_ptr<Device> device, const py::object& weights) {
          return std::make_shared<Kernel>(std::move(device), source_argument(weights, name));
        }),
        "device"_a.none(false), "weights"_a);
}

// What kernels of all kinds have, of a C++ class that Python does not know as the others' base.
template <class Class>
void bind_forward(py::class_<Class, UnaryKernel, py::smart_holder>& c) {
  bind_constructor(c);
  c.def_property_readonly(
       "descriptor", [](const Class& self) { return self.descriptor(); }, kDescriptorDoc)
      .def_property_readonly(
          "data_source", [](const Class& self) { return source_object(self.data_source()); },
          kSourceDoc)
      .def_property("accumulator_precision", &Class::accumulator_precision,
                    &Class::set_accumulator_precision,
                    "Precision that sums need: FLOAT (default), or HALF, which permits less and is "
                    "a ValueError for kernel weights of FLOAT32.")
      .def("reload_weights_and_biases_from_data_source", &Class::reload_from_data_source,
           kReloadFromSourceDoc)
      .def("reload_weights_and_biases", &Class::reload, "command_buffer"_a.none(false),
           "state"_a.none(false), reload_doc().c_str())
      .def("export_weights_and_biases", &Class::export_weights, "command_buffer"_a.none(false),
           "temporary_ok"_a = false,
           R"(Encode a copy of the weights and biases the kernel computes with, as float32.

Parameters
----------
command_buffer : CommandBuffer
temporary_ok : bool, default False
    Whether the state may live on the command buffer.

Returns
-------
ConvolutionWeightsAndBiasesState
    Temporary only if ``temporary_ok``; its ``biases`` are None if the data source has none. The numbers are there once
    the command buffer has completed.

Raises
------
TypeError, ValueError
    If the command buffer is none, or on another device.
CommandBufferError
    If the command buffer has been committed.
)");
}

template <class Class>
void bind_backward(py::class_<Class, GradientKernel, py::smart_holder>& c) {
  bind_constructor(c);
  c.def_property_readonly(
       "descriptor", [](const Class& self) { return self.descriptor(); }, kDescriptorDoc)
      .def_property_readonly(
          "data_source", [](const Class& self) { return source_object(self.data_source()); },
          kSourceDoc)
      .def_property(
          "gradient_option",
          [](const Class& self) { return static_cast<int>(self.gradient_option()); },
          &Class::set_gradient_option,
          "`ConvolutionGradientOption` bits of what an encode computes, as an int; ALL (3) by "
          "default, ValueError for no bit or others.")
      .def("_keep_weights", &Class::keep_weights)
      .def("reload_weights_and_biases_from_data_source", &Class::reload_from_data_source,
           kReloadFromSourceDoc)
      .def("reload_weights_and_biases", &Class::reload, "command_buffer"_a.none(false),
           "state"_a.none(false), reload_doc().c_str());
}

// States of a convolution, where one stands for all images.
StateBatch convolution_states(const py::object& object, std::size_t images, const char* who) {
  StateBatch states = state_argument(object, "convolution_gradient_state", who);
  if (states.size() == 1) {
    states.resize(images, StateBatch::value_type(states.front()));
  }
  return states;
}

py::object encode_transpose(ConvolutionTranspose& self,
                            const std::shared_ptr<CommandBuffer>& command_buffer,
                            const ImagesGiven& source_object,
                            const ImagesOrNone& destination_object,
                            const StatesOrNone& state_object,
                            const StatesOrNone& convolution_object, bool with_state,
                            bool temporary_state, const AllocatorGiven& allocator_object) {
  const ImageArgument source = image_argument(source_object, "source", self.class_name());
  const StateBatch undone =
      convolution_states(convolution_object, source.images().size(), self.class_name());
  return encode_or_create(
      self, "source", source.batch,
      {destination_object, state_object, with_state, allocator_object},
      [&](const StateBatch& states, const ImageBatch::Images& destinations) {
        self.encode(command_buffer, source.images(), states, undone, destinations, source.batch);
      },
      [&](ImageAllocator* allocator) {
        return self.encode_creating(command_buffer, source.images(), undone, source.batch,
                                    with_state, temporary_state, allocator);
      });
}

void bind_transpose(py::module_& m) {
  using Kernel = ConvolutionTranspose;
  py::class_<Kernel, UnaryKernel, py::smart_holder> c(m, "ConvolutionTranspose");
  bind_forward(c);
  c.def_property("kernel_offset_x", &Kernel::kernel_offset_x, &Kernel::set_kernel_offset_x,
                 "Offset in the source with zeros inserted, pixels; replaced by every encode that "
                 "creates its destination.")
      .def_property("kernel_offset_y", &Kernel::kernel_offset_y, &Kernel::set_kernel_offset_y,
                    "Offset in the source with zeros inserted, pixels.");
  c.def(
      "destination_descriptor",
      [](Kernel& self, const ImagesGiven& sources, const StatesOrNone& states) {
        return self.destination_descriptor(
            image_argument(sources, "sources", self.class_name()).images(),
            state_argument(states, "states", self.class_name()));
      },
      "sources"_a, "states"_a = py::none(),
      text(R"(Return the result's descriptor; set `offset` to 0 and the kernel offset accordingly.

Parameters
----------
sources : Image or list of one Image
    One image, not a batch.
states : ConvolutionGradientState, or list of it, optional
    Of the convolution to undo: the result has the size of its source. Without it the padding policy
    decides.
)",
           kDescriptorReturns)
          .c_str());
  bind_result_states(
      c, "`ConvolutionGradientState` of the convolution that is undone, where there is one.",
      [](Kernel& self, const std::shared_ptr<CommandBuffer>& command_buffer,
         const ImageBatch::Images& sources, const ImageBatch::Images& destinations,
         const StateBatch& states) {
        return self.result_states(sources, destinations, states, command_buffer);
      });
  def_often_called(
      c, "encode", &encode_transpose, "command_buffer"_a.none(false), "source"_a,
      "destination"_a = py::none(), py::kw_only(), "destination_state"_a = py::none(),
      "convolution_gradient_state"_a = py::none(), "with_state"_a = false,
      "temporary_state"_a = false, "allocator"_a = py::none(),
      text(
          R"(Encode the kernel.

Parameters
----------
command_buffer : CommandBuffer
source : Image, or batch
    A list or `ImageBatch` selects the batch form.
destination : Image, or batch, optional
    Written with `offset` and the kernel offset as they stand. Without it a new one is sized by
    ``convolution_gradient_state``, else by the padding policy, and the offsets are set.
destination_state : State, or list, optional
    From `result_state`; only together with ``destination``.
convolution_gradient_state : ConvolutionGradientState, or list of one object, optional
    Of the convolution to undo; a temporary one is read once. Not with ``destination_state``, which
    knows its own.
with_state, temporary_state : bool, default False
    Create a state for the gradient kernel as well.
allocator : optional
    Overrides `destination_image_allocator` for this call.

Returns
-------
Image or ImageBatch, or with ``with_state`` a pair of it and the state or list of states
    The destination. Nothing in it is valid before the command buffer has completed.
)",
          forward_raises(
              R"(    ``convolution_gradient_state`` must be one object, of a convolution, and not come with a
    state to fill.
)"))
          .c_str());
  def_often_called(
      c, "encode_batch", &encode_transpose, "command_buffer"_a.none(false), "sources"_a,
      "destinations"_a = py::none(), py::kw_only(), "destination_states"_a = py::none(),
      "convolution_gradient_states"_a = py::none(), "with_state"_a = false,
      "temporary_state"_a = false, "allocator"_a = py::none(), forward_batch_form().c_str());

  py::class_<ConvolutionTransposeGradient, GradientKernel, py::smart_holder> gradient(
      m, "ConvolutionTransposeGradient");
  bind_backward(gradient);
}

}  // namespace

void bind_convolution(py::module_& m) {
  bind_descriptor(m);
  bind_states(m);
  py::native_enum<AccumulatorPrecision>(
      m, "ConvolutionAccumulatorPrecision", kEnumeration,
      "Precision of sums (``MPSNNConvolutionAccumulatorPrecisionOption``).")
      .value("HALF", AccumulatorPrecision::Half)
      .value("FLOAT", AccumulatorPrecision::Float)
      .finalize();

  py::class_<Convolution, UnaryKernel, py::smart_holder> forward(m, "Convolution");
  bind_forward(forward);
  py::class_<FullyConnected, Convolution, py::smart_holder> connected(m, "FullyConnected");
  bind_constructor(connected);
  py::class_<ConvolutionGradient, GradientKernel, py::smart_holder> backward(m,
                                                                             "ConvolutionGradient");
  bind_backward(backward);
  py::class_<FullyConnectedGradient, ConvolutionGradient, py::smart_holder> connected_backward(
      m, "FullyConnectedGradient");
  bind_constructor(connected_backward);
  bind_transpose(m);
}

}  // namespace mpsgrad
