// bind_optimizer: the optimizers; what their constructors take is documented in
// python/mpsgrad/optimizer.py.
#include <pybind11/native_enum.h>

#include "core/forward_encode_py.hpp"
#include "kernels/optimizer/optimizer.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

using Commands = std::shared_ptr<CommandBuffer>;
using States = std::shared_ptr<State>;
using VectorList = std::optional<std::vector<std::shared_ptr<Vector>>>;

// Null where None is allowed and was given.
template <class Array>
std::shared_ptr<DeviceArray> array_of(const std::shared_ptr<Array>& array) {
  return array;
}
template <class Array>
std::shared_ptr<DeviceArray> array_of(const std::optional<std::shared_ptr<Array>>& array) {
  return array.value_or(nullptr);
}

const std::vector<std::shared_ptr<Vector>>* list_of(const VectorList& vectors) {
  return vectors ? &*vectors : nullptr;
}

// `documented` adds kWorkRaises to each.
constexpr const char* kArraysDoc = R"(Encode one update.

Parameters
----------
command_buffer : CommandBuffer
gradient, values : {0}
    Gradient of the loss and current values, float32, of one shape.
{1}result : {0}
    Where the new values go; may be ``values``.

Raises
------
TypeError, ValueError
    If an argument is of another kind, shape or device, or shares memory with a history.
)";

constexpr const char* kStatesDoc = R"(Encode one update of a convolution's weights and biases.

The gradient state is finished by this: no gradients may be added to it any more.

Parameters
----------
command_buffer : CommandBuffer
gradient_state : ConvolutionGradientState
    Holds the gradients.
source_state : ConvolutionWeightsAndBiasesState
    Holds the current weights and biases.
{1}result_state : ConvolutionWeightsAndBiasesState
    Where the new ones go; may be ``source_state``. Kernels see them after a reload.

Raises
------
TypeError, ValueError
    If an argument is of another class, size or device, or shares memory with a history.
StateError
    If no gradients have been encoded into ``gradient_state``.
)";

constexpr const char* kNormalizationDoc =
    R"(Encode one update of a batch normalization's gamma and beta.

Parameters
----------
command_buffer : CommandBuffer
batch_normalization_state : BatchNormalizationState
    Holds the gradients of the whole batch, and shows the kernel's gamma and beta. Read once.
{1}result_state : NormalizationGammaAndBetaState
    Where the new values go. The kernel sees them after ``reload_gamma_and_beta``.
source_state : BatchNormalizationState, optional
    Shows the current values instead.

Raises
------
TypeError, ValueError
    If an argument is of another class, size or device, shares memory with a history, or the kernel has no gamma.
StateError
    If the gradients are not those of the whole batch.
)";

constexpr const char* kGammaBetaDoc =
    R"(Encode one update of gamma and beta by the sum of several states' gradients.

Apple's optimizers have no such encode: instance and group normalization keep the gradients of each image in a state of its
own, which are added up here before a single step.

Parameters
----------
command_buffer : CommandBuffer
states : list of State
    Of instance or group normalization, one an image, or a `BatchNormalizationState`. Each is read once.
source_state : NormalizationGammaAndBetaState
    Holds the current values.
{1}result_state : NormalizationGammaAndBetaState
    Where the new ones go; may be ``source_state``. The kernel sees them after ``reload_gamma_and_beta``.

Raises
------
TypeError, ValueError
    If an argument is of another class, size or device, a state comes twice, or memory is shared with a history.
StateError
    If a state has no gradients, or not those of the whole batch.
)";

// The docstring of one method: its vectors or matrices, its histories.
std::string documented(const char* pattern, const char* array, const char* histories) {
  std::string result = text(pattern, kWorkRaises);
  const auto replace = [&](const std::string& from, const std::string& to) {
    for (std::size_t at = 0; (at = result.find(from, at)) != std::string::npos; at += to.size()) {
      result.replace(at, from.size(), to);
    }
  };
  replace("{1}", histories);
  replace("{0}", array);
  return result;
}

