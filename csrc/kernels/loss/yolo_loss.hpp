// The loss of object detection: YOLOLoss (MPSCNNYOLOLoss), which puts four losses together over the
// boxes that each cell of a grid predicts.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/loss/loss.hpp"

namespace mpsgrad {

struct YOLOLossDescriptor {  // MPSCNNYOLOLossDescriptor
  // Reductions of the four parts do not matter.
  LossDescriptor xy, wh, confidence, classes;
  ReductionType reduction = ReductionType::Sum;
  bool reduce_across_batch = false;
  bool rescore = true;  // the label of the confidence is the overlap of predicted and true box
  float scale_xy = 10.0F;
  float scale_wh = 10.0F;
  float scale_no_object = 5.0F;
  float scale_object = 100.0F;
  float scale_class = 2.0F;
  float min_iou_for_object_presence = 0.7F;
  float max_iou_for_object_absence = 0.3F;
  std::vector<std::array<float, 2>> anchors;  // width and height, in grid cells

  bool operator==(const YOLOLossDescriptor&) const = default;
  Index anchor_count() const { return static_cast<Index>(anchors.size()); }
  // How the elements of all parts together are reduced.
  LossDescriptor reduced() const;
};
// Channels of a box before its classes: x, y, width, height and confidence.
inline constexpr Index kYOLOBoxChannels = 5;

// Throw std::invalid_argument, naming `who`: for what a descriptor itself holds, and for its parts.
void check_yolo_fields(const char* who, const YOLOLossDescriptor& loss);
void check_yolo_loss(const char* who, const YOLOLossDescriptor& loss);

class YOLOLoss final : public LabelledLoss {
 public:
  YOLOLoss(std::shared_ptr<Device> device, const YOLOLossDescriptor& loss);
  const YOLOLossDescriptor& loss() const { return loss_; }

 protected:
  void check_channels(Index consumed) const override;
  void warn_of(Index consumed) override;

 private:
  YOLOLossDescriptor loss_;
};

}  // namespace mpsgrad
