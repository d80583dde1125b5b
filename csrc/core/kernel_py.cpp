// Binds padding policies, allocators and the base kernels.
#include <pybind11/trampoline_self_life_support.h>

#include <array>

#include "core/forward_encode_py.hpp"
#include "core/gradient_kernel.hpp"
#include "core/often_called_py.hpp"
#include "core/padding.hpp"
#include "core/unary_kernel.hpp"
#include "core/unary_kernel_py.hpp"

namespace mpsgrad {

void bind_forward_binary(py::module_& m);
void bind_neuron_descriptor(py::module_& m);

namespace {

using namespace pybind11::literals;

// A policy written in Python.
class PyPadding final : public Padding, public py::trampoline_self_life_support {
 public:
  Index method() const override {
    const py::gil_scoped_acquire locked;
    return integer(own_method("padding_method")(), "Padding: padding_method()");
  }
  std::string label() const override {
    const py::gil_scoped_acquire locked;
    const py::function own = find("label");
    return own ? std::string(py::str(own())) : Padding::label();
  }
  std::shared_ptr<Padding> inverse() const override {
    const py::gil_scoped_acquire locked;
    const py::function own = find("inverse");
    const py::object result = own ? own() : py::none();
    require<TypeError>(result.is_none() || py::isinstance<Padding>(result),
                       "Padding: inverse() must return a Padding or None, got ", type_name(result));
    return result.cast<std::shared_ptr<Padding>>();
  }
  ImageDescriptor customize(const ImageBatch::Images& sources, const StateBatch& states,
                            KernelBase& kernel, const ImageDescriptor& suggested) const override {
    const py::gil_scoped_acquire locked;
    const py::object result = own_method("destination_descriptor")(
        sources, states, kernel.shared_from_this(), ImageDescriptor(suggested));
    require<TypeError>(py::isinstance<ImageDescriptor>(result),
                       "Padding: destination_descriptor must return an ImageDescriptor, got ",
                       type_name(result));
    return result.cast<ImageDescriptor>();
  }

 private:
  py::function find(const char* name) const {
    return py::get_override(static_cast<const Padding*>(this), name);
  }
  py::function own_method(const char* name) const {
    py::function own = find(name);
    require<TypeError>(bool(own), "Padding: a policy of your own needs a method ", name, "()");
    return own;
  }
};

// An allocator that is a Python callable; a batch is as many calls.
class CallableAllocator final : public ImageAllocator {
 public:
  explicit CallableAllocator(py::object callable) : callable_(share_python(std::move(callable))) {}
  const py::object& callable() const { return *callable_; }

  std::shared_ptr<ImageBatch> allocate(const std::shared_ptr<CommandBuffer>& command_buffer,
                                       const ImageDescriptor& descriptor, KernelBase& kernel,
                                       Index count, bool) override {
    const py::gil_scoped_acquire locked;
    ImageBatch::Images images;
    for (Index i = 0; i < count; ++i) {
      const py::object image =
          (*callable_)(command_buffer, ImageDescriptor(descriptor), kernel.shared_from_this());
      require<TypeError>(py::isinstance<Image>(image), kernel.class_name(),
                         ": destination_image_allocator must return an Image, got ",
                         type_name(image));
      images.push_back(image.cast<std::shared_ptr<Image>>());
    }
    return std::make_shared<ImageBatch>(std::move(images));
  }

