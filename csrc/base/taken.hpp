// Elements taken out of a container, for whoever has to drop them where no lock is held: the last
// reference to some work may end Python objects, which wait for the interpreter and run its code.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

namespace mpsgrad {

template <class T, class IsOver>
std::vector<T> take_out(std::vector<T>& all, const IsOver& is_over) {
  if (std::none_of(all.begin(), all.end(), is_over)) {
    return {};
  }
  const auto kept = std::stable_partition(all.begin(), all.end(),
                                          [&](const T& element) { return !is_over(element); });
  std::vector<T> taken(std::make_move_iterator(kept), std::make_move_iterator(all.end()));
  all.erase(kept, all.end());
  return taken;
}

}  // namespace mpsgrad
