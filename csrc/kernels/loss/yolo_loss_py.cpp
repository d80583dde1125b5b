// bind_yolo_loss: descriptor and kernel of the object detection loss, documented in
// python/mpsgrad/loss.py. The descriptor's four parts are objects of Python's, which can be changed
// where they are; a kernel is given them beside the rest.
#include <pybind11/numpy.h>

#include <cstring>
#include <string_view>

#include "core/arguments_py.hpp"
#include "kernels/loss/yolo_loss.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

using Anchors = std::vector<std::array<float, 2>>;
using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;

Anchors anchors_of(const py::object& object) {
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
    array = FloatArray::ensure(object);
    require<TypeError>(static_cast<bool>(array), kWho,
                       ": anchor_boxes must be an array of numbers, or bytes, got ",
                       type_name(object));
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

void bind_descriptor(py::module_& m) {
  py::class_<YOLOLossDescriptor> c(m, "YOLOLossDescriptor");
  c.def(py::init([](ReductionType reduction, const py::object& anchors, bool across, bool rescore,
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
  const auto field = [&](const char* name, auto member) {
    c.def_property(
        name, [member](const YOLOLossDescriptor& self) { return self.*member; },
        [member](YOLOLossDescriptor& self, std::remove_reference_t<decltype(self.*member)> value) {
          YOLOLossDescriptor changed = self;
          changed.*member = value;
          check_yolo_fields("YOLOLossDescriptor", changed);
          self = changed;
        });
  };
  field("reduction_type", &YOLOLossDescriptor::reduction);
  field("reduce_across_batch", &YOLOLossDescriptor::reduce_across_batch);
  field("rescore", &YOLOLossDescriptor::rescore);
  field("scale_xy", &YOLOLossDescriptor::scale_xy);
  field("scale_wh", &YOLOLossDescriptor::scale_wh);
  field("scale_no_object", &YOLOLossDescriptor::scale_no_object);
  field("scale_object", &YOLOLossDescriptor::scale_object);
  field("scale_class", &YOLOLossDescriptor::scale_class);
  field("min_iou_for_object_presence", &YOLOLossDescriptor::min_iou_for_object_presence);
  field("max_iou_for_object_absence", &YOLOLossDescriptor::max_iou_for_object_absence);
  c.def_property("anchor_boxes", &anchor_array,
                 [](YOLOLossDescriptor& self, const py::object& anchors) {
                   YOLOLossDescriptor changed = self;
                   changed.anchors = anchors_of(anchors);
                   check_yolo_fields("YOLOLossDescriptor", changed);
                   self = changed;
                 });
  c.def_property_readonly("number_of_anchor_boxes", &YOLOLossDescriptor::anchor_count);
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
        "device"_a, "descriptor"_a, "xy"_a, "wh"_a, "confidence"_a, "classes"_a);
  const auto fixed = [&](const char* name, auto member) {
    c.def_property_readonly(name, [member](const YOLOLoss& k) { return k.loss().*member; });
  };
  fixed("reduction_type", &YOLOLossDescriptor::reduction);
  fixed("reduce_across_batch", &YOLOLossDescriptor::reduce_across_batch);
  fixed("scale_xy", &YOLOLossDescriptor::scale_xy);
  fixed("scale_wh", &YOLOLossDescriptor::scale_wh);
  fixed("scale_no_object", &YOLOLossDescriptor::scale_no_object);
  fixed("scale_object", &YOLOLossDescriptor::scale_object);
  fixed("scale_class", &YOLOLossDescriptor::scale_class);
  fixed("min_iou_for_object_presence", &YOLOLossDescriptor::min_iou_for_object_presence);
  fixed("max_iou_for_object_absence", &YOLOLossDescriptor::max_iou_for_object_absence);
  c.def_property_readonly("anchor_boxes", [](const YOLOLoss& k) { return anchor_array(k.loss()); });
  c.def_property_readonly("number_of_anchor_boxes",
                          [](const YOLOLoss& k) { return k.loss().anchor_count(); });
}

}  // namespace

void bind_yolo_loss(py::module_& m) {
  bind_descriptor(m);
  bind_kernel(m);
}

}  // namespace mpsgrad
