// Where a loop puts its results.
#pragma once

namespace mpsgrad {

// Streamed results go past the caches: a store into a cache first reads the line that it
// overwrites, in vain if the line leaves the cache before anybody needs it.
template <class Element>
struct Results {
  Element* at = nullptr;
  bool streamed = false;
  // Of those that are not streamed: whether loops prefetch what they read all the same.
  bool asks = false;
};

}  // namespace mpsgrad
