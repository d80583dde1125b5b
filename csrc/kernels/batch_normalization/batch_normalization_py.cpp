// bind_batch_normalization: the four kernels and their state; python/mpsgrad/batch_normalization.py
// documents the kernels.
#include "core/forward_encode_py.hpp"
#include "core/normalization_py.hpp"
#include "core/often_called_py.hpp"
#include "kernels/batch_normalization/batch_normalization.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

using Commands = std::shared_ptr<CommandBuffer>;

// Batch forms take one state, or the list that repeats it.
std::shared_ptr<State> one_state(const KernelBase& kernel, const py::object& object) {
  const StateBatch states =
      state_argument(object, "batch_normalization_state", kernel.class_name());
  require<TypeError>(!states.empty(), kernel.class_name(),
                     ": batch_normalization_state must be a BatchNormalizationState, got ",
                     type_name(object));
  for (const auto& state : states) {
    require(state == states.front(), kernel.class_name(),
            ": the states of a batch must be one and the same object");
  }
  return states.front();
}

py::object encode_forward(BatchNormalization& self, const Commands& command_buffer,
                          const ImagesGiven& source_object, const ImagesOrNone& destination_object,
                          const StatesOrNone& state_object,
                          const AllocatorGiven& allocator_object) {
  const ImageArgument source = image_argument(source_object, "source", self.class_name());
  if (destination_object.is_none()) {
    require<TypeError>(state_object.is_none(), self.class_name(),
                       ": an encode with a batch_normalization_state needs a destination");
    const auto allocator = allocator_argument(allocator_object);
    const EncodeResult result = self.encode_creating(command_buffer, source.images(), source.batch,
                                                     false, false, allocator.get());
    return image_result(result.images, source.batch);
  }
  const ImageArgument destination =
      image_argument(destination_object, "destination", self.class_name());
  require<TypeError>(source.batch == destination.batch, self.class_name(),
                     ": source and destination must both be single images or both be batches");
  if (state_object.is_none()) {
    self.encode(command_buffer, source.images(), {}, destination.images(), source.batch);
  } else {
    self.encode_with_state(command_buffer, source.images(), one_state(self, state_object),
                           destination.images(), source.batch);
  }
  return destination_object;
}

void bind_state(py::module_& m) {
  using S = BatchNormalizationState;
  py::class_<S, GradientState, py::smart_holder> c(
      m, "BatchNormalizationState",
      R"(Statistics and weight gradients of one batch (``MPSCNNBatchNormalizationState``).

Made by `BatchNormalization`. One object serves the whole batch, and any number of batches after another.
)");
  c.def("__repr__",
        [](const S& self) {
          return text(self.class_name(), "(", self.channels(), " channels, ", self.progress(),
                      self.is_temporary() ? ", temporary)" : ")");
        })
      .def_property_readonly("batch_normalization", &S::producer, "The kernel that made it.")
      .def_property_readonly("gamma", &S::gamma,
                             "`Buffer` of the kernel's scale as it is now, float32, one a channel; "
                             "None where its data source has none.")
      .def_property_readonly("beta", &S::beta,
                             "`Buffer` of the kernel's offset as it is now; None where its data "
                             "source has none.")
      .def_property_readonly("mean", &S::mean,
                             "`Buffer` of the batch's mean; before there is one, the kernel's "
                             "stored mean, or None.")
      .def_property_readonly("variance", &S::variance,
                             "`Buffer` of the batch's variance, biased, without epsilon; before "
                             "there is one, the kernel's stored variance, or None.")
      .def_property_readonly("gradient_for_gamma", &S::gradient_for_gamma,
                             "`Buffer` of the sum over the images processed so far; None before "
                             "the first.")
      .def_property_readonly("gradient_for_beta", &S::gradient_for_beta,
                             "`Buffer` of the sum over the images processed so far; None before "
                             "the first.")
      .def("reset", &S::reset,
           "Forget everything accumulated. Work that is encoded already is not affected.");
  forbid_construction(c);
}

