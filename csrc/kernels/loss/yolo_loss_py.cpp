// bind_yolo_loss: descriptor and kernel of the object detection loss, documented in
// python/mpsgrad/loss.py. The descriptor's four parts are objects of Python's, which can be changed
// where they are; a kernel is given them beside the rest.
#include <cstring>
#include <string_view>

#include "core/numbers_py.hpp"
#include "kernels/loss/yolo_loss.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

using Anchors = std::vector<std::array<float, 2>>;
using AnchorsGiven = OneOf<FloatArray, py::bytes>;

Anchors anchors_of(const AnchorsGiven& object) {
  constexpr const char* kWho = "YOLOLossDescriptor";
  const void* data = nullptr;
  FloatArray array;
  Anchors result;
  if (py::isinstance<py::bytes>(object)) {
    const auto bytes = object.cast<std::string_view>();
    require(bytes.size() % sizeof(result.front()) == 0, kWho,
            ": anchor_boxes must be 8 bytes a box, got ", bytes.size(), " bytes");
    result.resize(bytes.size() / sizeof(result.front()));
    data = bytes.data();
  } else {
    array = float_array(text(kWho, ": anchor_boxes"), object, ", or bytes");
    require(array.ndim() == 2 && array.shape(1) == 2, kWho,
            ": anchor_boxes must have shape (boxes, 2), got ",
            std::string(py::str(py::object(array.attr("shape")))));
    result.resize(static_cast<std::size_t>(array.shape(0)));
    data = array.data();
  }
  if (!result.empty()) {
    std::memcpy(result.data(), data, result.size() * sizeof(result.front()));
  }
  return result;
}

// A copy that cannot be written, for it would change nothing.
py::array anchor_array(const YOLOLossDescriptor& loss) {
  py::array result(py::dtype::of<float>(),
                   std::vector<py::ssize_t>{static_cast<py::ssize_t>(loss.anchors.size()), 2},
                   loss.anchors.data());
  result.attr("setflags")("write"_a = false);
  return result;
}

// What each field means, to the descriptor and to the kernel.
constexpr const char* kReductionDoc = "`ReductionType` of the elements of all parts together";
constexpr const char* kAcrossDoc =
    "Whether the losses of a batch become one, in the first loss image, unless the reduction is "
    "NONE";
constexpr const char* kXyDoc =
    "Factor of loss and gradient of the centres of boxes that are present";
constexpr const char* kWhDoc = "Factor of loss and gradient of the sizes of boxes that are present";
constexpr const char* kNoObjectDoc =
    "Factor of loss and gradient of the confidence of boxes that are absent";
constexpr const char* kObjectDoc =
    "Factor of loss and gradient of the confidence of boxes that are present";
constexpr const char* kClassDoc =
    "Factor of loss and gradient of the classes of boxes that are present";
constexpr const char* kPresenceDoc =
    "Intersection over union with the object of its cell above which a box is present; one whose "
    "anchor fits best always is";
constexpr const char* kAbsenceDoc =
    "Intersection over union below which a box that is not present is absent; it does not count "
    "otherwise";
constexpr const char* kAnchorsDoc =
    "Width and height of each anchor in grid cells, a float32 copy of shape (boxes, 2) that cannot "
    "be written to";
constexpr const char* kCountDoc = "Boxes that each cell of the grid predicts; read only.";

