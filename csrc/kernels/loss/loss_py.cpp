// bind_loss: descriptors, labels and kernels of the loss family; the kernels are documented in
// python/mpsgrad/loss.py, and those of object detection are bound in yolo_loss_py.cpp.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>

#include <cstring>

#include "core/arguments_py.hpp"
#include "core/forward_encode_py.hpp"
#include "core/numbers_py.hpp"
#include "core/often_called_py.hpp"
#include "kernels/loss/loss.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

using FloatArray = py::array_t<float, 0>;

Size size_argument(const char* name, const py::object& value) {
  require<TypeError>(PySequence_Check(value.ptr()) == 1 && !py::isinstance<py::bytes>(value), name,
                     " must be (width, height, channels), got ", type_name(value));
  const auto parts = py::reinterpret_borrow<py::sequence>(value);
  require(py::len(parts) == 3, name, " must be (width, height, channels), got ", py::len(parts),
          " numbers");
  const auto part = [&](std::size_t i) { return integer(py::object(parts[i]), name, "[", i, "]"); };
  return {part(0), part(1), part(2)};
}

// ---- descriptors

// What each field means, as far as descriptors, kernels and states agree on it.
constexpr const char* kTypeDoc = "`LossType` of an element";
constexpr const char* kReductionDoc =
    "`ReductionType`: how the losses of all elements of an image become one number, if at all";
constexpr const char* kAcrossDoc =
    "Whether the losses of a batch become one, in the first loss image, unless the reduction is "
    "NONE";
constexpr const char* kWeightDoc = "Factor of every element, in loss and gradient";
constexpr const char* kSmoothingDoc =
    "Share of the labels, 0 to 1, that SOFT_MAX_CROSS_ENTROPY and SIGMOID_CROSS_ENTROPY spread "
    "evenly over the classes";
constexpr const char* kClassesDoc =
    "Classes that SOFT_MAX_CROSS_ENTROPY spreads smoothed labels over, at least 1";
constexpr const char* kEpsilonDoc = "Added to the arguments of LOG's logarithms, not negative";
constexpr const char* kDeltaDoc =
    "Distance of prediction and label from which HUBER is linear, above 0";

void bind_loss_descriptor(py::module_& m) {
  py::native_enum<LossType>(m, "LossType", kEnumeration, "A loss function (``MPSCNNLossType``).")
      .value("MEAN_ABSOLUTE_ERROR", LossType::MeanAbsoluteError)
      .value("MEAN_SQUARED_ERROR", LossType::MeanSquaredError)
      .value("SOFT_MAX_CROSS_ENTROPY", LossType::SoftMaxCrossEntropy)
      .value("SIGMOID_CROSS_ENTROPY", LossType::SigmoidCrossEntropy)
      .value("CATEGORICAL_CROSS_ENTROPY", LossType::CategoricalCrossEntropy)
      .value("HINGE", LossType::Hinge)
      .value("HUBER", LossType::Huber)
      .value("COSINE_DISTANCE", LossType::CosineDistance)
      .value("LOG", LossType::Log)
      .value("KULLBACK_LEIBLER_DIVERGENCE", LossType::KullbackLeiblerDivergence)
      .finalize();
  py::native_enum<ReductionType>(m, "ReductionType", kEnumeration,
                                 "How element losses become one number (``MPSCNNReductionType``).")
      .value("NONE", ReductionType::None)
      .value("SUM", ReductionType::Sum)
      .value("MEAN", ReductionType::Mean)
      .value("SUM_BY_NON_ZERO_WEIGHTS", ReductionType::SumByNonZeroWeights)
      .finalize();
  py::class_<LossDescriptor> c(m, "LossDescriptor");
  c.def(py::init([](LossType type, ReductionType reduction, bool across, float weight,
                    float smoothing, Index classes, float epsilon, float delta) {
          const LossDescriptor d{type,      reduction, across,  weight,
                                 smoothing, classes,   epsilon, delta};
          check_loss("LossDescriptor", d);
          return d;
        }),
        "loss_type"_a, "reduction_type"_a, "reduce_across_batch"_a, "weight"_a, "label_smoothing"_a,
        "number_of_classes"_a, "epsilon"_a, "delta"_a);
  const auto field = [&](const char* name, auto member, const std::string& doc) {
    c.def_property(
        name, [member](const LossDescriptor& self) { return self.*member; },
        [member](LossDescriptor& self, std::remove_reference_t<decltype(self.*member)> value) {
          LossDescriptor changed = self;
          changed.*member = value;
          check_loss("LossDescriptor", changed);
          self = changed;
        },
        doc.c_str());
  };
  field("loss_type", &LossDescriptor::type, text(kTypeDoc, "."));
  field("reduction_type", &LossDescriptor::reduction, text(kReductionDoc, "."));
  field("reduce_across_batch", &LossDescriptor::reduce_across_batch,
        text(kAcrossDoc, ". False by default."));
  field("weight", &LossDescriptor::weight, text(kWeightDoc, "; 1 by default, ValueError for NaN."));
  field("label_smoothing", &LossDescriptor::label_smoothing,
        text(kSmoothingDoc, ". 0 by default, ValueError outside its range."));
  field("number_of_classes", &LossDescriptor::number_of_classes,
        text(kClassesDoc, ". 1 by default, ValueError below."));
  field("epsilon", &LossDescriptor::epsilon,
        text(kEpsilonDoc, ", or ValueError; 1e-7 by default."));
  field("delta", &LossDescriptor::delta, text(kDeltaDoc, ", or ValueError; 1 by default."));
  c.def(
      "__eq__", [](const LossDescriptor& a, const LossDescriptor& b) { return a == b; },
      py::is_operator());
}

