// Puts a kernel's properties back unless the encode that changed them succeeded.
#pragma once

#include <utility>

namespace mpsgrad {

template <class Properties>
class PropertyGuard {
 public:
  explicit PropertyGuard(Properties& properties) : properties_(properties), saved_(properties) {}
  ~PropertyGuard() {
    if (armed_) {
      properties_ = std::move(saved_);
    }
  }
  PropertyGuard(const PropertyGuard&) = delete;
  PropertyGuard& operator=(const PropertyGuard&) = delete;
  void keep() { armed_ = false; }

 private:
  Properties& properties_;
  Properties saved_;
  bool armed_ = true;
};

}  // namespace mpsgrad
