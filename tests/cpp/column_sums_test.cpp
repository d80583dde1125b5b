// Checks that sums over columns are the same bits in vectors of any width and blocks of any number
// of columns: which a processor is given must not show. And that strips add row after row, as bands
// of long runs do.
// MPSGRAD_CPU says which instruction set is checked.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "column_sums_loops.hpp"

namespace mpsgrad::test {
namespace {

using Index = std::int64_t;

struct Sums {
  std::vector<double> of_values, of_squares;

  explicit Sums(Index tile)
      : of_values(static_cast<std::size_t>(tile), 0.25),
        of_squares(static_cast<std::size_t>(tile), 0.0) {}
};

// Of rows of more places, on any processor, and runs of more values bands are made.
constexpr Index kLongRow = 2048;
constexpr Index kLongRun = 65536;

// Place by place: row after row or, `halved`, two halves of the whole rows side by side and then
// what is left. Products of two floats are exact.
Sums expected_sums(const std::vector<float>& x, Index tile, bool halved) {
  const auto count = static_cast<Index>(x.size());
  Sums sums(tile);
  const Index apart = halved ? count / tile / 2 * tile : 0;
  for (Index j = 0; j < tile; ++j) {
    const auto add = [&](Index i) {
      const auto value = static_cast<double>(x[static_cast<std::size_t>(i)]);
      sums.of_values[static_cast<std::size_t>(j)] += value;
      sums.of_squares[static_cast<std::size_t>(j)] += value * value;
    };
    for (Index row = 0; row < apart; row += tile) {
      add(row + j);
      add(row + apart + j);
    }
    for (Index row = 2 * apart; row + j < count; row += tile) {
      add(row + j);
    }
  }
  return sums;
}

bool same(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double one, double other) {
    return (std::isnan(one) && std::isnan(other)) ||
           std::bit_cast<std::uint64_t>(one) == std::bit_cast<std::uint64_t>(other);
  });
}

int run() {
  const Isa isa = selected_isa();
  std::printf("selected: %s\n", isa_name(isa));
  Checks checks;
  std::mt19937 random(29);
  std::normal_distribution<float> normal;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float odd[] = {-0.0F, 1e-42F, kInfinity, std::nanf(""), 3e38F, -kInfinity};
  for (const Index tile : {1, 3, 7, 8, 15, 16, 17, 31, 33, 64, 511, 513, 700, 2051}) {
    for (const Index rows : {1, 2, 5, 8, 33, 40}) {
      for (const bool special : {false, true}) {
        std::vector<float> x(static_cast<std::size_t>(tile * rows - (tile > 1 ? 1 : 0)));
        for (float& value : x) {
          value = normal(random);
        }
        for (std::size_t i = 0; special && i < x.size(); i += 11) {
          x[i] = odd[i % std::size(odd)];
        }
        const Sums halved = expected_sums(x, tile, true);
        const Sums in_order = expected_sums(x, tile, false);
        const auto check = [&](const char* width, ColumnSumsLoops::Add add, const Sums& wanted) {
          Sums sums(tile);
          add(x.data(), static_cast<Index>(x.size()), tile, sums.of_values.data(),
              sums.of_squares.data());
          const std::string words = std::string(isa_name(isa)) + ", " + width + ": " +
                                    std::to_string(rows) + " rows of " + std::to_string(tile);
          checks.expect(same(sums.of_values, wanted.of_values), words + ", values");
          checks.expect(same(sums.of_squares, wanted.of_squares), words + ", squares");
        };
        check("whole vectors", column_sums_loops().whole_vectors, halved);
        check("half vectors", column_sums_loops().half_vectors, halved);
        const bool in_bands = tile > kLongRow && static_cast<Index>(x.size()) > kLongRun;
        check("as chosen", column_sums_loops().chosen, in_bands ? in_order : halved);
        check("strips", column_sums_loops().strips, in_order);
      }
    }
  }
  return checks.verdict("column_sums_test");
}

}  // namespace
}  // namespace mpsgrad::test

int main() {
  try {
    return mpsgrad::test::run();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
}