// A caller's block of numbers, and where in it each element lies.
struct LossData {
  FloatArray data;
  DataLayout layout;
  Size size;  // width, height, channels
  Index bytes_per_row, bytes_per_image;
};

LossData make_loss_data(const FloatArray& array, DataLayout layout,
                        const OneOf<std::vector<Index>, py::none>& size) {
  constexpr const char* kWho = "LossDataDescriptor";
  require((array.flags() & py::array::c_style) != 0, kWho, ": data must be C-contiguous");
  const bool hwc = layout == DataLayout::HeightWidthChannels;
  LossData result{array, layout, {}, 0, 0};
  if (size.is_none()) {
    require(array.ndim() == 3, kWho, ": data must have 3 axes where no size is given, got ",
            shape_text(array));
    result.size = hwc ? Size{array.shape(1), array.shape(0), array.shape(2)}
                      : Size{array.shape(2), array.shape(1), array.shape(0)};
  } else {
    result.size = size_argument("LossDataDescriptor: size", size);
  }
  const auto& [w, h, c] = result.size;
  require(w >= 1 && h >= 1 && c >= 1, kWho, ": size must be positive, got ", result.size);
  require(w <= array.size() && h <= array.size() / w && c <= array.size() / (w * h), kWho,
          ": data of ", array.nbytes(), " bytes does not hold ", result.size, " float32");
  constexpr Index kItem = sizeof(float);
  result.bytes_per_row = kItem * (hwc ? w * c : w);
  result.bytes_per_image = kItem * (hwc ? w * h * c : w * h);
  return result;
}

// Dense (height, width, channels).
FloatArray dense(const LossData& data) {
  const auto& [w, h, c] = data.size;
  const bool hwc = data.layout == DataLayout::HeightWidthChannels;
  constexpr Index kItem = sizeof(float);
  const Index row = data.bytes_per_row;
  const Index plane = data.bytes_per_image;
  const Index line = kItem * (hwc ? w * c : w);
  const Index planes = hwc ? 1 : c;
  const Index bytes = data.data.nbytes();
  // Whether `steps` steps of so many bytes end before the data do; no product overflows.
  const auto steps_within = [bytes](Index steps, Index step) {
    return steps == 0 || step <= bytes / steps;
  };
  const auto is_within = [&] {
    return steps_within(h - 1, row) && steps_within(planes - 1, plane) &&
           (h - 1) * (h == 1 ? 0 : row) + (planes - 1) * (planes == 1 ? 0 : plane) <= bytes - line;
  };
  require(row >= line && row % kItem == 0 && plane >= 0 && plane % kItem == 0 && is_within(),
          "LossDataDescriptor: bytes_per_row ", row, " and bytes_per_image ", plane,
          " do not fit data of ", data.data.nbytes(), " bytes");
  FloatArray result(std::vector<py::ssize_t>{h, w, c});
  float* out = result.mutable_data();
  const float* in = data.data.data();
  for (Index y = 0; y < h; ++y) {
    for (Index x = 0; x < w; ++x) {
      for (Index k = 0; k < c; ++k) {
        const Index at =
            hwc ? y * row / kItem + x * c + k : k * plane / kItem + y * row / kItem + x;
        *out++ = in[at];
      }
    }
  }
  return result;
}

