// Binds the encodes of forward binary kernels, and the states they make.
#include "core/binary_kernel.hpp"
#include "core/forward_encode_py.hpp"
#include "core/often_called_py.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;
using Kernel = ForwardBinaryKernel;

py::object encode_binary(Kernel& self, const std::shared_ptr<CommandBuffer>& command_buffer,
                         const ImagesGiven& primary_object, const ImagesGiven& secondary_object,
                         const ImagesOrNone& destination_object, const StatesOrNone& state_object,
                         bool with_state, bool temporary_state,
                         const AllocatorGiven& allocator_object) {
  const ImageArgument primary = image_argument(primary_object, "primary", self.class_name());
  const ImageArgument secondary = image_argument(secondary_object, "secondary", self.class_name());
  require<TypeError>(primary.batch == secondary.batch, self.class_name(),
                     ": primary and secondary must both be single images or both be batches");
  return encode_or_create(
      self, "primary", primary.batch,
      {destination_object, state_object, with_state, allocator_object},
      [&](const StateBatch& states, const ImageBatch::Images& destinations) {
        self.encode(command_buffer, primary.images(), secondary.images(), states, destinations,
                    primary.batch);
      },
      [&](ImageAllocator* allocator) {
        return self.encode_creating(command_buffer, primary.images(), secondary.images(),
                                    primary.batch, with_state, temporary_state, allocator);
      });
}

py::object result_states(Kernel& self, const std::shared_ptr<CommandBuffer>& temporary,
                         const ImagesGiven& primaries, const ImagesGiven& secondaries,
                         const ImagesGiven& destinations, const StatesOrNone& states) {
  const ImageArgument primary = image_argument(primaries, "primary", self.class_name());
  const ImageArgument secondary = image_argument(secondaries, "secondary", self.class_name());
  const ImageArgument destination = image_argument(destinations, "destination", self.class_name());
  (void)state_argument(states, "source_states", self.class_name());  // no such kernel reads them
  return state_result(
      self.result_states(primary.images(), secondary.images(), destination.images(), temporary),
      primary.batch);
}

void bind_states(py::class_<Kernel, BinaryKernel, py::smart_holder>& c) {
  const auto doc = [](bool batch, bool temporary) {
    return result_state_form(batch, temporary,
                             batch ? "primaries, secondaries" : "primary, secondary", "Not used.");
  };
  const auto ordinary = [](Kernel& self, const ImagesGiven& primary, const ImagesGiven& secondary,
                           const ImagesGiven& destination, const StatesOrNone& states) {
    return result_states(self, nullptr, primary, secondary, destination, states);
  };
  c.def("result_state", ordinary, "primary"_a, "secondary"_a, "destination"_a,
        "source_states"_a = py::none(), doc(false, false).c_str());
  c.def("result_state_batch", ordinary, "primaries"_a, "secondaries"_a, "destinations"_a,
        "source_states"_a = py::none(), doc(true, false).c_str());
  c.def("temporary_result_state", &result_states, "command_buffer"_a.none(false), "primary"_a,
        "secondary"_a, "destination"_a, "source_states"_a = py::none(), doc(false, true).c_str());
  c.def("temporary_result_state_batch", &result_states, "command_buffer"_a.none(false),
        "primaries"_a, "secondaries"_a, "destinations"_a, "source_states"_a = py::none(),
        doc(true, true).c_str());
}