constexpr const char* kMomentum =
    "momentum : {0}, or None\n"
    "    Overwritten; None for descent without momentum, whatever `momentum_scale` says.\n";
constexpr const char* kMomentumVectors =
    "momentum_vectors : list of Vector, or None\n"
    "    For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With "
    "one\n"
    "    vector the biases (beta) stay.\n"
    "    None for descent without momentum, biases (beta) included where there are some.\n";
constexpr const char* kSquares = "sum_of_squares : {0}\n    Overwritten.\n";
constexpr const char* kSquaresVectors =
    "sum_of_squares_vectors : list of Vector\n"
    "    For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With "
    "one\n"
    "    vector the biases (beta) stay.\n";
constexpr const char* kVelocity =
    "momentum, velocity : {0}\n"
    "    First and second moments, zero before the first step; overwritten.\n"
    "maximum_velocity : {0}, optional\n    Overwritten; makes it AMSGrad.\n";
constexpr const char* kVelocityVectors =
    "momentum_vectors, velocity_vectors : list of Vector\n"
    "    For the weights (gamma), or for weights and biases (gamma and beta); overwritten. With "
    "one\n"
    "    vector the biases (beta) stay.\n"
    "maximum_velocity_vectors : list of Vector, optional\n    Overwritten; makes it AMSGrad.\n";

// encode_vector and encode_matrix of an optimizer with one history, in the middle of the arguments.
template <class Array, class History, class Class>
void bind_single(Class& c, const char* method, const char* array, const char* history,
                 const char* doc) {
  using Self = typename Class::type;
  using Arrays = std::shared_ptr<Array>;
  c.def(
      method,
      [history](Self& self, const Commands& command_buffer, const Arrays& gradient,
                const Arrays& values, const History& one, const Arrays& result) {
        self.encode(command_buffer, gradient, values, {{history, array_of(one)}}, result);
      },
      "command_buffer"_a.none(false), "gradient"_a, "values"_a, py::arg(history), "result"_a,
      documented(kArraysDoc, array, doc).c_str());
}

template <class Class>
void bind_single_states(Class& c, const char* history, const char* doc) {
  using Self = typename Class::type;
  c.def(
      "encode_convolution",
      [history](Self& self, const Commands& command_buffer, const States& gradient,
                const States& source, const VectorList& vectors, const States& result) {
        self.encode_convolution(command_buffer, gradient, source, {{history, list_of(vectors)}},
                                result);
      },
      "command_buffer"_a.none(false), "gradient_state"_a, "source_state"_a, py::arg(history),
      "result_state"_a, documented(kStatesDoc, "", doc).c_str());
}

template <class Class>
void bind_single_normalization(Class& c, const char* history, const char* doc) {
  using Self = typename Class::type;
  c.def(
      "encode_batch_normalization",
      [history](Self& self, const Commands& command_buffer, const States& state,
                const VectorList& vectors, const States& result,
                const std::optional<States>& source) {
        self.encode_batch_normalization(command_buffer, state, source.value_or(nullptr),
                                        {{history, list_of(vectors)}}, result);
      },
      "command_buffer"_a.none(false), "batch_normalization_state"_a, py::arg(history),
      "result_state"_a, py::kw_only(), "source_state"_a = py::none(),
      documented(kNormalizationDoc, "", doc).c_str());
}

template <class Class>
void bind_single_gamma_beta(Class& c, const char* history, const char* doc) {
  using Self = typename Class::type;
  c.def(
      "encode_gamma_beta",
      [history](Self& self, const Commands& command_buffer, const StatesGiven& states,
                const States& source, const VectorList& vectors, const States& result) {
        const StateBatch gradients = state_argument(states, "states", self.class_name());
        self.encode_gamma_beta(command_buffer, gradients, source, {{history, list_of(vectors)}},
                               result);
      },
      "command_buffer"_a.none(false), "states"_a, "source_state"_a, py::arg(history),
      "result_state"_a, documented(kGammaBetaDoc, "", doc).c_str());
}