void bind_loss_data(py::module_& m) {
  py::class_<LossData>(m, "LossDataDescriptor",
                       R"(A block of label or weight numbers (``MPSCNNLossDataDescriptor``).

Parameters
----------
data : ndarray of float32, C-contiguous
    Kept, not copied; read when `LossLabels` are made from it.
layout : DataLayout, default HWC
size : (width, height, channels), optional
    By default that of ``data``, of shape (H, W, C) or (C, H, W). With a size, ``data`` may be longer, for rows with
    gaps: then set `bytes_per_row` and `bytes_per_image`.

Raises
------
TypeError
    If ``data`` is not float32.
ValueError
    If ``data`` does not hold ``size``.
)")
      .def(py::init(&make_loss_data), "data"_a.noconvert(),
           "layout"_a = DataLayout::HeightWidthChannels, "size"_a = py::none())
      .def_readonly("data", &LossData::data, "The float32 array itself, not a copy; read only.")
      .def_readonly("layout", &LossData::layout,
                    "`DataLayout`: order of the numbers in the array; read only.")
      .def_property_readonly(
          "size",
          [](const LossData& self) {
            return py::make_tuple(self.size.width, self.size.height, self.size.depth);
          },
          "(width, height, channels) of the block, whatever the layout; read only.")
      .def_readwrite("bytes_per_row", &LossData::bytes_per_row,
                     "Bytes from one row to the next; preset for dense data.")
      .def_readwrite("bytes_per_image", &LossData::bytes_per_image,
                     "CHW: bytes from one channel to the next; preset for dense data.")
      .def("__copy__", [](const LossData& self) { return self; })
      .def("to_array", &dense, "Return the numbers as a new (H, W, C) array.");
}

// ---- labels

ImageDescriptor float_descriptor(Index height, Index width, Index channels) {
  ImageDescriptor d;
  d.height = height;
  d.width = width;
  d.feature_channels = channels;
  return d;
}

// A C-contiguous float32 array of `axes` axes; nothing is converted. With `copy` another order is.
py::array float_array(const py::object& object, const char* name, py::ssize_t axes, bool copy) {
  const py::array array = GivenArray::of(object).array;
  require<TypeError>(static_cast<bool>(array), "LossLabels: ", name,
                     " must be an array, a LossDataDescriptor or an Image, got ",
                     type_name(object));
  require<TypeError>(py::isinstance<py::array_t<float>>(array), "LossLabels: ", name,
                     " must be float32, got ", std::string(py::str(array.dtype())),
                     array.dtype().kind() == 'i' || array.dtype().kind() == 'u'
                         ? "; mg.one_hot(classes, count) makes such labels of classes"
                         : "");
  require(array.ndim() == axes, "LossLabels: ", name, " must have shape ",
          axes == 3 ? "(H, W, C)" : "(N, H, W, C)", ", got ", shape_text(array));
  require(array.size() > 0, "LossLabels: ", name, " must not be empty");
  if (!copy) {
    require_usable_in_place(array, "LossLabels", name);
  }
  return py::array::ensure(array, py::array::c_style);
}

// A copy of (N, H, W, C) numbers on the device.
std::shared_ptr<ImageBatch> copied(const std::shared_ptr<Device>& device, const py::array& array) {
  const py::ssize_t first = array.ndim() - 3;
  const ImageDescriptor d =
      float_descriptor(array.shape(first), array.shape(first + 1), array.shape(first + 2));
  const Index count = first == 1 ? array.shape(0) : 1;
  auto batch = ImageBatch::make(device, d, count, false);
  const auto* data = static_cast<const std::byte*>(array.data());
  for (Index i = 0; i < count; ++i) {
    (*batch)[i]->write(0, DataLayout::HeightWidthChannels, data + i * d.bytes_per_image());
  }
  return batch;
}

// The array itself where the device can use it.
std::shared_ptr<ImageBatch> lent(const std::shared_ptr<Device>& device, const py::array& array) {
  const ImageDescriptor d = float_descriptor(array.shape(1), array.shape(2), array.shape(3));
  return ImageBatch::from_memory(
      device, d, array.shape(0),
      {const_cast<void*>(array.data()), static_cast<std::size_t>(array.nbytes()),
       share_python(array), !array.writeable()});
}

