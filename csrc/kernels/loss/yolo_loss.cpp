// Rules of the object detection loss.
#include "kernels/loss/yolo_loss.hpp"

#include <cmath>

#include "base/errors.hpp"

namespace mpsgrad {

LossDescriptor YOLOLossDescriptor::reduced() const {
  LossDescriptor result;  // of a type whose mean is over all elements
  result.reduction = reduction;
  result.reduce_across_batch = reduce_across_batch;
  return result;
}

void check_yolo_fields(const char* who, const YOLOLossDescriptor& loss) {
  check_loss_fields(who, loss.reduced());
  require(!loss.anchors.empty(), who, ": anchor_boxes must hold at least one box");
  for (const auto& [width, height] : loss.anchors) {
    require(width > 0.0F && height > 0.0F && std::isfinite(width) && std::isfinite(height), who,
            ": anchor_boxes must be positive and finite, got ", width, "x", height);
  }
}

void check_yolo_loss(const char* who, const YOLOLossDescriptor& loss) {
  check_yolo_fields(who, loss);
  const auto check = [&](const char* name, const LossDescriptor& part) {
    check_loss_fields(text(who, ": ", name).c_str(), part);
    require(part.type != LossType::CosineDistance, who, ": ", name,
            " cannot be a COSINE_DISTANCE, which has no loss of an element");
  };
  check("xy_loss_descriptor", loss.xy);
  check("wh_loss_descriptor", loss.wh);
  check("confidence_loss_descriptor", loss.confidence);
  check("classes_loss_descriptor", loss.classes);
}

YOLOLoss::YOLOLoss(std::shared_ptr<Device> device, const YOLOLossDescriptor& loss)
    : LabelledLoss(std::move(device), "YOLOLoss", loss.reduced()), loss_(loss) {
  check_yolo_loss(class_name(), loss_);
  for (LossDescriptor* part : {&loss_.xy, &loss_.wh, &loss_.confidence, &loss_.classes}) {
    part->reduction = loss_.reduction;
    part->reduce_across_batch = loss_.reduce_across_batch;
  }
  encoder_ = loss_backend(*this->device(), class_name()).make_yolo_loss(*this->device(), loss_);
}

void YOLOLoss::check_channels(Index consumed) const {
  const Index anchors = loss_.anchor_count();
  require(
      consumed % anchors == 0 && consumed / anchors > kYOLOBoxChannels, class_name(),
      ": source has ", consumed, " channels, but ", anchors,
      " anchor boxes need as many times 5 channels and one for each class, of which there is at "
      "least one");
}

void YOLOLoss::warn_of(Index consumed) {
  warn_of_classes(*this, loss_.classes, consumed / loss_.anchor_count() - kYOLOBoxChannels,
                  "classes", warned_);
}

}  // namespace mpsgrad