template <class Array, class Class>
void bind_adam(Class& c, const char* method, const char* array) {
  using Arrays = std::shared_ptr<Array>;
  c.def(
      method,
      [](Adam& self, const Commands& command_buffer, const Arrays& gradient, const Arrays& values,
         const Arrays& momentum, const Arrays& velocity, const Arrays& result,
         const std::optional<Arrays>& maximum) {
        self.encode(command_buffer, gradient, values,
                    {{"momentum", momentum},
                     {"velocity", velocity},
                     {"maximum_velocity", array_of(maximum)}},
                    result);
      },
      "command_buffer"_a.none(false), "gradient"_a, "values"_a, "momentum"_a, "velocity"_a,
      "result"_a, py::kw_only(), "maximum_velocity"_a = py::none(),
      documented(kArraysDoc, array, kVelocity).c_str());
}

void bind_adam_states(py::class_<Adam, Optimizer, py::smart_holder>& c) {
  c.def(
      "encode_convolution",
      [](Adam& self, const Commands& command_buffer, const States& gradient, const States& source,
         const VectorList& momentum, const VectorList& velocity, const States& result,
         const VectorList& maximum) {
        self.encode_convolution(command_buffer, gradient, source,
                                {{"momentum_vectors", list_of(momentum)},
                                 {"velocity_vectors", list_of(velocity)},
                                 {"maximum_velocity_vectors", list_of(maximum)}},
                                result);
      },
      "command_buffer"_a.none(false), "gradient_state"_a, "source_state"_a, "momentum_vectors"_a,
      "velocity_vectors"_a, "result_state"_a, py::kw_only(),
      "maximum_velocity_vectors"_a = py::none(),
      documented(kStatesDoc, "", kVelocityVectors).c_str());
  c.def(
      "encode_batch_normalization",
      [](Adam& self, const Commands& command_buffer, const States& state,
         const VectorList& momentum, const VectorList& velocity, const States& result,
         const VectorList& maximum, const std::optional<States>& source) {
        self.encode_batch_normalization(command_buffer, state, source.value_or(nullptr),
                                        {{"momentum_vectors", list_of(momentum)},
                                         {"velocity_vectors", list_of(velocity)},
                                         {"maximum_velocity_vectors", list_of(maximum)}},
                                        result);
      },
      "command_buffer"_a.none(false), "batch_normalization_state"_a, "momentum_vectors"_a,
      "velocity_vectors"_a, "result_state"_a, py::kw_only(),
      "maximum_velocity_vectors"_a = py::none(), "source_state"_a = py::none(),
      documented(kNormalizationDoc, "", kVelocityVectors).c_str());
  c.def(
      "encode_gamma_beta",
      [](Adam& self, const Commands& command_buffer, const StatesGiven& states,
         const States& source, const VectorList& momentum, const VectorList& velocity,
         const States& result, const VectorList& maximum) {
        const StateBatch gradients = state_argument(states, "states", self.class_name());
        self.encode_gamma_beta(command_buffer, gradients, source,
                               {{"momentum_vectors", list_of(momentum)},
                                {"velocity_vectors", list_of(velocity)},
                                {"maximum_velocity_vectors", list_of(maximum)}},
                               result);
      },
      "command_buffer"_a.none(false), "states"_a, "source_state"_a, "momentum_vectors"_a,
      "velocity_vectors"_a, "result_state"_a, py::kw_only(),
      "maximum_velocity_vectors"_a = py::none(),
      documented(kGammaBetaDoc, "", kVelocityVectors).c_str());
}

