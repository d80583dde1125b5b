// How large anything may be, and what is said where there is no room for it.
#pragma once

#include <limits>
#include <memory>
#include <new>
#include <string>

#include "base/errors.hpp"
#include "base/types.hpp"

namespace mpsgrad {

// Nothing by itself is larger.
inline constexpr Index kMostBytes = Index{1} << 48;
inline constexpr const char* kBeyondMemory = " are more than any memory holds (2^48 bytes)";

// Of sizes of which there may be any number: the largest Index if the sum is larger.
inline Index add_sizes(Index a, Index b) {
  Index sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<Index>::max() : sum;
}

// MemoryError in Python.
class OutOfMemory final : public std::bad_alloc {
 public:
  template <class... Parts>
  explicit OutOfMemory(const Parts&... parts)
      : words_(std::make_shared<const std::string>(text(parts...))) {}
  const char* what() const noexcept override { return words_->c_str(); }

 private:
  std::shared_ptr<const std::string> words_;  // copies of an exception must not throw
};

}  // namespace mpsgrad
