// The elements of the object detection loss on the CPU device; loss_cpu.cpp passes over the images.
#include "kernels/loss/loss_cpu.hpp"
#include "kernels/loss/yolo_loss.hpp"
#include "kernels/loss/yolo_loss_simd.hpp"

namespace mpsgrad {
namespace {

class YOLOElements final : public LossElements {
 public:
  explicit YOLOElements(const YOLOLossDescriptor& loss)
      : anchors_(loss.anchors),
        function_{.xy = loss_function(loss.xy),
                  .wh = loss_function(loss.wh),
                  .confidence = loss_function(loss.confidence),
                  .classes = loss_function(loss.classes),
                  .xy_factor = loss.scale_xy * loss.xy.weight,
                  .wh_factor = loss.scale_wh * loss.wh.weight,
                  .object_factor = loss.scale_object * loss.confidence.weight,
                  .no_object_factor = loss.scale_no_object * loss.confidence.weight,
                  .class_factor = loss.scale_class * loss.classes.weight,
                  .presence = loss.min_iou_for_object_presence,
                  .absence = loss.max_iou_for_object_absence,
                  .rescore = loss.rescore,
                  .anchors = anchors_.front().data(),
                  .anchor_count = loss.anchor_count()} {}

  void compute(const float* y, const float* t, float* losses, float* slopes, float* scratch,
               Index pixels, Index channels) const override {
    yolo_loss_loops().elements(function_, y, t, losses, slopes, scratch, pixels, channels);
  }

 private:
  std::vector<std::array<float, 2>> anchors_;
  YOLOFunction function_;
};

}  // namespace

std::shared_ptr<const LossElements> make_yolo_elements(const YOLOLossDescriptor& loss) {
  return std::make_shared<const YOLOElements>(loss);
}

}  // namespace mpsgrad