void bind_optimizer_descriptor(py::module_& m) {
  py::native_enum<RegularizationType>(
      m, "RegularizationType", kEnumeration,
      "What is added to the gradient of a value (``MPSNNRegularizationType``).")
      .value("NONE", RegularizationType::None)
      .value("L1", RegularizationType::L1)
      .value("L2", RegularizationType::L2)
      .finalize();
  py::class_<OptimizerDescriptor>(m, "OptimizerDescriptor")
      .def(py::init([](float learning_rate, float gradient_rescale, bool clip,
                       std::optional<float> maximum, std::optional<float> minimum,
                       RegularizationType type, float scale) {
             return OptimizerDescriptor{
                 learning_rate, gradient_rescale, clip, maximum, minimum, type, scale};
           }),
           "learning_rate"_a, "gradient_rescale"_a, "apply_gradient_clipping"_a,
           "gradient_clip_max"_a, "gradient_clip_min"_a, "regularization_type"_a,
           "regularization_scale"_a)
      .def_readwrite("learning_rate", &OptimizerDescriptor::learning_rate,
                     "Step length, of any sign; 0.001 by default.")
      .def_readwrite("gradient_rescale", &OptimizerDescriptor::gradient_rescale,
                     "Factor of the clipped gradient, before regularization; 1 by default.")
      .def_readwrite("apply_gradient_clipping", &OptimizerDescriptor::apply_gradient_clipping,
                     "Whether the raw gradient is limited to `gradient_clip_min` and "
                     "`gradient_clip_max`; False by default.")
      .def_readwrite(
          "gradient_clip_max", &OptimizerDescriptor::gradient_clip_max,
          "Upper bound of the raw gradient, None by default; clipping needs both bounds.")
      .def_readwrite(
          "gradient_clip_min", &OptimizerDescriptor::gradient_clip_min,
          "Lower bound of the raw gradient, None by default; clipping needs both bounds.")
      .def_readwrite("regularization_type", &OptimizerDescriptor::regularization_type,
                     "`RegularizationType` of the term added to the rescaled gradient; NONE by "
                     "default.")
      .def_readwrite("regularization_scale", &OptimizerDescriptor::regularization_scale,
                     "Factor of the regularization term, of any sign; 0 by default.")
      .def(
          "__eq__",
          [](const OptimizerDescriptor& x, const OptimizerDescriptor& y) { return x == y; },
          py::is_operator());
}

void bind_base(py::module_& m) {
  py::class_<Optimizer, KernelBase, py::smart_holder> c(
      m, "Optimizer", "Base class of all optimizers (``MPSNNOptimizer``); never made directly.");
  c.def(py::init([](const py::args&, const py::kwargs&) -> std::shared_ptr<Optimizer> {
    fail<TypeError>("Optimizer is the base class; use StochasticGradientDescent, RMSProp or Adam");
  }));
  c.def_property(
       "learning_rate", [](const Optimizer& self) { return self.settings().learning_rate; },
       &Optimizer::set_learning_rate,
       "Step length; a new value holds for the encodes that follow (``setLearningRate:``).")
      .def_property(
          "apply_gradient_clipping",
          [](const Optimizer& self) { return self.settings().apply_gradient_clipping; },
          &Optimizer::set_apply_gradient_clipping, "Whether gradients are clipped.")
      .def_property_readonly(
          "gradient_rescale",
          [](const Optimizer& self) { return self.settings().gradient_rescale; },
          "Factor of the clipped gradient.")
      .def_property_readonly(
          "gradient_clip_max",
          [](const Optimizer& self) { return self.settings().gradient_clip_max; },
          "Upper bound of the raw gradient, or None.")
      .def_property_readonly(
          "gradient_clip_min",
          [](const Optimizer& self) { return self.settings().gradient_clip_min; },
          "Lower bound of the raw gradient, or None.")
      .def_property_readonly(
          "regularization_type",
          [](const Optimizer& self) { return self.settings().regularization_type; },
          "`RegularizationType` of the term added to the rescaled gradient; read only.")
      .def_property_readonly(
          "regularization_scale",
          [](const Optimizer& self) { return self.settings().regularization_scale; },
          "Factor of the regularization term; read only.")
      .def_property_readonly(
          "optimizer_descriptor", [](const Optimizer& self) { return self.settings(); },
          "A copy of the settings as they are now, with `learning_rate` and clipping as last set; "
          "read only.");
}

}  // namespace

