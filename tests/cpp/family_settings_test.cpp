// Checks that settings which travel with a kernel's properties compare as the struct that is held
// does, are copies, and are never taken for another family's.
#include "core/family_settings.hpp"

#include <limits>

#include "check.hpp"

namespace mpsgrad::test {
namespace {

struct Numbers {
  float a = 1.0F;
  char small = 0;
  double b = 0.0;
  bool operator==(const Numbers&) const = default;
};

struct SameShape {
  float a = 1.0F;
  char small = 0;
  double b = 0.0;
  bool operator==(const SameShape&) const = default;
};

bool refuses(const FamilySettings& settings) {
  try {
    (void)settings.as<SameShape>();
  } catch (const std::logic_error&) {
    return true;
  }
  return false;
}

int run() {
  Checks checks;
  const FamilySettings none;
  checks.expect(none == FamilySettings(), "nothing equals nothing");
  checks.expect(refuses(none), "nothing is no settings");

  FamilySettings settings = Numbers{};
  checks.expect(settings != none, "settings differ from none");
  checks.expect(refuses(settings), "another family's struct is refused");
  checks.expect(settings != FamilySettings(SameShape{}), "equal numbers of another family differ");

  const FamilySettings before = settings;
  settings.as<Numbers>().b = 2.0;
  checks.expect(settings.as<Numbers>() == Numbers{1.0F, 0, 2.0}, "what was set is held");
  checks.expect(before.as<Numbers>().b == 0.0 && before != settings, "a copy stays as it was");
  settings = before;
  checks.expect(before == settings, "and puts it back");

  settings.as<Numbers>().a = -0.0F;
  FamilySettings positive = Numbers{0.0F};
  checks.expect(settings == positive, "as numbers, not as bytes: -0 is 0");
  positive.as<Numbers>().a = std::numeric_limits<float>::quiet_NaN();
  checks.expect(positive != FamilySettings(positive), "and a NaN differs from itself");
  return checks.verdict("family_settings_test");
}

}  // namespace
}  // namespace mpsgrad::test

int main() { return mpsgrad::test::run(); }
