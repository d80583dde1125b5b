// Times the loops of simd/peaks.hpp.
#include "cpu/peaks.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>

#include "base/errors.hpp"
#include "cpu/memory.hpp"
#include "cpu/simd/peaks.hpp"

namespace mpsgrad::cpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_seconds(const char* name, double seconds) {
  require(std::isfinite(seconds) && seconds > 0.0, name, ": seconds is ", seconds,
          ", expected a positive number");
}

// Memory as images have it.
std::shared_ptr<Block> new_floats(std::size_t n) {
  auto block = MemoryPool::instance().acquire(n * sizeof(float));
  std::fill_n(reinterpret_cast<float*>(block->data()), n, 1.0F);  // so that every page is there
  return block;
}

std::size_t floats_of(const char* name, std::size_t bytes, double seconds) {
  check_seconds(name, seconds);
  const std::size_t n = bytes / sizeof(float);
  require(n > 0, name, ": bytes is ", bytes, ", expected at least ", sizeof(float));
  return n;
}

// Bytes a second that pass(), which goes over n floats, goes over in its best run. Small arrays get
// several passes a run, because the clock takes time too.
template <class Pass>
double best_rate(std::size_t n, double seconds, const Pass& pass) {
  const std::size_t repeats = std::max<std::size_t>(1, (1U << 20U) / n);
  double best = 0.0;
  const Clock::time_point start = Clock::now();
  for (int runs = 0; runs < 3 || seconds_since(start) < seconds; ++runs) {
    const Clock::time_point run = Clock::now();
    for (std::size_t i = 0; i < repeats; ++i) {
      pass();
    }
    const auto bytes = static_cast<double>(repeats * n * sizeof(float));
    best = std::max(best, bytes / seconds_since(run));
  }
  return best;
}

}  // namespace

double fma_peak(double seconds) {
  check_seconds("fma_peak", seconds);
  const PeakLoops& loops = peak_loops();
  constexpr std::int64_t kSteps = 100'000;
  float sink = 1.0F;
  double best = 0.0;
  const Clock::time_point start = Clock::now();
  do {
    const Clock::time_point run = Clock::now();
    const std::int64_t operations = loops.multiply_add(kSteps, &sink);
    best = std::max(best, static_cast<double>(operations) / seconds_since(run));
    sink = sink > 0.0F ? 1.0F : 2.0F;  // depends on the result, which so cannot be left out
  } while (seconds_since(start) < seconds);
  return best;
}

double copy_bandwidth(std::size_t bytes, bool streaming, double seconds) {
  const std::size_t n = floats_of("copy_bandwidth", bytes, seconds);
  const auto copy = streaming ? peak_loops().copy_streaming : peak_loops().copy;
  const std::shared_ptr<Block> blocks[] = {new_floats(n), new_floats(n)};
  const auto* from = reinterpret_cast<const float*>(blocks[0]->data());
  auto* to = reinterpret_cast<float*>(blocks[1]->data());
  return 2.0 * best_rate(n, seconds, [&] { copy(from, to, static_cast<std::int64_t>(n)); });
}

double read_bandwidth(std::size_t bytes, double seconds) {
  const std::size_t n = floats_of("read_bandwidth", bytes, seconds);
  const auto read = peak_loops().read;
  const std::shared_ptr<Block> block = new_floats(n);
  const auto* from = reinterpret_cast<const float*>(block->data());
  volatile float sink = 0.0F;  // the sum cannot be left out
  return best_rate(n, seconds, [&] { sink = read(from, static_cast<std::int64_t>(n)); });
}

}  // namespace mpsgrad::cpu
