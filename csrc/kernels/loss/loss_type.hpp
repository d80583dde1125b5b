// The losses. Only <cstdint> here: loops of *_simd.cpp read it.
#pragma once

#include <cstdint>

namespace mpsgrad {

enum class LossType : std::uint32_t {
  MeanAbsoluteError = 0,
  MeanSquaredError = 1,
  SoftMaxCrossEntropy = 2,
  SigmoidCrossEntropy = 3,
  CategoricalCrossEntropy = 4,
  Hinge = 5,
  Huber = 6,
  CosineDistance = 7,
  Log = 8,
  KullbackLeiblerDivergence = 9
};

}  // namespace mpsgrad
