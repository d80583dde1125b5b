// The thread pool: every chunk runs once, whatever their count and however long they take, also
// when one of them throws.
#include "cpu/threads.hpp"

#include <atomic>
#include <chrono>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"

namespace mpsgrad::test {
namespace {

using cpu::parallel_for;
using cpu::set_thread_count;
using Microseconds = std::chrono::microseconds;

void spend(Microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// What chunks of a job may be like: all short, all long, or any.
enum class Kind { Short, Long, Mixed };

std::vector<Microseconds> times_of(Kind kind, Index count, std::mt19937& random) {
  std::vector<Microseconds> times(static_cast<std::size_t>(count));
  for (Microseconds& time : times) {
    const bool is_long = kind == Kind::Long || (kind == Kind::Mixed && random() % 8 == 0);
    time = Microseconds(is_long ? 5 + static_cast<int>(random() % 40) : 0);
  }
  return times;
}

// A chunk for each of the times; throwing: one of them, or -1.
void run(Checks& checks, int threads, const std::vector<Microseconds>& times, Index throwing) {
  const auto count = static_cast<Index>(times.size());
  const std::string words = std::to_string(threads) + " threads, " + std::to_string(count) +
                            " chunks, " + std::to_string(throwing) + " throws: ";
  set_thread_count(threads);
  // Room behind: a chunk that does not exist must show, not crash.
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count) + 64);
  bool thrown = false;
  try {
    parallel_for(count, [&](Index i) {
      ++runs[static_cast<std::size_t>(i)];
      if (i < count) {
        spend(times[static_cast<std::size_t>(i)]);
      }
      if (i == throwing) {
        throw std::runtime_error("a chunk");
      }
    });
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  checks.expect(thrown == (throwing >= 0), words + "its exception");
  const bool stops = threads == 1 || count == 1;  // alone, a job ends with its exception
  bool once = true;
  for (Index i = 0; i < static_cast<Index>(runs.size()); ++i) {
    const bool runs_at_all = i < count && (!thrown || !stops || i <= throwing);
    once = once && runs[static_cast<std::size_t>(i)] == (runs_at_all ? 1 : 0);
  }
  checks.expect(once, words + "each chunk once");
}

}  // namespace
}  // namespace mpsgrad::test

int main() {
  using namespace mpsgrad::test;
  Checks checks;
  std::mt19937 random(7);
  for (const int threads : {1, 2, 3, 4}) {
    for (const mpsgrad::Index count : {1, 2, 3, 7, 13, 16, 17, 50, 200, 1001}) {
      for (const Kind kind : {Kind::Short, Kind::Long, Kind::Mixed}) {
        for (int repeat = 0; repeat < 10; ++repeat) {
          const auto times = times_of(kind, kind == Kind::Long ? count % 64 : count, random);
          run(checks, threads, times, -1);
          if (repeat == 0) {
            run(checks, threads, times, static_cast<mpsgrad::Index>(random() % times.size()));
          }
        }
      }
    }
  }
  return checks.verdict("threads_test");
}
