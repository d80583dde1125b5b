// Element losses and derivatives of the object detection loss over runs of cells.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "kernels/loss/loss_simd.hpp"

namespace mpsgrad {

// A factor multiplies loss and derivative of its part where the part counts.
struct YOLOFunction {
  LossFunction xy, wh, confidence, classes;
  float xy_factor, wh_factor, object_factor, no_object_factor, class_factor;
  float presence, absence;  // overlaps above and below which a box holds an object, or none
  bool rescore;
  const float* anchors;  // pairs of width and height
  std::int64_t anchor_count;
};

struct YOLOLossLoops {
  // y, t: predictions and labels of `pixels` cells. Results may not be y or t; `scratch` has room
  // for one more run.
  void (*elements)(const YOLOFunction& f, const float* y, const float* t, float* losses,
                   float* slopes, float* scratch, std::int64_t pixels, std::int64_t channels);
};

MPSGRAD_LOOPS(YOLOLossLoops, yolo_loss_loops)

}  // namespace mpsgrad