 private:
  std::shared_ptr<py::object> callable_;
};

// (x, y) or (x, y, z); in sizes None stands for no limit.
std::array<Index, 3> three(const py::sequence& values, const char* what, Index last) {
  require(py::len(values) == 2 || py::len(values) == 3, what, " must have 2 or 3 numbers, got ",
          py::len(values));
  const auto number = [&](const py::object& value) { return integer_or(value, kUnlimited, what); };
  return {number(values[0]), number(values[1]), py::len(values) == 3 ? number(values[2]) : last};
}

// None, and what Apple's headers write for it, is no limit.
template <class... Name>
Index limit_in(const IntegerOrNone& value, const Name&... name) {
  if (value.is_none() || (PyLong_Check(value.ptr()) != 0 &&
                          value.equal(py::int_(std::numeric_limits<std::uint64_t>::max())))) {
    return kUnlimited;
  }
  return integer(value, name..., "source_feature_channel_max_count");
}
IntegerOrNone limit_out(Index value) {
  return value == kUnlimited ? py::object(py::none()) : py::int_(value);
}

void bind_geometry(py::module_& m) {
  py::class_<Offset>(m, "Offset", R"(Signed pixels (``MPSOffset``); z selects an image.

Parameters
----------
x, y, z : int, default 0
    Or all in one tuple, which is taken wherever an `Offset` is: (x, y) or (x, y, z).
)")
      .def(py::init<Index, Index, Index>(), "x"_a = 0, "y"_a = 0, "z"_a = 0)
      .def(py::init([](const py::tuple& values) {
        const auto [x, y, z] = three(values, "Offset", 0);
        return Offset{x, y, z};
      }))
      .def_readonly("x", &Offset::x, "Columns to the right, or if negative to the left; read only.")
      .def_readonly("y", &Offset::y, "Rows downwards, or if negative upwards; read only.")
      .def_readonly("z", &Offset::z, "Images of a batch or container passed over; read only.")
      .def(
          "__eq__", [](const Offset& a, const Offset& b) { return a == b; }, py::is_operator())
      .def("__iter__",
           [](const Offset& self) { return py::iter(py::make_tuple(self.x, self.y, self.z)); })
      .def("__reduce__",
           [](const Offset& self) {
             return py::make_tuple(py::type::of<Offset>(), py::make_tuple(self.x, self.y, self.z));
           })
      .def("__repr__", [](const Offset& self) { return text("Offset", self); });
  py::implicitly_convertible<py::tuple, Offset>();

  py::class_<Region>(m, "Region", R"(Part of an image (``MTLRegion``).

Parameters
----------
origin : (x, y) or (x, y, z)
size : (width, height) or (width, height, depth)
    Parts left out have no limit.
)")
      .def(py::init([](const py::sequence& origin, const py::sequence& size) {
             const auto [x, y, z] = three(origin, "Region: origin", 0);
             const auto [w, h, d] = three(size, "Region: size", kUnlimited);
             return Region{{x, y, z}, {w, h, d}};
           }),
           "origin"_a, "size"_a)
      .def_property_readonly(
          "origin",
          [](const Region& self) {
            return py::make_tuple(self.origin.x, self.origin.y, self.origin.z);
          },
          "First column, row and image, as (x, y, z); read only.")
      .def_property_readonly(
          "size",
          [](const Region& self) {
            return py::make_tuple(limit_out(self.size.width), limit_out(self.size.height),
                                  limit_out(self.size.depth));
          },
          "None stands for no limit.")
      .def(
          "__eq__", [](const Region& a, const Region& b) { return a == b; }, py::is_operator())
      .def("__reduce__",
           [](const py::object& self) -> py::tuple {
             return py::make_tuple(py::type::of<Region>(),
                                   py::make_tuple(self.attr("origin"), self.attr("size")));
           })
      .def("__repr__", [](const py::object& self) {
        return py::str("Region(origin={}, size={})").format(self.attr("origin"), self.attr("size"));
      });
  m.attr("NO_CLIP") = Region{};
}

void bind_padding(py::module_& m) {
  py::class_<Padding, PyPadding, py::smart_holder>(
      m, "Padding", R"(How a creating encode sizes its result (``MPSNNPadding``).

Subclass it for a policy of your own: ``padding_method()`` returns `PaddingMethod` bits; with ``CUSTOM`` among them,
``destination_descriptor(source_images, source_states, kernel, suggested_descriptor)`` returns the descriptor and may
set properties of the kernel, which keep their values.
)")
      .def(py::init<>())
      .def("padding_method", &Padding::method,
           "Return the `PaddingMethod` bits as an int; TypeError if a policy of your own has no "
           "such method.")
      .def("label", &Padding::label,
           "Return the words that messages name the policy by; empty if a policy of your own has "
           "none.")
      .def("inverse", &Padding::inverse, "Return the policy that undoes this one's size, or None.")
      .def("__reduce__", [](const py::object& self) -> py::tuple {
        return py::make_tuple(py::module_::import("mpsgrad._kernel").attr("_rebuild_padding"),
                              py::make_tuple(py::type::of(self)),
                              py::getattr(self, "__dict__", py::none()));
      });
  py::class_<DefaultPadding, Padding, py::smart_holder>(
      m, "DefaultPadding", R"(Ready-made policies (``MPSNNDefaultPadding``).

Parameters
----------
method : PaddingMethod
    Alignment, remainder side and size bits; ``CUSTOM`` is refused.
)")
      .def(py::init<Index>(), "method"_a)
      .def_static("tensorflow_average_pooling", &DefaultPadding::tensorflow_average_pooling,
                  "Return TensorFlow's SAME for average pooling: 0x401C, and the kernel's edge "
                  "mode becomes CLAMP.")
      .def_static("tensorflow_average_pooling_valid_only",
                  &DefaultPadding::tensorflow_average_pooling_valid_only,
                  "Return TensorFlow's VALID for average pooling: 0x400C, and the kernel's edge "
                  "mode becomes CLAMP.")
      .def("__repr__",
           [](const DefaultPadding& self) { return text("DefaultPadding(", self.label(), ")"); })
      .def("__reduce__", [](const py::object& self) -> py::tuple {
        const Index method = self.attr("padding_method")().cast<Index>();
        if (method & padding_method::kCustom) {
          return py::make_tuple(
              py::module_::import("mpsgrad._kernel").attr("_rebuild_tensorflow_padding"),
              py::make_tuple((method & padding_method::kSizeMask) ==
                             padding_method::kSizeValidOnly));
        }
        return py::make_tuple(py::type::of(self), py::make_tuple(method));
      });
  py::class_<ExplicitPadding, Padding, py::smart_holder>(m, "ExplicitPadding",
                                                         R"(Pixels of padding on each side.

Parameters
----------
pixels : int
    Of all sides, where it is the only argument.
left, right, top, bottom : int, default 0
    There are ``(size + left + right - extent) // stride + 1`` columns of windows, and rows likewise. The result has as
    many, or what a kernel that enlarges or resizes makes of them. These pixels are cut off the result of a transposed
    convolution, whose columns are ``(size - 1) * stride + extent - left - right``; there ``right`` and ``bottom`` may
    be negative. In PyTorch's words they are ``padding - output_padding``, ``left`` and ``top`` ``padding``.

Raises
------
ValueError
    If a number is beyond 16384, or ``left`` or ``top`` negative. Encodes of other kernels than transposed
    convolutions refuse a negative ``right`` or ``bottom``, too.
)")
      .def(py::init([](Index pixels) {
             return std::make_shared<ExplicitPadding>(pixels, pixels, pixels, pixels);
           }),
           "pixels"_a)
      .def(py::init<Index, Index, Index, Index>(), "left"_a = 0, "right"_a = 0, "top"_a = 0,
           "bottom"_a = 0)
      .def_readonly("left", &ExplicitPadding::left,
                    "Columns added before the source's first, or cut off the result, 0 to 16384; "
                    "read only.")
      .def_readonly(
          "right", &ExplicitPadding::right,
          "Columns added after the source's last, or cut off the result, -16384 to 16384; "
          "read only.")
      .def_readonly("top", &ExplicitPadding::top,
                    "Rows added above the source, or cut off the result, 0 to 16384; read only.")
      .def_readonly("bottom", &ExplicitPadding::bottom,
                    "Rows added below the source, or cut off the result, -16384 to 16384; read "
                    "only.")
      .def("__repr__",
           [](const ExplicitPadding& self) { return text("ExplicitPadding(", self.label(), ")"); })
      .def(
          "__eq__",
          [](const ExplicitPadding& a, const ExplicitPadding& b) {
            return a.left == b.left && a.right == b.right && a.top == b.top && a.bottom == b.bottom;
          },
          py::is_operator())
      .def("__reduce__", [](const py::object& self) -> py::tuple {
        return py::make_tuple(py::type::of(self),
                              py::make_tuple(self.attr("left"), self.attr("right"),
                                             self.attr("top"), self.attr("bottom")));
      });
}

void bind_allocators(py::module_& m) {
  py::class_<ImageAllocator, py::smart_holder>(
      m, "ImageAllocator", "Makes the destinations of creating encodes (``MPSImageAllocator``).")
      .def("__repr__",
           [](const ImageAllocator& self) {
             return &self == ordinary_image_allocator().get() ? "DEFAULT" : "TEMPORARY";
           })
      .def("__reduce__", [](const ImageAllocator& self) {
        return &self == ordinary_image_allocator().get() ? "DEFAULT" : "TEMPORARY";
      });
  m.attr("DEFAULT") = ordinary_image_allocator();
  m.attr("TEMPORARY") = temporary_image_allocator();
}

void bind_kernel_base(py::module_& m) {
  // A kernel whose constructor raised is still shown in tracebacks, and must not be touched.
  m.def("_is_constructed", [](const py::handle& object) {
    for (const auto& part :
         py::detail::values_and_holders(reinterpret_cast<py::detail::instance*>(object.ptr()))) {
      if (!part.holder_constructed()) {
        return false;
      }
    }
    return true;
  });
  py::class_<KernelBase, py::smart_holder>(
      m, "Kernel", "Root of all kernels (``MPSKernel``); never made directly.")
      .def_property_readonly(
          "device", &KernelBase::device,
          "`Device` it runs on, and where all that an encode is given must be; read only.")
      .def_property("options", &KernelBase::options, &KernelBase::set_options,
                    "Bits of `KernelOptions`.")
      .def_readwrite("label", &KernelBase::label,
                     "Free text; at first the label of the data source where there is one, else "
                     "empty.");
}

}  // namespace

// ---- unary

py::object encode_unary(UnaryKernel& self, const std::shared_ptr<CommandBuffer>& command_buffer,
                        const ImagesGiven& source_object, const ImagesOrNone& destination_object,
                        const StatesOrNone& state_object, bool with_state, bool temporary_state,
                        const AllocatorGiven& allocator_object) {
  const ImageArgument source = image_argument(source_object, "source", self.class_name());
  return encode_or_create(
      self, "source", source.batch,
      {destination_object, state_object, with_state, allocator_object},
      [&](const StateBatch& states, const ImageBatch::Images& destinations) {
        self.encode(command_buffer, source.images(), states, destinations, source.batch);
      },
      [&](ImageAllocator* allocator) {
        return self.encode_creating(command_buffer, source.images(), source.batch, with_state,
                                    temporary_state, allocator);
      });
}

namespace {

// What all kernels that write images have; how they treat states and batches is fixed by their
// class.
template <class Class>
void bind_image_kernel(Class& c) {
  using Kernel = typename Class::type;
  c.def_property(
       "clip_rect", [](const Kernel& k) { return k.properties().clip_rect; },
       &Kernel::set_clip_rect,
       "Part of the destination that is written; `NO_CLIP`, the default, for all of it.")
      .def_property(
          "destination_feature_channel_offset",
          [](const Kernel& k) { return k.properties().destination_channel_offset; },
          &Kernel::set_destination_channel_offset,
          "First channel written, a multiple of 4 below 8192; ValueError for others.")
      .def_property("padding", &Kernel::padding, &Kernel::set_padding,
                    "`Padding` policy of encodes that create their destination; SIZE_SAME by "
                    "default.")
      .def_property(
          "destination_image_allocator",
          [](const Kernel& k) { return allocator_object(k.allocator()); },
          [](Kernel& k, const AllocatorKept& value) { k.set_allocator(allocator_property(value)); },
          "`DEFAULT`, `TEMPORARY` (the default), or a callable that takes command buffer, "
          "descriptor and kernel and returns an `Image`; TypeError for others.")
      .def_property_readonly("is_backwards", &Kernel::is_backwards,
                             "Whether strides count pixels of the destination, as in transposed "
                             "convolution and in most gradient kernels; read only.")
      .def_property_readonly("is_state_modified", &Kernel::is_state_modified,
                             "Whether an encode writes into the state it is given, as one that "
                             "sums up weight gradients does; read only.")
      .def_property_readonly("is_result_state_reused_across_batch",
                             &Kernel::is_result_state_reused_across_batch,
                             "Whether one state serves all images of a batch, as in convolution, "
                             "instead of one for each; read only.")
      .def_property_readonly("append_batch_barrier", &Kernel::append_batch_barrier,
                             "Whether the whole batch must be done before its result is used, as "
                             "with batch statistics; read only.");
}

void bind_unary(py::module_& m) {
  using Kernel = UnaryKernel;
  py::class_<Kernel, KernelBase, py::smart_holder> c(
      m, "UnaryKernel", "A kernel with one source and one destination (``MPSCNNKernel``).");
  const auto property = [&](const char* name, auto get, auto set, const char* doc) {
    c.def_property(name, get, set, doc);
  };
  const auto fixed = [&](const char* name, auto get, const char* doc) {
    c.def_property_readonly(name, get, doc);
  };
  property(
      "offset", [](const Kernel& k) { return k.properties().offset; }, &Kernel::set_offset,
      "Source pixel under the centre of the first window. Encodes that create their destination "
      "replace it by what the padding policy says; `Slice` keeps the corner that is set.");
  property(
      "edge_mode", [](const Kernel& k) { return k.properties().edge_mode; }, &Kernel::set_edge_mode,
      "What lies outside the source: ZERO or CLAMP, in `Pad` any mode; ValueError for others.");
  property(
      "source_feature_channel_offset",
      [](const Kernel& k) { return k.properties().source_channel_offset; },
      &Kernel::set_source_channel_offset,
      "First channel read, below 8192 and a multiple of 4, in `Pad` any; ValueError for others.");
  property(
      "source_feature_channel_max_count",
      [](const Kernel& k) { return limit_out(k.properties().source_channel_maximum); },
      [](Kernel& k, const IntegerOrNone& value) {
        k.set_source_channel_maximum(limit_in(value, k.class_name(), ": "));
      },
      "Most channels read; None for no limit.");
  fixed(
      "kernel_width", [](const Kernel& k) { return k.window().kernel_width; },
      "Width of the window in pixels, before dilation; 1 for kernels without one. Read only.");
  fixed(
      "kernel_height", [](const Kernel& k) { return k.window().kernel_height; },
      "Height of the window in pixels, before dilation; 1 for kernels without one. Read only.");
  fixed(
      "stride_in_pixels_x", [](const Kernel& k) { return k.window().stride_x; },
      "Columns of the source from one window to the next; of the destination if `is_backwards`. "
      "Read only.");
  fixed(
      "stride_in_pixels_y", [](const Kernel& k) { return k.window().stride_y; },
      "Rows of the source from one window to the next; of the destination if `is_backwards`. "
      "Read only.");
  fixed(
      "dilation_rate_x", [](const Kernel& k) { return k.window().dilation_x; },
      "Columns from one tap of the window to the next, 1 without dilation; read only.");
  fixed(
      "dilation_rate_y", [](const Kernel& k) { return k.window().dilation_y; },
      "Rows from one tap of the window to the next, 1 without dilation; read only.");
  bind_image_kernel(c);

  c.def(
      "destination_descriptor",
      [](Kernel& self, const ImagesGiven& sources, const StatesOrNone& states) {
        const ImageArgument source = image_argument(sources, "sources", self.class_name());
        const StateBatch source_states = state_argument(states, "states", self.class_name());
        return self.destination_descriptor(source.images(), source_states);
      },
      "sources"_a, "states"_a = py::none(),
      text(R"(Return the descriptor the padding policy gives, and set `offset` accordingly.

Parameters
----------
sources : Image or list of one Image
    One image, not a batch.
states : State or list of State, optional
    Shown to a policy of your own.
)",
           kDescriptorReturns)
          .c_str());
  c.def("_result_descriptor", [](Kernel& self, const ImagesGiven& sources) {
    return self.result_descriptor(image_argument(sources, "sources", self.class_name()).images());
  });
  bind_result_states(c, "Not used.",
                     [](Kernel& self, const std::shared_ptr<CommandBuffer>& command_buffer,
                        const ImageBatch::Images& sources, const ImageBatch::Images& destinations,
                        const StateBatch&) {  // only a transposed convolution reads them
                       return self.result_states(sources, destinations, command_buffer);
                     });
  c.def(
      "encoding_storage_size",
      [](const Kernel&, const ImagesGiven&, const ImagesGiven&, const StatesOrNone&) { return 0; },
      "source"_a, "destination"_a, "source_states"_a = py::none(),
      "Best guess at scratch bytes; 0, as none is known.");
  def_often_called(c, "encode", &encode_unary, "command_buffer"_a.none(false), "source"_a,
                   "destination"_a = py::none(), py::kw_only(), "destination_state"_a = py::none(),
                   "with_state"_a = false, "temporary_state"_a = false, "allocator"_a = py::none(),
                   text(R"(Encode the kernel.

Parameters
----------
command_buffer : CommandBuffer
source : Image, or batch
    A list or `ImageBatch` selects the batch form.
destination : Image, or batch, optional
    Written with `offset` as it stands. Without it, the padding policy sizes a new one and sets `offset`.
destination_state : State, or list, optional
    From `result_state`; only together with ``destination``.
with_state, temporary_state : bool, default False
    Create a state for the gradient kernel as well.
allocator : optional
    Overrides `destination_image_allocator` for this call.

Returns
-------
Image or ImageBatch, or with ``with_state`` a pair of it and the state or list of states
    The destination. Nothing in it is valid before the command buffer has completed.
)",
                        forward_raises())
                       .c_str());
  def_often_called(c, "encode_batch", &encode_unary, "command_buffer"_a.none(false), "sources"_a,
                   "destinations"_a = py::none(), py::kw_only(),
                   "destination_states"_a = py::none(), "with_state"_a = false,
                   "temporary_state"_a = false, "allocator"_a = py::none(),
                   forward_batch_form().c_str());
}