std::shared_ptr<ImageBatch> label_image(const std::shared_ptr<Device>& device,
                                        const py::object& object, const char* name) {
  if (py::isinstance<Image>(object)) {
    return std::make_shared<ImageBatch>(ImageBatch::Images{object.cast<std::shared_ptr<Image>>()});
  }
  if (py::isinstance<LossData>(object)) {
    return copied(device, dense(object.cast<const LossData&>()));
  }
  return copied(device, float_array(object, name, 3, true));
}

// (H, W, C) float32, whatever the format; unorm codes become 0 to 1.
py::array image_numbers(const Image& image) {
  const ImageDescriptor& d = image.descriptor();
  py::array raw(dtype_of(d.channel_format),
                std::vector<py::ssize_t>{d.height, d.width, d.feature_channels});
  image.read(0, DataLayout::HeightWidthChannels, raw.mutable_data());
  if (d.channel_format == ChannelFormat::Float32) {
    return raw;
  }
  const py::object numbers = raw.attr("astype")("float32");
  if (d.channel_format == ChannelFormat::Float16) {
    return numbers;
  }
  return numbers / py::float_(d.channel_format == ChannelFormat::Unorm8 ? 255.0 : 65535.0);
}

using LabelsGiven = OneOf<LossData, Image, GivenArray>;
using LabelsOrNone = OneOf<LossData, Image, GivenArray, py::none>;

void bind_labels(py::module_& m) {
  py::class_<LossLabels, State, py::smart_holder>(
      m, "LossLabels",
      R"(Labels, weights and the loss of one image (``MPSCNNLossLabels``).

Parameters
----------
device : Device
labels : ndarray of float32, shape (H, W, C), LossDataDescriptor or Image
    Arrays and descriptors are copied; an image is kept, and read when the kernel runs.
weights : as labels, optional
    One factor for each element.
loss_image_size : (width, height, channels), default (1, 1, 1)
    The source's size if the loss has no reduction.

Raises
------
TypeError
    If an array is not float32; nothing is converted.
ValueError
    If labels and weights differ in shape.
)")
      .def(py::init([](const std::shared_ptr<Device>& device, const LabelsGiven& labels,
                       const LabelsOrNone& weights, const Integers& loss_image_size) {
             const auto own = label_image(device, labels, "labels");
             const auto factors =
                 weights.is_none() ? nullptr : label_image(device, weights, "weights");
             return LossLabels::make(device, *own, factors.get(),
                                     size_argument("LossLabels: loss_image_size", loss_image_size))
                 .front();
           }),
           "device"_a.none(false), "labels"_a, "weights"_a = py::none(),
           "loss_image_size"_a = py::make_tuple(1, 1, 1))
      .def_static(
          "batch",
          [](const std::shared_ptr<Device>& device, const OneOf<GivenArray>& labels,
             const OneOf<GivenArray, py::none>& weights, const Integers& loss_image_size,
             bool copy) {
            const auto images = [&](const py::object& object, const char* name) {
              const py::array array = float_array(object, name, 4, copy);
              return copy ? copied(device, array) : lent(device, array);
            };
            const auto own = images(labels, "labels");
            const auto factors = weights.is_none() ? nullptr : images(weights, "weights");
            return LossLabels::make(device, *own, factors.get(),
                                    size_argument("LossLabels: loss_image_size", loss_image_size));
          },
          "device"_a.none(false), "labels"_a, "weights"_a = py::none(), py::kw_only(),
          "loss_image_size"_a = py::make_tuple(1, 1, 1), "copy"_a = true,
          R"(Return one object for each image of a batch, over one allocation where the device can.

Parameters
----------
device : Device
labels : ndarray of float32, shape (N, H, W, C)
weights : ndarray of float32, shape (N, H, W, C), optional
loss_image_size : (width, height, channels), default (1, 1, 1)
    The source's size if the loss has no reduction.
copy : bool, default True
    False: the CPU device reads the arrays themselves, which must be C-contiguous, when the kernel runs.

Returns
-------
list of LossLabels
)")
      .def_property_readonly("labels_image", &LossLabels::labels,
                             "`Image` of the labels: the one that was given, or a float32 one of "
                             "the array's numbers; read only.")
      .def_property_readonly("weights_image", &LossLabels::weights, "None if there are none.")
      .def_property_readonly("loss_image", &LossLabels::loss,
                             "float32 `Image` of ``loss_image_size`` that a loss kernel writes "
                             "into; read only.")
      .def_property_readonly(
          "labels", [](const LossLabels& self) { return image_numbers(*self.labels()); },
          "Copy as float32, shape (H, W, C).")
      .def_property_readonly(
          "weights",
          [](const LossLabels& self) -> OneOf<py::array, py::none> {
            return self.weights() ? py::object(image_numbers(*self.weights())) : py::none();
          },
          "Copy as float32, shape (H, W, C), or None.")
      .def_property_readonly(
          "loss",
          [](const LossLabels& self) {
            self.require_loss();
            return image_numbers(*self.loss());
          },
          "Copy as float32, shape (1, 1, 1), or (H, W, C) without reduction. RuntimeError before a "
          "kernel has written it, and `synchronize` and the wait have followed.")
      .def("__repr__", [](const LossLabels& self) {
        return text("LossLabels(", self.labels()->descriptor(), self.weights() ? ", weights" : "",
                    ")");
      });
}

