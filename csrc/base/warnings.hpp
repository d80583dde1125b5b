// Warnings out of C++ code. The Python module installs the sink; without one (C++ tests) they go
// nowhere.
#pragma once

#include <string>

namespace mpsgrad {

enum class WarningKind { Runtime, Resource };

using WarningSink = void (*)(WarningKind, const std::string&);

void set_warning_sink(WarningSink sink);
void warn(WarningKind kind, const std::string& message);

}  // namespace mpsgrad