// ---- binary and gradient

template <class Class>
void bind_source_properties(Class& c, bool secondary) {
  using Kernel = BinaryKernel;
  const std::string which = secondary ? "secondary" : "primary";
  const auto source = [secondary](const Kernel& k) -> const SourceProperties& {
    return secondary ? k.properties().secondary : k.properties().primary;
  };
  const auto property = [&](const char* name, auto get, auto set, const std::string& doc) {
    c.def_property((which + "_" + name).c_str(), get, set, doc.c_str());
  };
  const auto fixed = [&](const char* name, auto get, const std::string& doc) {
    c.def_property_readonly((which + "_" + name).c_str(), get, doc.c_str());
  };
  property(
      "offset", [=](const Kernel& k) { return source(k).offset; },
      [=](Kernel& k, const Offset& value) { k.set_offset(secondary, value); },
      "`Offset` of the first window in the " + which + " source, in a gradient kernel " +
          (secondary ? "the forward image" : "the incoming gradient") +
          ". Forward encodes that create their destination replace it.");
  property(
      "edge_mode", [=](const Kernel& k) { return source(k).edge_mode; },
      [=](Kernel& k, EdgeMode value) { k.set_edge_mode(secondary, value); },
      "What lies outside the " + which + " source: ZERO (default) or CLAMP" +
          (secondary ? ", in `PadGradient` any mode; ValueError for others."
                     : "; ValueError for others."));
  property(
      "source_feature_channel_offset", [=](const Kernel& k) { return source(k).channel_offset; },
      [=](Kernel& k, Index value) { k.set_channel_offset(secondary, value); },
      "First channel read of the " + which + " source, below 8192 and a multiple of 4" +
          (secondary ? " (in `PadGradient` any); ValueError for others."
                     : "; ValueError for others."));
  property(
      "source_feature_channel_max_count",
      [=](const Kernel& k) { return limit_out(source(k).channel_maximum); },
      [=](Kernel& k, const IntegerOrNone& value) {
        k.set_channel_maximum(secondary, limit_in(value, k.class_name(), ": ", which, "_"));
      },
      "Most channels read of the " + which +
          " source, at least 1, or ValueError; None (default) for no limit.");
  const std::string steps = " of the " + which +
                            " source from one window to the next: 1, or the forward stride in "
                            "a gradient kernel; 0 repeats the first where arithmetic allows it. "
                            "ValueError for what the kernel does not take.";
  property(
      "stride_in_pixels_x", [=](const Kernel& k) { return source(k).window.stride_x; },
      [=](Kernel& k, Index value) { k.set_stride(secondary, false, value); }, "Columns" + steps);
  property(
      "stride_in_pixels_y", [=](const Kernel& k) { return source(k).window.stride_y; },
      [=](Kernel& k, Index value) { k.set_stride(secondary, true, value); }, "Rows" + steps);
  fixed(
      "kernel_width", [=](const Kernel& k) { return source(k).window.kernel_width; },
      "Width of the window over the " + which + " source in pixels, before dilation; read only.");
  fixed(
      "kernel_height", [=](const Kernel& k) { return source(k).window.kernel_height; },
      "Height of the window over the " + which + " source in pixels, before dilation; read only.");
  const std::string taps = " of the " + which + " source from one tap of its window to the next, " +
                           "1 without dilation; read only.";
  fixed(
      "dilation_rate_x", [=](const Kernel& k) { return source(k).window.dilation_x; },
      "Columns" + taps);
  fixed(
      "dilation_rate_y", [=](const Kernel& k) { return source(k).window.dilation_y; },
      "Rows" + taps);
}

