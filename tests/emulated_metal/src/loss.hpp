// Element losses, their derivatives, and reductions.
#pragma once
#include "internal.hpp"

namespace emulated_metal {

struct LossFunction {
  MPSCNNLossType type = MPSCNNLossTypeMeanAbsoluteError;
  MPSCNNReductionType reduction = MPSCNNReductionTypeNone;
  bool across_batch = false;
  float weight = 1, smoothing = 0, epsilon = 1e-7F, delta = 1;
  NSUInteger classes = 1;

  void fields(Fields& f);
  // Before weights. `weights` may be empty; they only matter to the smoothing of nothing.
  void evaluate(const Tensor& y, const Tensor& labels, Tensor* loss, Tensor* by_prediction,
                Tensor* by_label) const;
  float weight_at(const Tensor* weights, long y, long x, long k) const {
    return weight * (weights == nullptr ? 1.0F : weights->at(y, x, k));
  }
};

LossFunction loss_function(MPSCNNLossDescriptor* descriptor, const Where& where);

// What a reduction divides by, over the images of a batch.
struct Reduced {
  double sum = 0;       // of weighted losses
  double elements = 0;  // that a mean divides by
  double non_zero = 0;  // elements with a weight other than 0
  double divisor(MPSCNNReductionType reduction) const {
    if (reduction == MPSCNNReductionTypeMean) return elements;
    if (reduction == MPSCNNReductionTypeSumByNonZeroWeights) return non_zero;
    return 1;
  }
  float value(MPSCNNReductionType reduction) const {
    const double by = divisor(reduction);
    return by == 0 ? 0.0F : static_cast<float>(sum / by);
  }
};

}  // namespace emulated_metal