void bind_statistics(py::module_& m) {
  py::class_<BatchNormalizationStatistics, UnaryKernel, py::smart_holder>(
      m, "BatchNormalizationStatistics")
      .def(py::init<std::shared_ptr<Device>>(), "device"_a.none(false))
      .def(
          "encode_batch",
          [](BatchNormalizationStatistics& self, const Commands& command_buffer,
             const BatchGiven& sources, const StatesGiven& state) {
            self.encode_batch(command_buffer,
                              batch_argument(sources, "source_images", self.class_name()).images(),
                              one_state(self, state));
          },
          "command_buffer"_a.none(false), "source_images"_a, "batch_normalization_state"_a,
          text(R"(Encode the statistics of some images of the batch.

Added to what the state holds, unless it has been used since: then a new batch starts.

Parameters
----------
command_buffer : CommandBuffer
source_images : ImageBatch or list of Image
    All images of a batch have one size.
batch_normalization_state : BatchNormalizationState
    Overwritten or added to; not counted as read.

Raises
------
TypeError, ValueError
    If an argument is of another class, device or size, has other channels than the kernel that made the state, or
    ``offset`` or ``clip_rect`` is set.
)",
               kWorkRaises)
              .c_str());
}

void bind_normalization(py::module_& m) {
  py::class_<BatchNormalization, UnaryKernel, py::smart_holder> normalization(m,
                                                                              "BatchNormalization");
  normalization
      .def(py::init([](std::shared_ptr<Device> device, const py::object& source,
                       const NeuronDescriptor& neuron) {
             NormalizationProtocol protocol;
             protocol.statistics = protocol.load = true;
             return std::make_shared<BatchNormalization>(
                 std::move(device),
                 normalization_source_argument("BatchNormalization", source, protocol), neuron);
           }),
           "device"_a.none(false), "data_source"_a, "fused_neuron_descriptor"_a)
      .def_property_readonly(
          "data_source",
          [](const BatchNormalization& self) {
            return normalization_source_object(self.data_source());
          },
          "The object given to the constructor, read again by every reload from the data source; "
          "read only.")
      .def_property_readonly("_neuron", &BatchNormalization::neuron)
      .def_property_readonly("number_of_feature_channels", &BatchNormalization::channels,
                             "Channels of the data source.")
      .def_property("epsilon", &BatchNormalization::epsilon, &BatchNormalization::set_epsilon,
                    "Added to the variance under the root; float32, finite and not negative. A "
                    "state keeps the value it was made with, and no other may be used with it.")
      .def("reload_gamma_and_beta_from_data_source",
           &BatchNormalization::reload_gamma_and_beta_from_data_source,
           "Read scale and offset from the data source again; work that is encoded already keeps "
           "those it was encoded with.")
      .def("reload_mean_and_variance_from_data_source",
           &BatchNormalization::reload_mean_and_variance_from_data_source,
           "Read the stored statistics from the data source again; work that is encoded already "
           "keeps those it was encoded with.")
      .def(
          "reload_gamma_and_beta",
          [](BatchNormalization& self, const Commands& command_buffer,
             const std::shared_ptr<NormalizationGammaAndBetaState>& state) {
            self.reload(command_buffer, state);
          },
          "command_buffer"_a.none(false), "gamma_and_beta_state"_a.none(false),
          "Encode a copy of a state's scale and offset into the kernel, for the encodes after it. "
          "Reads the state once.")
      .def(
          "reload_mean_and_variance",
          [](BatchNormalization& self, const Commands& command_buffer,
             const std::shared_ptr<NormalizationMeanAndVarianceState>& state) {
            self.reload(command_buffer, state);
          },
          "command_buffer"_a.none(false), "mean_and_variance_state"_a.none(false),
          "Encode a copy of a state's mean and variance into the kernel's stored statistics, for "
          "the encodes after it. Reads the state once.");
  def_often_called(normalization, "encode", &encode_forward, "command_buffer"_a.none(false),
                   "source"_a, "destination"_a = py::none(), py::kw_only(),
                   "batch_normalization_state"_a = py::none(), "allocator"_a = py::none(),
                   text(R"(Encode the kernel.

Parameters
----------
command_buffer : CommandBuffer
source : Image, or batch
    A list or `ImageBatch` selects the batch form.
destination : Image, or batch, optional
    Written with `offset` as it stands. Without it, the padding policy sizes a new one and sets `offset`.
batch_normalization_state : BatchNormalizationState, optional
    Normalizes with its statistics, instead of the kernel's stored ones; only together with ``destination``. Reads
    the state once.
allocator : optional
    Overrides `destination_image_allocator` for this call.

Returns
-------
Image or ImageBatch
    The destination. Nothing in it is valid before the command buffer has completed.

Raises
------
TypeError, ValueError
    If an argument is of another kind, device or command buffer, an image has other channels than the kernel or another
    size than its batch, a destination is read-only or shares memory with a source, or the state was made by another
    kernel or comes without a destination.
StateError
    If there are no statistics to normalize with, neither in the state nor stored in the kernel, or if `epsilon` or
    another property is not what it was when the state was made.
)",
                        kWorkRaises)
                       .c_str());
  def_often_called(normalization, "encode_batch", &encode_forward, "command_buffer"_a.none(false),
                   "sources"_a, "destinations"_a = py::none(), py::kw_only(),
                   "batch_normalization_state"_a = py::none(), "allocator"_a = py::none(),
                   batch_form("All are of one length. ``batch_normalization_state`` is one for the "
                              "whole batch, or a list that repeats it.")
                       .c_str());
}

