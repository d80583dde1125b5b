// How large anything may be, and what is said where there is no room for it.
#pragma once

#include <memory>
#include <new>
#include <string>

#include "base/errors.hpp"
#include "base/types.hpp"

namespace mpsgrad {

// Sizes in bytes below this do not overflow when they are added up.
inline constexpr Index kMostBytes = Index{1} << 48;
inline constexpr const char* kBeyondMemory = " are more than any memory holds (2^48 bytes)";

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
