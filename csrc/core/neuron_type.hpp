// The activations. Only <cstdint> here: loops of *_simd.cpp read it.
#pragma once

#include <cstdint>

namespace mpsgrad {

enum class NeuronType : std::int32_t {
  None = 0,
  ReLU,
  Linear,
  Sigmoid,
  HardSigmoid,
  TanH,
  Absolute,
  SoftPlus,
  SoftSign,
  ELU,
  PReLU,
  ReLUN,
  Power,
  Exponential,
  Logarithm,
  GeLU
};

}  // namespace mpsgrad