// ---- kernels

LabelImages label_images(const py::object& labels, const py::object& weights, const char* who) {
  LabelImages result{batch_argument(labels, "labels", who).images(), {}};
  if (!weights.is_none()) {
    result.weights = batch_argument(weights, "weights", who).images();
  }
  return result;
}

template <class Class>
void bind_settings(Class& c) {
  using Kernel = typename Class::type;
  const auto fixed = [&](const char* name, auto member, const char* doc) {
    c.def_property_readonly(
        name, [member](const Kernel& k) { return k.loss().*member; },
        text(doc, "; read only.").c_str());
  };
  fixed("loss_type", &LossDescriptor::type, kTypeDoc);
  fixed("reduction_type", &LossDescriptor::reduction, kReductionDoc);
  fixed("reduce_across_batch", &LossDescriptor::reduce_across_batch, kAcrossDoc);
  fixed("number_of_classes", &LossDescriptor::number_of_classes, kClassesDoc);
  c.def_property_readonly(
      "descriptor", [](const Kernel& k) { return k.loss(); },
      "A copy of the loss with its settings as they are now; read only.");
  const auto setting = [&](const char* name, auto member, const char* doc) {
    if constexpr (requires(Kernel k, LossDescriptor d) { k.set_loss(d); }) {
      c.def_property(
          name, [member](const Kernel& k) { return k.loss().*member; },
          [member](Kernel& k, float value) {
            LossDescriptor changed = k.loss();
            changed.*member = value;
            k.set_loss(changed);
          },
          text(doc,
               "; a new value holds for the encodes that follow, one out of range is a ValueError.")
              .c_str());
    } else {
      fixed(name, member, doc);
    }
  };
  setting("weight", &LossDescriptor::weight, kWeightDoc);
  setting("label_smoothing", &LossDescriptor::label_smoothing, kSmoothingDoc);
  setting("epsilon", &LossDescriptor::epsilon, kEpsilonDoc);
  setting("delta", &LossDescriptor::delta, kDeltaDoc);
}

using LabelsOfImages = OneOf<LossLabels, std::vector<std::shared_ptr<LossLabels>>>;

py::object encode_loss(LabelledLoss& self, const std::shared_ptr<CommandBuffer>& command_buffer,
                       const ImagesGiven& source_object, const LabelsOfImages& label_object,
                       const ImagesOrNone& destination_object,
                       const AllocatorGiven& allocator_object) {
  const ImageArgument source = image_argument(source_object, "source", self.class_name());
  const StateBatch labels = state_argument(label_object, "labels", self.class_name());
  if (!destination_object.is_none()) {
    const ImageArgument destination =
        image_argument(destination_object, "destination", self.class_name());
    require<TypeError>(source.batch == destination.batch, self.class_name(),
                       ": source and destination must both be single images or both be batches");
    self.encode(command_buffer, source.images(), labels, destination.images(), source.batch);
    return destination_object;
  }
  const auto allocator = allocator_argument(allocator_object);
  const auto images =
      self.encode_creating(command_buffer, source.images(), labels, source.batch, allocator.get());
  return image_result(images, source.batch);
}

