// float16 as images store it, and tables of loops that take it as it lies.
#pragma once

#include <cstdint>

namespace mpsgrad {

struct Half {
  std::uint16_t bits;
};

// The same loops over float32, and over float16 that they convert on the way: exactly when it is
// read, to the nearest even number when it is written.
template <template <class Element> class Loops>
struct ByElement {
  Loops<float> floats;
  Loops<Half> halves;

  const Loops<float>& of(const float* /*element*/) const { return floats; }
  const Loops<Half>& of(const Half* /*element*/) const { return halves; }
};

}  // namespace mpsgrad
