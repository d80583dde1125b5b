// Keeps the sink that module.cpp installs.
#include "base/warnings.hpp"

#include <atomic>

namespace mpsgrad {
namespace {
std::atomic<WarningSink> current_sink{nullptr};
}  // namespace

void set_warning_sink(WarningSink sink) { current_sink.store(sink); }

void warn(WarningKind kind, const std::string& message) {
  if (const WarningSink sink = current_sink.load()) {
    sink(kind, message);
  }
}

}  // namespace mpsgrad