void bind_combined(py::module_& m) {
  py::class_<LabelledLoss, UnaryKernel, py::smart_holder> c(
      m, "LabelledLoss", "Base class of `Loss` and `YOLOLoss`, whose labels are a state an image.");
  def_often_called(c, "encode", &encode_loss, "command_buffer"_a.none(false), "source"_a,
                   "labels"_a, "destination"_a = py::none(), py::kw_only(),
                   "allocator"_a = py::none(),
                   text(R"(Encode loss and gradient.

Parameters
----------
command_buffer : CommandBuffer
source : Image, or batch
    Predictions. A list or `ImageBatch` selects the batch form.
labels : LossLabels, or list
    One for each image; their loss images receive the losses.
destination : Image, or batch, optional
    Receives the gradient; of the source's size.
allocator : optional
    Overrides `destination_image_allocator` for this call.

Returns
-------
Image or ImageBatch
    The gradient of the summed loss with respect to the source, whatever the reduction.

Raises
------
TypeError, ValueError
    If an argument is of another kind, size, device or command buffer, labels come twice, only some have weights, or
    they do not fit the reduction; if a result is read-only or shares memory with another image; or if `clip_rect` is
    set, or `offset` for a destination that is given.
)",
                        kWorkRaises)
                       .c_str());
  def_often_called(c, "encode_batch", &encode_loss, "command_buffer"_a.none(false), "sources"_a,
                   "labels"_a, "destinations"_a = py::none(), py::kw_only(),
                   "allocator"_a = py::none(),
                   batch_form("All are of one length, and so is ``labels``.").c_str());
  py::class_<Loss, LabelledLoss, py::smart_holder> loss(m, "Loss");
  loss.def(py::init<std::shared_ptr<Device>, const LossDescriptor&>(), "device"_a.none(false),
           "descriptor"_a);
  bind_settings(loss);
}

void bind_forward(py::module_& m) {
  py::class_<ForwardLossState, GradientState, py::smart_holder> state(
      m, "ForwardLossState", "Settings of a `ForwardLoss` at an encode, for its `LossGradient`.");
  const auto setting = [&](const char* name, auto member, const char* doc) {
    state.def_property_readonly(
        name, [member](const ForwardLossState& self) { return self.loss().*member; },
        text(doc, "; read only.").c_str());
  };
  setting("weight", &LossDescriptor::weight, kWeightDoc);
  setting("label_smoothing", &LossDescriptor::label_smoothing, kSmoothingDoc);
  setting("epsilon", &LossDescriptor::epsilon, kEpsilonDoc);
  setting("delta", &LossDescriptor::delta, kDeltaDoc);
  forbid_construction(state);

  py::class_<ForwardLoss, UnaryKernel, py::smart_holder> c(m, "ForwardLoss");
  c.def(py::init<std::shared_ptr<Device>, const LossDescriptor&>(), "device"_a.none(false),
        "descriptor"_a);
  bind_settings(c);
  c.def(
      "encode",
      [](ForwardLoss& self, const py::args&, const py::kwargs&) -> py::object {
        fail<TypeError>(self.class_name(), ": has batch forms only; use encode_batch");
      },
      "Not offered: there are batch forms only.");
  def_often_called(
      c, "encode_batch",
      +[](ForwardLoss& self, const std::shared_ptr<CommandBuffer>& command_buffer,
          const BatchGiven& source_object, const BatchGiven& label_object,
          const BatchOrNone& weight_object, const BatchOrNone& destination_object,
          const StatesOrNone& state_object, bool with_state, bool temporary_state,
          const AllocatorGiven& allocator_object) -> py::object {
        const ImageArgument sources = batch_argument(source_object, "sources", self.class_name());
        const LabelImages labels = label_images(label_object, weight_object, self.class_name());
        return encode_or_create(
            self, "sources", true,
            {destination_object, state_object, with_state, allocator_object, true},
            [&](const StateBatch& states, const ImageBatch::Images& destinations) {
              self.encode(command_buffer, sources.images(), labels, states, destinations);
            },
            [&](ImageAllocator* allocator) {
              return self.encode_creating(command_buffer, sources.images(), labels, with_state,
                                          temporary_state, allocator);
            });
      },
      "command_buffer"_a.none(false), "sources"_a, "labels"_a, "weights"_a = py::none(),
      "destinations"_a = py::none(), py::kw_only(), "destination_states"_a = py::none(),
      "with_state"_a = false, "temporary_state"_a = false, "allocator"_a = py::none(),
      text(
          R"(Encode the losses of a batch.

Parameters
----------
command_buffer : CommandBuffer
sources, labels : batch of images
    Predictions and labels, of one size.
weights : batch of images, optional
    One factor for each element.
destinations : batch of images, optional
    Receive the losses: 1x1x1, or of the sources' size without reduction.
destination_states : list of State, optional
    From `result_state_batch`; only together with ``destinations``.
with_state, temporary_state : bool, default False
    Create states for `LossGradient` as well.
allocator : optional
    Overrides `destination_image_allocator` for this call.

Returns
-------
ImageBatch, or with ``with_state`` a pair of it and the list of states
    The losses.
)",
          forward_raises(
              R"(    Labels and weights must have the sources' size, and COSINE_DISTANCE takes no weights.
)"))
          .c_str());
}