void bind_binary(py::module_& m) {
  using Kernel = BinaryKernel;
  py::class_<Kernel, KernelBase, py::smart_holder> c(
      m, "BinaryKernel",
      "A kernel with a primary and a secondary source (``MPSCNNBinaryKernel``).");
  bind_source_properties(c, false);
  bind_source_properties(c, true);
  bind_image_kernel(c);
}

py::object encode_gradient(GradientKernel& self,
                           const std::shared_ptr<CommandBuffer>& command_buffer,
                           const ImagesGiven& gradient_object, const ImagesGiven& source_object,
                           const StatesGiven& state_object, const ImagesOrNone& destination_object,
                           bool configure, const AllocatorGiven& allocator_object) {
  const ImageArgument gradient =
      image_argument(gradient_object, "source_gradient", self.class_name());
  const ImageArgument source = image_argument(source_object, "source", self.class_name());
  require<TypeError>(gradient.batch == source.batch, self.class_name(),
                     ": source_gradient and source must both be single images or both be batches");
  StateBatch states = state_argument(state_object, "state", self.class_name());
  if (states.size() == 1 && gradient.batch) {
    states.resize(gradient.images().size(),
                  StateBatch::value_type(states.front()));  // one state shared by the batch
  }
  if (!destination_object.is_none()) {
    const ImageArgument destination =
        image_argument(destination_object, "destination", self.class_name());
    require<TypeError>(
        gradient.batch == destination.batch, self.class_name(),
        ": source_gradient and destination must both be single images or both be batches");
    self.encode(command_buffer, gradient.images(), source.images(), states, destination.images(),
                gradient.batch, !configure);
    return destination_object;
  }
  const auto allocator = allocator_argument(allocator_object);
  const std::shared_ptr<ImageBatch> images = self.encode_creating(
      command_buffer, gradient.images(), source.images(), states, gradient.batch, allocator.get());
  const bool given = dynamic_cast<GivenImages*>(allocator.get()) != nullptr;
  return given && gradient.batch ? py::object(allocator_object)
                                 : image_result(images, gradient.batch);
}

