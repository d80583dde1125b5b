// What the passes over predictions and labels share on the CPU device: loads, weights, reductions
// and stores are the same for every loss, and what it makes of its elements is a LossElements.
#pragma once

#include <memory>

#include "kernels/loss/loss.hpp"
#include "kernels/loss/loss_simd.hpp"

namespace mpsgrad {

class LossElements {
 public:
  virtual ~LossElements() = default;
  // Losses of the elements of some pixels and, unless null, their derivatives by the predictions.
  // `scratch` has room for as many elements.
  virtual void compute(const float* y, const float* t, float* losses, float* slopes, float* scratch,
                       Index pixels, Index channels) const = 0;
};

LossFunction loss_function(const LossDescriptor& loss);
std::shared_ptr<const LossElements> make_yolo_elements(const YOLOLossDescriptor& loss);

}  // namespace mpsgrad
