// Tiles of sums in registers for Gram matrices and their gradients. A tile is a few scalars times a
// few vectors a step; what it reads is packed, because channels of neighbouring pixels lie a power
// of two apart in most networks, in few sets of the caches and on many pages.
#include "kernels/gram_matrix/gram_matrix_simd.hpp"

#include "cpu/simd/lanes.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

constexpr int kLanes = kWidest;
using Vec = Floats<kLanes>;
using Four = Floats<4>;

// The sums, the vectors that are multiplied and a scalar fill the registers: 12 + 3 + 1 of 16, or
// 24 + 3 + 1 (AVX-512) and 24 + 6 + 1 (NEON) of 32. Where a product is no multiply-add it takes a
// register too: 8 + 2 + 1 + 1. Rows divide a vector, so that a tile's scalars lie in one panel.
constexpr int kRows = kLanes >= 16 ? 8 : 4;
constexpr int kVecs = kLanes >= 8 ? 3 : kRegisters == 32 ? 6 : 2;
// A tile of one vector has more rows, if a vector has them: as many sums as hide the latency.
constexpr int rows_of(int vecs) { return vecs == 1 ? kLanes : kRows; }

// A panel of AVX-512 is twice as wide.
constexpr Index kDepth = kLanes >= 16 ? 96 : 128;
static_assert(kDepth <= kGramDepth && kGramPadding % kLanes == 0);

// A block's vectors in panels of about the same width.
struct Panels {
  Index vecs, panels;

  explicit Panels(Index channels)
      : vecs(ceil_div(channels, kLanes)), panels(ceil_div(vecs, kVecs)) {}
  Index first(Index panel) const { return panel * vecs / panels; }
  Index width(Index panel) const { return (first(panel + 1) - first(panel)) * kLanes; }
  Index place(Index panel) const { return first(panel) * kLanes * kGramDepth; }
};

struct TileArguments {
  const float* rows;     // the first row's first scalar
  Index row_step;        // floats to the next summand, or to the next row, see tile()
  const float* columns;  // the first vector's first summand
  Index column_step;     // floats to the next summand
  Index summands;
  bool adds;
  float* out;
  Index out_step;  // floats from one row of the tile to the next
  const std::byte* ahead;
  Index ahead_step;
};

// out[r][v] = or += sum of rows[r] * columns[v]. kPacked: the scalars of a summand lie side by
// side, and the tile asks for a line at each step. Else those of a row do.
template <int kHeight, int kWidth, bool kPacked>
void tile(const TileArguments& t) {
  Vec sums[kHeight][kWidth];
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kWidth; ++v) {
      sums[r][v] = Vec{};
    }
  }
  const Index to_row = kPacked ? 1 : t.row_step;
  const Index to_summand = kPacked ? t.row_step : 1;
  const Index column_step = t.column_step;
  const float* rows = t.rows;
  const float* columns = t.columns;
  const std::byte* ahead = t.ahead;
#pragma GCC unroll 2
  for (Index i = 0; i < t.summands; ++i) {
    if constexpr (kPacked) {
      request_later(ahead, 0);
      ahead += t.ahead_step;
    }
    Vec x[kWidth];
#pragma GCC unroll 8
    for (int v = 0; v < kWidth; ++v) {
      x[v] = load<Vec>(columns + v * kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r) {
      const float scalar = rows[r * to_row];
#pragma GCC unroll 8
      for (int v = 0; v < kWidth; ++v) {
        sums[r][v] += x[v] * scalar;
      }
    }
    rows += to_summand;
    columns += column_step;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r) {
    float* out = t.out + r * t.out_step;
#pragma GCC unroll 8
    for (int v = 0; v < kWidth; ++v) {
      store(out + v * kLanes, t.adds ? load<Vec>(out + v * kLanes) + sums[r][v] : sums[r][v]);
    }
  }
}

using Tile = void (*)(const TileArguments&);

struct TileTable {
  Tile packed[kVecs + 1];  // of rows_of(vecs) rows
  Tile strided[kVecs + 1][kRows + 1];
};

template <int kWidth, int kHeight>
constexpr void fill_strided(TileTable& table) {
  if constexpr (kHeight >= 1) {
    table.strided[kWidth][kHeight] = tile<kHeight, kWidth, false>;
    fill_strided<kWidth, kHeight - 1>(table);
  }
}
template <int kWidth>
constexpr void fill_tiles(TileTable& table) {
  if constexpr (kWidth >= 1) {
    table.packed[kWidth] = tile<rows_of(kWidth), kWidth, true>;
    fill_strided<kWidth, kRows>(table);
    fill_tiles<kWidth - 1>(table);
  }
}
constexpr TileTable make_tiles() {
  TileTable table{};
  fill_tiles<kVecs>(table);
  return table;
}
constexpr TileTable kTiles = make_tiles();

