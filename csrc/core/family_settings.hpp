// FamilySettings: what a kernel's properties hold beside those that every kernel has. A struct of
// its family's, by value, so that it travels into states, and back when an encode fails, without
// this layer knowing any family.
#pragma once

#include <cstddef>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace mpsgrad {

class FamilySettings {
 public:
  FamilySettings() = default;
  template <class Settings>
    requires(!std::is_same_v<Settings, FamilySettings>)
  FamilySettings(const Settings& settings) : equal_(&equal<Settings>) {
    static_assert(std::is_trivially_copyable_v<Settings>, "every encode copies them, as bytes");
    static_assert(sizeof(Settings) <= sizeof bytes_ && alignof(Settings) <= kAlignment);
    new (bytes_) Settings(settings);
  }

  template <class Settings>
  const Settings& as() const {
    if (equal_ != &equal<Settings>) {
      throw std::logic_error("these are settings of another family of kernels");
    }
    return held<Settings>(bytes_);
  }
  template <class Settings>
  Settings& as() {
    return const_cast<Settings&>(std::as_const(*this).template as<Settings>());
  }

  friend bool operator==(const FamilySettings& a, const FamilySettings& b) {
    return a.equal_ == b.equal_ && (a.equal_ == nullptr || a.equal_(a.bytes_, b.bytes_));
  }

 private:
  static constexpr std::size_t kAlignment = 8;

  template <class Settings>
  static const Settings& held(const std::byte* bytes) {
    return *std::launder(reinterpret_cast<const Settings*>(bytes));
  }
  template <class Settings>
  static bool equal(const std::byte* a, const std::byte* b) {
    return held<Settings>(a) == held<Settings>(b);
  }

  bool (*equal_)(const std::byte*, const std::byte*) = nullptr;  // tells which struct is held
  alignas(kAlignment) std::byte bytes_[128] = {};
};

}  // namespace mpsgrad