void bind_gradients(py::module_& m) {
  py::class_<BatchNormalizationStatisticsGradient, GradientKernel, py::smart_holder>(
      m, "BatchNormalizationStatisticsGradient")
      .def(py::init<std::shared_ptr<Device>, NeuronDescriptor>(), "device"_a.none(false),
           "fused_neuron_descriptor"_a)
      .def_property_readonly("_neuron", &BatchNormalizationStatisticsGradient::neuron)
      .def(
          "encode_batch",
          [](BatchNormalizationStatisticsGradient& self, const Commands& command_buffer,
             const BatchGiven& gradients, const BatchGiven& sources, const StatesGiven& state) {
            self.encode_batch(
                command_buffer,
                batch_argument(gradients, "source_gradients", self.class_name()).images(),
                batch_argument(sources, "source_images", self.class_name()).images(),
                one_state(self, state));
          },
          "command_buffer"_a.none(false), "source_gradients"_a, "source_images"_a,
          "batch_normalization_state"_a,
          text(R"(Encode the sums over some images of the batch, in any order and any partition.

The first encode of a batch overwrites the state's gradients, later ones add to them. Nothing else is written.

Parameters
----------
command_buffer : CommandBuffer
source_gradients : ImageBatch or list of Image
    Gradient of the loss with respect to the forward result.
source_images : ImageBatch or list of Image
    Images that the statistics are of.
batch_normalization_state : BatchNormalizationState
    Read once.

Raises
------
TypeError, ValueError
    If an argument is of another class, device, size or number of channels, or a property other than the channel
    windows is set.
StateError
    If the state has no statistics, or those of fewer images, or `BatchNormalizationGradient` has used its sums.
)",
               kWorkRaises)
              .c_str());
  py::class_<BatchNormalizationGradient, GradientKernel, py::smart_holder>(
      m, "BatchNormalizationGradient")
      .def(py::init<std::shared_ptr<Device>, NeuronDescriptor>(), "device"_a.none(false),
           "fused_neuron_descriptor"_a)
      .def_property_readonly("_neuron", &BatchNormalizationGradient::neuron);
}

}  // namespace

void bind_batch_normalization(py::module_& m) {
  bind_state(m);
  bind_statistics(m);
  bind_normalization(m);
  bind_gradients(m);
}

}  // namespace mpsgrad