void bind_encodes(py::class_<Kernel, BinaryKernel, py::smart_holder>& c) {
  c.def(
      "destination_descriptor",
      [](Kernel& self, const ImagesGiven& sources, const StatesOrNone& states) {
        return self.destination_descriptor(
            image_argument(sources, "sources", self.class_name()).images(),
            state_argument(states, "states", self.class_name()));
      },
      "sources"_a, "states"_a = py::none(),
      text(R"(Return the descriptor the padding policy gives, and set the offsets accordingly.

Parameters
----------
sources : [primary, secondary]
    One image of each.
states : State or list of State, optional
    Shown to a policy of your own.
)",
           kDescriptorReturns)
          .c_str());
  c.def("_result_descriptor", [](Kernel& self, const ImagesGiven& sources) {
    return self.result_descriptor(image_argument(sources, "sources", self.class_name()).images());
  });
  c.def(
      "encoding_storage_size",
      [](const Kernel&, const ImagesGiven&, const ImagesGiven&, const ImagesGiven&,
         const StatesOrNone&) { return 0; },
      "primary"_a, "secondary"_a, "destination"_a, "source_states"_a = py::none(),
      "Best guess at scratch bytes; 0, as none is known.");
  def_often_called(c, "encode", &encode_binary, "command_buffer"_a.none(false), "primary"_a,
                   "secondary"_a, "destination"_a = py::none(), py::kw_only(),
                   "destination_state"_a = py::none(), "with_state"_a = false,
                   "temporary_state"_a = false, "allocator"_a = py::none(),
                   text(R"(Encode the kernel.

Parameters
----------
command_buffer : CommandBuffer
primary, secondary : Image, or batch
    Lists or `ImageBatch` objects select the batch form.
destination : Image, or batch, optional
    Written with the offsets as they stand. Without it, the padding policy sizes a new one and sets them.
destination_state : State, or list, optional
    From `result_state`; only together with ``destination``.
with_state, temporary_state : bool, default False
    Create a state for the gradient kernels as well.
allocator : optional
    Overrides `destination_image_allocator` for this call.

Returns
-------
Image or ImageBatch, or with ``with_state`` a pair of it and the state or list of states
    The destination. Nothing in it is valid before the command buffer has completed.
)",
                        forward_raises())
                       .c_str());
  def_often_called(c, "encode_batch", &encode_binary, "command_buffer"_a.none(false), "primaries"_a,
                   "secondaries"_a, "destinations"_a = py::none(), py::kw_only(),
                   "destination_states"_a = py::none(), "with_state"_a = false,
                   "temporary_state"_a = false, "allocator"_a = py::none(),
                   forward_batch_form().c_str());
}

}  // namespace

void bind_forward_binary(py::module_& m) {
  py::class_<Kernel, BinaryKernel, py::smart_holder> c(
      m, "ForwardBinaryKernel",
      "The encodes of ``MPSCNNBinaryKernel``, which gradient kernels do not share.");
  py::class_<BinaryGradientState, State, py::smart_holder> state(
      m, "BinaryGradientState",
      "A forward binary kernel's configuration for its gradient kernels "
      "(``MPSNNBinaryGradientState``).");
  for (const bool secondary : {false, true}) {
    const std::string which = secondary ? "secondary" : "primary";
    const auto fixed = [&](const char* name, auto get, const std::string& doc) {
      state.def_property_readonly((which + "_" + name).c_str(), get, doc.c_str());
    };
    fixed(
        "width", [=](const BinaryGradientState& s) { return s.snapshot().source(secondary).width; },
        "Columns of the " + which + " source image, pixels; read only.");
    fixed(
        "height",
        [=](const BinaryGradientState& s) { return s.snapshot().source(secondary).height; },
        "Rows of the " + which + " source image, pixels; read only.");
    fixed(
        "feature_channels",
        [=](const BinaryGradientState& s) { return s.snapshot().source(secondary).channels; },
        "Channels of the " + which + " source image, those not read included; read only.");
    fixed(
        "offset",
        [=](const BinaryGradientState& s) {
          return s.snapshot().properties.source(secondary).offset;
        },
        "What `" + which + "_offset` of the forward kernel was at its encode; read only.");
    fixed(
        "edge_mode",
        [=](const BinaryGradientState& s) {
          return s.snapshot().properties.source(secondary).edge_mode;
        },
        "What the forward kernel took to lie outside the " + which + " source; read only.");
  }
  state
      .def_property_readonly(
          "clip_rect", [](const BinaryGradientState& s) { return s.snapshot().clip; },
          "`Region` of the destination that the forward kernel wrote, cut to its size; read only.")
      .def("__repr__", [](const BinaryGradientState& s) {
        const BinarySnapshot& shot = s.snapshot();
        const auto size = [](const BinarySnapshot::Source& source) {
          return text(source.width, "x", source.height, "x", source.channels);
        };
        return text(s.class_name(), "(of ", shot.kernel_class, ", primary ", size(shot.primary),
                    ", secondary ", size(shot.secondary), s.is_temporary() ? ", temporary)" : ")");
      });
  forbid_construction(state);
  bind_states(c);
  bind_encodes(c);
}

}  // namespace mpsgrad
