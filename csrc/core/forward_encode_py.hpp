// Where forward encodes that Python calls end: in a destination that is given, or one that is
// created.
#pragma once

#include <string>

#include "core/arguments_py.hpp"

namespace mpsgrad {

// What the documentation of every encode ends in,
inline constexpr const char* kWorkRaises = R"(ReadCountError
    If a temporary argument has been read as often as was announced.
CommandBufferError
    If the command buffer has been committed.
)";

// and that of a forward encode which may be given states to fill. `more`: lines about arguments of
// its own.
inline std::string forward_raises(const char* more = "") {
  return text(R"(
Raises
------
TypeError, ValueError
    If an argument is of another kind, device or command buffer, images do not fit each other or the kernel, a
    destination is read-only or shares memory with a source, or a property has a value that the kernel cannot use. A
    state to fill needs a destination, and ``with_state`` one that is created.
)",
              more, R"(StateError
    If a state to fill was made by a kernel of another class or with other properties.
)",
              kWorkRaises);
}

// The documentation of an encode_batch, beside that of the class's encode. `states`: which ones go
// with a batch; `returns` their part of what comes back.
inline std::string batch_form(const char* states, const char* returns = "ImageBatch") {
  return text(R"(Encode a batch in one call, whatever its length.

Takes what `encode` takes, and raises what it raises, with batches in place of images: `ImageBatch` objects or lists of
images. )",
              states, R"(

Returns
-------
)",
              returns, R"(
    The destinations: what was given as such, or a new batch. Nothing in it is valid before the command buffer has
    completed.
)");
}

// Of one that may be given states to fill, or make them.
inline std::string forward_batch_form() {
  return batch_form(
      R"(All are of one length, and so is the list of states: one for each image, or where
`is_result_state_reused_across_batch` one and the same as often.)",
      "ImageBatch, or with ``with_state`` a pair of it and the list of states, None for a kernel "
      "without any");
}

// The documentation of a call that returns states to fill. `sources`: the names of the images it
// takes beside the destination's; `use`: what it does with source states.
inline std::string result_state_form(bool batch, bool temporary, const char* sources,
                                     const char* use) {
  return text(
      batch ? "Return the states of a batch that the gradient kernels need."
            : "Return the state that the gradient kernels need.",
      R"(

Every property must have its final value: an encode refuses a state to fill if one has changed since.

Parameters
----------
)",
      temporary ? "command_buffer : CommandBuffer\n    Where the work will be encoded; the result "
                  "lives no longer.\n"
                : "",
      sources, batch ? ", destinations : batch of images\n" : ", destination : Image\n",
      R"(    What the encode will be given.
source_states : State or list of State, optional
    )",
      use, R"(

Returns
-------
)",
      batch ? R"(list of State, or None for a kernel without any
    One for each image, or one and the same as often where `is_result_state_reused_across_batch`.
)"
            : "State, or None for a kernel without one\n",
      R"(
Raises
------
TypeError, ValueError
    If an argument is of another kind or device, there are more or fewer of one than of another, or a property has a
    value that does not suit the images.
)",
      temporary ? "CommandBufferError\n    If the command buffer has been committed.\n" : "");
}

// And of calls that return the descriptor of a destination.
inline constexpr const char* kDescriptorReturns = R"(
Returns
-------
ImageDescriptor

Raises
------
TypeError, ValueError
    If the arguments are of another kind or number, images do not fit each other or the kernel, or the padding policy
    is not one for it.
)";

// What such an encode is given beside its sources.
struct ForwardArguments {
  const py::object& destination;
  const py::object& state;  // None, or what to fill; only with a destination
  bool with_state;          // make one, only without
  const py::object& allocator;

  // What the caller knows them as, and what makes states; single images are refused if there are
  // batch forms only.
  bool batches_only = false;
  const char* destination_name() const { return batches_only ? "destinations" : "destination"; }
  const char* state_name() const {
    return batches_only ? "destination_states" : "destination_state";
  }
  const char* maker() const { return batches_only ? "result_state_batch()" : "result_state()"; }
};

inline py::object created_result(const EncodeResult& made, bool batch, bool with_state) {
  py::object images = image_result(made.images, batch);
  return with_state ? py::make_tuple(images, state_result(made.states, batch)) : images;
}

// `sources`: the arguments that destinations go with. `encode` takes the states and images that are
// given, `create` an allocator or null; it returns an EncodeResult.
template <class Encode, class Create>
py::object encode_or_create(const KernelBase& kernel, const char* sources, bool batch,
                            const ForwardArguments& given, Encode encode, Create create) {
  const char* const who = kernel.class_name();
  if (!given.destination.is_none()) {
    const ImageArgument destination =
        given.batches_only ? batch_argument(given.destination, given.destination_name(), who)
                           : image_argument(given.destination, given.destination_name(), who);
    require<TypeError>(batch == destination.batch, who, ": ", sources,
                       " and destination must both be single images or both be batches");
    require(!given.with_state, who,
            ": with_state creates a state for a created destination; for a given one make it with ",
            given.maker(), " and pass it as ", given.state_name());
    encode(state_argument(given.state, given.state_name(), who), destination.images());
    return given.destination;
  }
  require<TypeError>(given.state.is_none(), who, ": ", given.state_name(), " without ",
                     given.destination_name(), "; use with_state=True to have both created");
  const auto allocator = allocator_argument(given.allocator);
  return created_result(create(allocator.get()), batch, given.with_state);
}

// The four calls by which kernels with one source make states. `use`: what they do with source
// states. `make` takes the kernel, a command buffer or null, sources, destinations, and source
// states as a StateBatch.
template <class Class, class Make>
void bind_result_states(Class& c, const char* use, Make make) {
  using Kernel = typename Class::type;
  using namespace pybind11::literals;
  const auto temporary = [make](Kernel& self, const std::shared_ptr<CommandBuffer>& command_buffer,
                                const ImagesGiven& sources, const ImagesGiven& destinations,
                                const StatesOrNone& states) {
    const ImageArgument source = image_argument(sources, "source", self.class_name());
    const ImageArgument destination =
        image_argument(destinations, "destination", self.class_name());
    return state_result(make(self, command_buffer, source.images(), destination.images(),
                             state_argument(states, "source_states", self.class_name())),
                        source.batch);
  };
  const auto ordinary = [temporary](Kernel& self, const ImagesGiven& sources,
                                    const ImagesGiven& destinations, const StatesOrNone& states) {
    return temporary(self, nullptr, sources, destinations, states);
  };
  c.def("result_state", ordinary, "source"_a, "destination"_a, "source_states"_a = py::none(),
        result_state_form(false, false, "source", use).c_str());
  c.def("result_state_batch", ordinary, "sources"_a, "destinations"_a,
        "source_states"_a = py::none(), result_state_form(true, false, "sources", use).c_str());
  c.def("temporary_result_state", temporary, "command_buffer"_a.none(false), "source"_a,
        "destination"_a, "source_states"_a = py::none(),
        result_state_form(false, true, "source", use).c_str());
  c.def("temporary_result_state_batch", temporary, "command_buffer"_a.none(false), "sources"_a,
        "destinations"_a, "source_states"_a = py::none(),
        result_state_form(true, true, "sources", use).c_str());
}

}  // namespace mpsgrad