// Of the two calls that configure a gradient kernel.
constexpr const char* kConfigureRaises = R"(
Raises
------
TypeError, ValueError
    If the arguments are of another kind or number, or the state is of another kernel or one with other parameters.
StateError
    If the kernel needs a state that a forward encode has filled and this one is not, or an optimizer has used its
    gradients.
)";

void bind_gradient(py::module_& m) {
  using Kernel = GradientKernel;
  py::class_<Kernel, BinaryKernel, py::smart_holder> c(
      m, "GradientKernel", "The backward pass of a kernel (``MPSCNNGradientKernel``).");
  c.def_property(
       "kernel_offset_x", [](const Kernel& k) { return k.properties().kernel_offset_x; },
       &Kernel::set_kernel_offset_x, "Offset in the zero-inserted gradient, pixels.")
      .def_property(
          "kernel_offset_y", [](const Kernel& k) { return k.properties().kernel_offset_y; },
          &Kernel::set_kernel_offset_y, "Offset in the zero-inserted gradient, pixels.");
  c.def(
      "destination_descriptor",
      [](Kernel& self, const ImagesGiven& sources, const StatesOrNone& states) {
        return self.destination_descriptor(
            image_argument(sources, "sources", self.class_name()).images(),
            state_argument(states, "states", self.class_name()));
      },
      "sources"_a, "states"_a,
      text(R"(Return the result's descriptor and copy the forward configuration into the properties.

Parameters
----------
sources : [gradient, source]
    One image of each.
states : [state]

Returns
-------
ImageDescriptor
)",
           kConfigureRaises)
          .c_str());
  c.def(
      "configure",
      [](Kernel& self, const ImagesGiven& gradient, const ImagesGiven& source,
         const StatesGiven& state) {
        const ImageArgument first = image_argument(gradient, "source_gradient", self.class_name());
        const ImageArgument second = image_argument(source, "source", self.class_name());
        const StateBatch states = state_argument(state, "state", self.class_name());
        require(!first.images().empty() && !second.images().empty() && !states.empty(),
                self.class_name(), ": configure takes a gradient, a source and a state");
        self.destination_descriptor({first.images().front(), second.images().front()},
                                    {states.front()});
      },
      "source_gradient"_a, "source"_a, "state"_a,
      text(
          R"(Copy the forward configuration into the properties, as an encode with a given destination needs.

Parameters
----------
source_gradient, source : Image, or batch
    As for `encode`; the first of a batch stands for all.
state : State, or list
    The first of a list stands for all.
)",
          kConfigureRaises)
          .c_str());
  def_often_called(c, "encode", &encode_gradient, "command_buffer"_a.none(false),
                   "source_gradient"_a, "source"_a, "state"_a, "destination"_a = py::none(),
                   py::kw_only(), "configure"_a = true, "allocator"_a = py::none(),
                   text(R"(Encode the gradient.

Parameters
----------
command_buffer : CommandBuffer
source_gradient : Image, or batch
    Gradient of the loss with respect to the forward result.
source : Image, or batch
    The image of the forward pass that the class names.
state : State, or list
    From the forward kernel; one state stands for a whole batch.
destination : Image, or batch, optional
    Written with the properties as they stand, so `configure` must have been called for the state.
configure : bool, default True
    False: the caller has set the properties, without `configure`.
allocator : optional
    Overrides `destination_image_allocator` for this call.

Returns
-------
Image or ImageBatch
    Gradient of the loss with respect to the forward source. Nothing in it is valid before the command buffer has
    completed.

Raises
------
TypeError, ValueError
    If an argument is of another kind, device or command buffer, the state is of another kernel or one with other
    parameters, images do not fit it or each other, a destination is read-only or shares memory with an image that is
    read, or a property has a value that the kernel cannot use.
StateError
    If the kernel needs a state that a forward encode has filled and this one is not, an optimizer has used its
    gradients, or ``destination`` is given and `configure` has not been called for the state.
)",
                        kWorkRaises)
                       .c_str());
  def_often_called(c, "encode_batch", &encode_gradient, "command_buffer"_a.none(false),
                   "source_gradients"_a, "sources"_a, "states"_a, "destinations"_a = py::none(),
                   py::kw_only(), "configure"_a = true, "allocator"_a = py::none(),
                   batch_form("All are of one length, and so is ``states`` unless it is one for "
                              "the whole batch.")
                       .c_str());
}