void bind_descriptor(py::module_& m) {
  py::class_<YOLOLossDescriptor> c(m, "YOLOLossDescriptor");
  c.def(py::init([](ReductionType reduction, const AnchorsGiven& anchors, bool across, bool rescore,
                    float xy, float wh, float no_object, float object, float classes,
                    float presence, float absence) {
          YOLOLossDescriptor d;
          d.reduction = reduction;
          d.anchors = anchors_of(anchors);
          d.reduce_across_batch = across;
          d.rescore = rescore;
          d.scale_xy = xy;
          d.scale_wh = wh;
          d.scale_no_object = no_object;
          d.scale_object = object;
          d.scale_class = classes;
          d.min_iou_for_object_presence = presence;
          d.max_iou_for_object_absence = absence;
          check_yolo_fields("YOLOLossDescriptor", d);
          return d;
        }),
        "reduction_type"_a, "anchor_boxes"_a, "reduce_across_batch"_a, "rescore"_a, "scale_xy"_a,
        "scale_wh"_a, "scale_no_object"_a, "scale_object"_a, "scale_class"_a,
        "min_iou_for_object_presence"_a, "max_iou_for_object_absence"_a);
  const auto field = [&](const char* name, auto member, const char* doc, const char* usual) {
    c.def_property(
        name, [member](const YOLOLossDescriptor& self) { return self.*member; },
        [member](YOLOLossDescriptor& self, std::remove_reference_t<decltype(self.*member)> value) {
          YOLOLossDescriptor changed = self;
          changed.*member = value;
          check_yolo_fields("YOLOLossDescriptor", changed);
          self = changed;
        },
        text(doc, usual).c_str());
  };
  field("reduction_type", &YOLOLossDescriptor::reduction, kReductionDoc, ".");
  field("reduce_across_batch", &YOLOLossDescriptor::reduce_across_batch, kAcrossDoc,
        ". False by default.");
  field("rescore", &YOLOLossDescriptor::rescore,
        "Whether a present box should have for confidence its label times the intersection over "
        "union of predicted and true box, not the label alone",
        "; True by default.");
  field("scale_xy", &YOLOLossDescriptor::scale_xy, kXyDoc, "; 10 by default.");
  field("scale_wh", &YOLOLossDescriptor::scale_wh, kWhDoc, "; 10 by default.");
  field("scale_no_object", &YOLOLossDescriptor::scale_no_object, kNoObjectDoc, "; 5 by default.");
  field("scale_object", &YOLOLossDescriptor::scale_object, kObjectDoc, "; 100 by default.");
  field("scale_class", &YOLOLossDescriptor::scale_class, kClassDoc, "; 2 by default.");
  field("min_iou_for_object_presence", &YOLOLossDescriptor::min_iou_for_object_presence,
        kPresenceDoc, ". 0.7 by default.");
  field("max_iou_for_object_absence", &YOLOLossDescriptor::max_iou_for_object_absence, kAbsenceDoc,
        ". 0.3 by default.");
  c.def_property(
      "anchor_boxes", &anchor_array,
      [](YOLOLossDescriptor& self, const AnchorsGiven& anchors) {
        YOLOLossDescriptor changed = self;
        changed.anchors = anchors_of(anchors);
        check_yolo_fields("YOLOLossDescriptor", changed);
        self = changed;
      },
      text(kAnchorsDoc,
           "; takes pairs of positive numbers, or float32 bytes, and raises TypeError or "
           "ValueError for others.")
          .c_str());
  c.def_property_readonly("number_of_anchor_boxes", &YOLOLossDescriptor::anchor_count, kCountDoc);
}

void bind_kernel(py::module_& m) {
  py::class_<YOLOLoss, LabelledLoss, py::smart_holder> c(m, "YOLOLoss");
  c.def(py::init([](std::shared_ptr<Device> device, YOLOLossDescriptor descriptor,
                    const LossDescriptor& xy, const LossDescriptor& wh,
                    const LossDescriptor& confidence, const LossDescriptor& classes) {
          descriptor.xy = xy;
          descriptor.wh = wh;
          descriptor.confidence = confidence;
          descriptor.classes = classes;
          return std::make_shared<YOLOLoss>(std::move(device), descriptor);
        }),
        "device"_a.none(false), "descriptor"_a, "xy"_a, "wh"_a, "confidence"_a, "classes"_a);
  const auto fixed = [&](const char* name, auto member, const char* doc) {
    c.def_property_readonly(
        name, [member](const YOLOLoss& k) { return k.loss().*member; },
        text(doc, "; read only.").c_str());
  };
  fixed("reduction_type", &YOLOLossDescriptor::reduction, kReductionDoc);
  fixed("reduce_across_batch", &YOLOLossDescriptor::reduce_across_batch, kAcrossDoc);
  fixed("scale_xy", &YOLOLossDescriptor::scale_xy, kXyDoc);
  fixed("scale_wh", &YOLOLossDescriptor::scale_wh, kWhDoc);
  fixed("scale_no_object", &YOLOLossDescriptor::scale_no_object, kNoObjectDoc);
  fixed("scale_object", &YOLOLossDescriptor::scale_object, kObjectDoc);
  fixed("scale_class", &YOLOLossDescriptor::scale_class, kClassDoc);
  fixed("min_iou_for_object_presence", &YOLOLossDescriptor::min_iou_for_object_presence,
        kPresenceDoc);
  fixed("max_iou_for_object_absence", &YOLOLossDescriptor::max_iou_for_object_absence, kAbsenceDoc);
  c.def_property_readonly(
      "anchor_boxes", [](const YOLOLoss& k) { return anchor_array(k.loss()); },
      text(kAnchorsDoc, "; read only.").c_str());
  c.def_property_readonly(
      "number_of_anchor_boxes", [](const YOLOLoss& k) { return k.loss().anchor_count(); },
      kCountDoc);
}

}  // namespace

void bind_yolo_loss(py::module_& m) {
  bind_descriptor(m);
  bind_kernel(m);
}

}  // namespace mpsgrad