void bind_optimizer(py::module_& m) {
  bind_optimizer_descriptor(m);
  bind_base(m);
  py::class_<StochasticGradientDescent, Optimizer, py::smart_holder> sgd(
      m, "StochasticGradientDescent");
  sgd.def(py::init<std::shared_ptr<Device>, OptimizerDescriptor, float, bool>(),
          "device"_a.none(false), "optimizer_descriptor"_a, "momentum_scale"_a,
          "use_nesterov_momentum"_a)
      .def_property_readonly(
          "momentum_scale", [](const Optimizer& self) { return self.rule().momentum_scale; },
          "Factor of the old momentum in the new one; no effect without momentum storage. Read "
          "only.")
      .def_property_readonly(
          "use_nesterov_momentum",
          [](const Optimizer& self) { return self.rule().use_nesterov_momentum; },
          "Whether a step looks ahead by the momentum; no effect without momentum storage. Read "
          "only.");
  bind_single<Vector, std::optional<std::shared_ptr<Vector>>>(sgd, "encode_vector", "Vector",
                                                              "momentum", kMomentum);
  bind_single<Matrix, std::optional<std::shared_ptr<Matrix>>>(sgd, "encode_matrix", "Matrix",
                                                              "momentum", kMomentum);
  bind_single_states(sgd, "momentum_vectors", kMomentumVectors);
  bind_single_normalization(sgd, "momentum_vectors", kMomentumVectors);
  bind_single_gamma_beta(sgd, "momentum_vectors", kMomentumVectors);

  py::class_<RMSProp, Optimizer, py::smart_holder> rmsprop(m, "RMSProp");
  rmsprop
      .def(py::init<std::shared_ptr<Device>, OptimizerDescriptor, double, float>(),
           "device"_a.none(false), "optimizer_descriptor"_a, "decay"_a, "epsilon"_a)
      .def_property_readonly(
          "decay", [](const Optimizer& self) { return self.rule().decay; },
          "Factor of the old mean of squares in the new one, 0 to 1; read only.")
      .def_property_readonly(
          "epsilon", [](const Optimizer& self) { return self.rule().epsilon; },
          "Added to the root of the mean of squares that a step is divided by, not negative; read "
          "only.");
  bind_single<Vector, std::shared_ptr<Vector>>(rmsprop, "encode_vector", "Vector", "sum_of_squares",
                                               kSquares);
  bind_single<Matrix, std::shared_ptr<Matrix>>(rmsprop, "encode_matrix", "Matrix", "sum_of_squares",
                                               kSquares);
  bind_single_states(rmsprop, "sum_of_squares_vectors", kSquaresVectors);
  bind_single_normalization(rmsprop, "sum_of_squares_vectors", kSquaresVectors);
  bind_single_gamma_beta(rmsprop, "sum_of_squares_vectors", kSquaresVectors);

  py::class_<Adam, Optimizer, py::smart_holder> adam(m, "Adam");
  adam.def(py::init<std::shared_ptr<Device>, OptimizerDescriptor, double, double, float, Index>(),
           "device"_a.none(false), "optimizer_descriptor"_a, "beta1"_a, "beta2"_a, "epsilon"_a,
           "time_step"_a)
      .def_property_readonly(
          "beta1", [](const Optimizer& self) { return self.rule().beta1; },
          "Factor of the old momentum in the new one, 0 to below 1; read only.")
      .def_property_readonly(
          "beta2", [](const Optimizer& self) { return self.rule().beta2; },
          "Factor of the old velocity, the mean of squared gradients, in the new one, 0 to below "
          "1; read only.")
      .def_property_readonly(
          "epsilon", [](const Optimizer& self) { return self.rule().epsilon; },
          "Added to the root of the velocity that a step is divided by, not negative; read only.")
      .def_property("time_step", &Adam::time_step, &Adam::set_time_step,
                    "Number of encodes so far; the next one works with the number after it.");
  bind_adam<Vector>(adam, "encode_vector", "Vector");
  bind_adam<Matrix>(adam, "encode_matrix", "Matrix");
  bind_adam_states(adam);
}

}  // namespace mpsgrad
