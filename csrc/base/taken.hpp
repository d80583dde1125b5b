// Elements taken out of a container, for whoever has to drop them where no lock is held: the last
// reference to some work may end Python objects, which wait for the interpreter and run its code.
#pragma once

#include <utility>
#include <vector>

namespace mpsgrad {

template <class T, class IsOver>
std::vector<T> take_out(std::vector<T>& all, const IsOver& is_over) {
  std::vector<T> taken;
  auto kept = all.begin();
  for (auto each = all.begin(); each != all.end(); ++each) {
    if (is_over(*each)) {
      taken.push_back(std::move(*each));
    } else {
      if (kept != each) {
        *kept = std::move(*each);
      }
      ++kept;
    }
  }
  all.erase(kept, all.end());
  return taken;
}

}  // namespace mpsgrad