void bind_gradient_state(py::module_& m) {
  py::class_<GradientState, State, py::smart_holder> state(
      m, "GradientState",
      "A forward kernel's configuration for its gradient kernel (``MPSNNGradientState``).");
  state
      .def_property_readonly(
          "source_width", [](const GradientState& s) { return s.snapshot().source_width; },
          "Columns of the forward source image, pixels; read only.")
      .def_property_readonly(
          "source_height", [](const GradientState& s) { return s.snapshot().source_height; },
          "Rows of the forward source image, pixels; read only.")
      .def_property_readonly(
          "source_feature_channels",
          [](const GradientState& s) { return s.snapshot().source_channels; },
          "Channels of the forward source image, those not read included; read only.")
      .def_property_readonly(
          "offset", [](const GradientState& s) { return s.snapshot().properties.offset; },
          "Source pixel under the centre of the forward kernel's first window; read only.")
      .def_property_readonly(
          "edge_mode", [](const GradientState& s) { return s.snapshot().properties.edge_mode; },
          "What the forward kernel took to lie outside its source; read only.")
      .def_property_readonly(
          "clip_rect", [](const GradientState& s) { return s.snapshot().clip; },
          "`Region` of the destination that the forward kernel wrote, cut to its size; read only.")
      .def_property_readonly(
          "kernel_width",
          [](const GradientState& s) { return s.snapshot().properties.window.kernel_width; },
          "Width of the forward kernel's window in pixels, before dilation; read only.")
      .def_property_readonly(
          "kernel_height",
          [](const GradientState& s) { return s.snapshot().properties.window.kernel_height; },
          "Height of the forward kernel's window in pixels, before dilation; read only.")
      .def("__repr__", [](const GradientState& s) {
        const ForwardSnapshot& shot = s.snapshot();
        return text(s.class_name(), "(of ", shot.kernel_class, ", source ", shot.source_width, "x",
                    shot.source_height, "x", shot.source_channels,
                    s.is_temporary() ? ", temporary)" : ")");
      });
  forbid_construction(state);
}

}  // namespace