void bind_gradient(py::module_& m) {
  py::class_<LossGradient, BinaryKernel, py::smart_holder> c(m, "LossGradient");
  c.def(py::init<std::shared_ptr<Device>, const LossDescriptor&>(), "device"_a.none(false),
        "descriptor"_a);
  bind_settings(c);
  c.def_readwrite("compute_label_gradients", &LossGradient::compute_label_gradients,
                  "Gradients with respect to the labels instead of the predictions.");
  def_often_called(
      c, "encode_batch",
      +[](LossGradient& self, const std::shared_ptr<CommandBuffer>& command_buffer,
          const BatchGiven& gradient_object, const BatchGiven& source_object,
          const BatchGiven& label_object, const BatchOrNone& weight_object,
          const StatesOrNone& state_object, const BatchOrNone& destination_object,
          const AllocatorGiven& allocator_object) -> py::object {
        const ImageBatch::Images gradients =
            batch_argument(gradient_object, "source_gradients", self.class_name()).images();
        const ImageBatch::Images sources =
            batch_argument(source_object, "sources", self.class_name()).images();
        const LabelImages labels = label_images(label_object, weight_object, self.class_name());
        const StateBatch states = state_argument(state_object, "source_states", self.class_name());
        if (!destination_object.is_none()) {
          const ImageBatch::Images destinations =
              batch_argument(destination_object, "destination_gradients", self.class_name())
                  .images();
          self.encode(command_buffer, gradients, sources, labels, states, destinations);
          return destination_object;
        }
        const auto allocator = allocator_argument(allocator_object);
        const auto images = self.encode_creating(command_buffer, gradients, sources, labels, states,
                                                 allocator.get());
        return image_result(images, true);
      },
      "command_buffer"_a.none(false), "source_gradients"_a, "sources"_a, "labels"_a,
      "weights"_a = py::none(), "source_states"_a = py::none(),
      "destination_gradients"_a = py::none(), py::kw_only(), "allocator"_a = py::none(),
      text(R"(Encode the gradients of a batch.

Parameters
----------
command_buffer : CommandBuffer
source_gradients : batch of images
    Gradient with respect to the loss images, and of their size.
sources, labels, weights : batch of images
    As given to `ForwardLoss`.
source_states : list of ForwardLossState, optional
    From the forward encode; their settings override the kernel's.
destination_gradients : batch of images, optional
    Receive the gradients; of the sources' size.
allocator : optional
    Overrides `destination_image_allocator` for this call.

Returns
-------
ImageBatch
    Gradients with respect to the sources, or to the labels if `compute_label_gradients`.

Raises
------
TypeError, ValueError
    If an argument is of another kind, size, device or command buffer, ``source_states`` are of another loss or have
    different settings, a destination is read-only or shares memory with another image, COSINE_DISTANCE is given
    weights, or an offset or `clip_rect` is set.
)",
           kWorkRaises)
          .c_str());
}

}  // namespace

void bind_yolo_loss(py::module_& m);

void bind_loss(py::module_& m) {
  bind_loss_descriptor(m);
  bind_loss_data(m);
  bind_labels(m);
  bind_combined(m);
  bind_yolo_loss(m);
  bind_forward(m);
  bind_gradient(m);
  py::class_<InitialGradient, UnaryKernel, py::smart_holder>(m, "InitialGradient")
      .def(py::init<std::shared_ptr<Device>>(), "device"_a.none(false));
}

}  // namespace mpsgrad
