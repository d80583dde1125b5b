// The exceptions of the project and `require`, the one way a rule is enforced. module.cpp maps each
// class to the Python exception of the same meaning: std::invalid_argument is ValueError,
// std::out_of_range IndexError, std::runtime_error RuntimeError.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace mpsgrad {

struct TypeError : std::logic_error {
  using std::logic_error::logic_error;
};
struct UnsupportedError : std::logic_error {  // a legal case that this device or build cannot run
  using std::logic_error::logic_error;
};
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct ReadCountError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct StateError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct GraphError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};
struct CommandBufferError : std::runtime_error {
  explicit CommandBufferError(const std::string& message, int error_code = 0)
      : std::runtime_error(message), code(error_code) {}
  int code;  // MTLCommandBufferError; 0 for a call that was illegal rather than work that failed
};

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

template <class Error = std::invalid_argument, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(text(parts...));
}

// Formats its parts only when the rule is broken.
template <class Error = std::invalid_argument, class... Parts>
inline void require(bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]] {
    fail<Error>(parts...);
  }
}

}  // namespace mpsgrad