std::shared_ptr<ImageAllocator> allocator_argument(const py::handle& object) {
  if (is_exactly<ImageBatch>(object) || py::isinstance<ImageBatch>(object)) {
    return std::make_shared<GivenImages>(object_of<ImageBatch>(object));
  }
  return allocator_property(object);
}

std::shared_ptr<ImageAllocator> allocator_property(const py::handle& object) {
  if (object.is_none()) {
    return nullptr;
  }
  if (py::isinstance<ImageAllocator>(object)) {
    return object.cast<std::shared_ptr<ImageAllocator>>();
  }
  require<TypeError>(PyCallable_Check(object.ptr()) != 0,
                     "destination_image_allocator must be DEFAULT, TEMPORARY or a callable, got ",
                     type_name(object));
  return std::make_shared<CallableAllocator>(py::reinterpret_borrow<py::object>(object));
}

AllocatorKept allocator_object(const std::shared_ptr<ImageAllocator>& allocator) {
  if (const auto* own = dynamic_cast<const CallableAllocator*>(allocator.get())) {
    return own->callable();
  }
  return py::cast(allocator);
}

void bind_core(py::module_& m) {
  bind_geometry(m);
  bind_neuron_descriptor(m);
  bind_padding(m);
  bind_allocators(m);
  bind_kernel_base(m);
  bind_unary(m);
  bind_binary(m);
  bind_forward_binary(m);
  bind_gradient(m);
  bind_gradient_state(m);
}

}  // namespace mpsgrad