// ---- packing

// Up to whole vectors; zeros fill the last one.
template <class Element>
MPSGRAD_INLINE void copy_vectors(const Element* from, Index channels, float* out) {
  Index c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    store(out + c, load<Vec>(from + c));
  }
  if (c < channels) {
    float last[kLanes] = {};
    for_blocks(channels - c,
               [&](auto block, Index i) { block.put(last + i, block.floats(from + c + i)); });
    store(out + c, load<Vec>(last));
  }
}

// The same for all pixels of a panel of kWidth whole vectors, or fewer: `vecs`.
template <int kWidth, class Element>
MPSGRAD_INLINE void copy_panel(Index vecs, const Element* from, Index step, Index pixels,
                               float* out) {
  if constexpr (kWidth >= 1) {
    if (vecs != kWidth) {
      return copy_panel<kWidth - 1>(vecs, from, step, pixels, out);
    }
    for (Index i = 0; i < pixels; ++i) {
#pragma GCC unroll 8
      for (int v = 0; v < kWidth; ++v) {
        store(out + v * kLanes, load<Vec>(from + v * kLanes));
      }
      from += step;
      out += kWidth * kLanes;
    }
  }
}

template <class Element>
void pack(const Element* from, Index step, Index pixels, Index channels, Index first,
          float* panels) {
  const Panels cut(channels);
  for (Index panel = 0; panel < cut.panels; ++panel) {
    const Index width = cut.width(panel);
    const Index c = cut.first(panel) * kLanes;
    float* out = panels + cut.place(panel) + first * width;
    const Index some = smaller(width, channels - c);
    if (some == width) {
      copy_panel<kVecs>(width / kLanes, from + c, step, pixels, out);
      continue;
    }
    for (Index i = 0; i < pixels; ++i) {
      copy_vectors(from + i * step + c, some, out + i * width);
    }
  }
}

template <class Element>
void copy(const Element* from, Index step, Index pixels, Index channels, float* out) {
  constexpr Index kPixelsAhead = 8;
  constexpr auto kLineElements = Index{64} / static_cast<Index>(sizeof(Element));
  const Index out_step = gram_padded(channels);
  for (Index i = 0; i < pixels; ++i) {
    for (Index c = 0; c < channels; c += kLineElements) {
      request(from, (i + kPixelsAhead) * step + c);
    }
    copy_vectors(from + i * step, channels, out + i * out_step);
  }
}

// ---- forward

// Hands out the lines ahead: one of every pixel to each tile.
class LinesAhead {
 public:
  explicit LinesAhead(const GramAhead* ahead) : left_{ahead[0], ahead[1]} {}

  void give(TileArguments& t) {
    constexpr Index kLine = 64;
    for (GramAhead& next : left_) {
      if (next.bytes > 0) {
        t.ahead = next.first;
        t.ahead_step = next.step;
        next.first += kLine;
        next.bytes -= kLine;
        return;
      }
    }
    t.ahead = reinterpret_cast<const std::byte*>(t.rows);
    t.ahead_step = 0;
  }

 private:
  GramAhead left_[2];
};

void add_products(const float* rows, Index row_channels, const float* columns,
                  Index column_channels, Index summands, bool same, bool adds, float* sums,
                  const GramAhead* ahead) {
  const Panels down(row_channels);
  const Panels across(column_channels);
  const Index sum_step = gram_padded(column_channels);
  LinesAhead lines(ahead);
  for (Index j = 0; j < across.panels; ++j) {
    for (Index i = 0; i < (same ? j + 1 : down.panels); ++i) {
      for (Index v = down.first(i); v < down.first(i + 1); ++v) {
        // Vectors that lie before these rows are known from others by symmetry.
        const Index skipped = same && i == j ? v - down.first(i) : 0;
        const auto width = across.first(j + 1) - across.first(j) - skipped;
        const Index height = rows_of(static_cast<int>(width));
        for (Index r = 0; r < kLanes; r += height) {
          const Index row = (v - down.first(i)) * kLanes + r;  // of the panel
          const Index column = (across.first(j) + skipped) * kLanes;
          TileArguments t{};
          t.rows = rows + down.place(i) + row;
          t.row_step = down.width(i);
          t.columns = columns + across.place(j) + skipped * kLanes;
          t.column_step = across.width(j);
          t.summands = summands;
          t.adds = adds;
          t.out = sums + (v * kLanes + r) * sum_step + column;
          t.out_step = sum_step;
          lines.give(t);
          kTiles.packed[width](t);
        }
      }
    }
  }
}

