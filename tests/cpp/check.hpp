// The little that the C++ test programs share: counting failures, naming them, and a closing
// verdict.
#pragma once

#include <cstdio>
#include <string>

namespace mpsgrad::test {

class Checks {
 public:
  // Prints `words` for the first failures of a program, counts all of them.
  void expect(bool holds, const std::string& words) {
    ++checked_;
    if (!holds && ++failed_ <= kPrinted) {
      std::printf("FAILED: %s\n", words.c_str());
    }
  }

  // The exit code of the program; a program that checked nothing has failed.
  int verdict(const char* program) const {
    std::printf("%s: %ld checks, %ld failed\n", program, checked_, failed_);
    return failed_ == 0 && checked_ > 0 ? 0 : 1;
  }

 private:
  static constexpr long kPrinted = 20;
  long checked_ = 0;
  long failed_ = 0;
};

}  // namespace mpsgrad::test