void add(float* sums, const float* more, Index count) {
  MPSGRAD_VECTOR_LOOP
  for (Index i = 0; i < count; ++i) {
    sums[i] += more[i];
  }
}

void scale(float* sums, Index rows, Index step, float factor) {
  MPSGRAD_VECTOR_LOOP
  for (Index i = 0; i < rows * step; ++i) {
    sums[i] *= factor;
  }
}

struct Square {
  Four rows[4];

  MPSGRAD_INLINE Square(const float* from, Index step) {
    for (int i = 0; i < 4; ++i) {
      rows[i] = load<Four>(from + i * step);
    }
  }
  MPSGRAD_INLINE void transpose() {
    const Four a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
    const Four b = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    const Four c = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
    const Four d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    rows[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    rows[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    rows[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    rows[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
  }
  MPSGRAD_INLINE void put(float* to, Index step) const {
    for (int i = 0; i < 4; ++i) {
      store(to + i * step, rows[i]);
    }
  }
};

// Line by line of both: rows that lie a power of two apart share few sets of a cache.
void transpose(const float* in, Index step, Index rows, Index columns, float* out, Index out_step) {
  constexpr Index kLineFloats = 16;
  const auto for_lines = [](Index begin, Index end, const auto& body) MPSGRAD_MELT {
    for (Index i = begin; i < end; i += kLineFloats) {
      body(i, smaller(i + kLineFloats, end));
    }
  };
  for_lines(0, rows, [&](Index row, Index row_end) MPSGRAD_MELT {
    for_lines(0, columns, [&](Index column, Index column_end) MPSGRAD_MELT {
      for (Index r = row; r < row_end; r += 4) {
        for (Index c = column; c < column_end; c += 4) {
          Square square(in + r * step + c, step);
          square.transpose();
          square.put(out + c * out_step + r, out_step);
        }
      }
    });
  });
}

void mirror(float* sums, Index step, Index channels) {
  for (Index r = 0; r < channels; r += 4) {
    for (Index c = r + 4; c < channels; c += 4) {
      Square square(sums + r * step + c, step);
      square.transpose();
      square.put(sums + c * step + r, step);
    }
  }
}

// ---- gradient

void fold(const float* by_channel, const float* by_summand, Index summands, Index channels,
          float alpha, float* panels) {
  const Panels cut(channels);
  const Index channel_step = gram_padded(summands);
  const Index summand_step = gram_padded(channels);
  for (Index panel = 0; panel < cut.panels; ++panel) {
    const Index width = cut.width(panel);
    const Index first = cut.first(panel) * kLanes;
    float* const out = panels + cut.place(panel);
    for (Index k = 0; k < width; k += 4) {
      for (Index c = 0; c < summands; c += 4) {
        Square square(by_channel + (first + k) * channel_step + c, channel_step);
        square.transpose();
        // Beyond the last summand are rows that nobody reads.
        for (int i = 0; i < 4; ++i) {
          const Four direct = load<Four>(by_summand + (c + i) * summand_step + first + k);
          store(out + (c + i) * width + k, (square.rows[i] + direct) * alpha);
        }
      }
    }
  }
}

void multiply(const float* x, Index step, Index pixels, Index summands, const float* panels,
              Index channels, bool adds, float* out, Index out_step) {
  const Panels cut(channels);
  // Tiles of about the same height.
  const Index tiles = ceil_div(pixels, kRows);
  for (Index panel = 0; panel < cut.panels; ++panel) {
    const Index width = cut.width(panel);
    for (Index i = 0; i < tiles; ++i) {
      const Index pixel = i * pixels / tiles;
      TileArguments t{};
      t.rows = x + pixel * step;
      t.row_step = step;
      t.columns = panels + cut.place(panel);
      t.column_step = width;
      t.summands = summands;
      t.adds = adds;
      t.out = out + pixel * out_step + cut.first(panel) * kLanes;
      t.out_step = out_step;
      kTiles.strided[width / kLanes][(i + 1) * pixels / tiles - pixel](t);
    }
  }
}

template <class Element>
constexpr GramPacking<Element> kPacking{&pack<Element>, &copy<Element>};

}  // namespace

const GramLoops gram_loops{{kPacking<float>, kPacking<Half>},
                           kDepth,
                           &add_products,
                           &add,
                           &scale,
                           &transpose,
                           &mirror,
                           &fold,
                           &multiply};

}  // namespace mpsgrad::MPSGRAD_ISA
