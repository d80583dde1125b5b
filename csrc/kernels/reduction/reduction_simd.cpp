// Loops of the reductions: down the columns of many rows at once, and across the channels of a
// pixel.
#include "kernels/reduction/reduction_simd.hpp"

#include "cpu/simd/planes.hpp"
#include "cpu/simd/row_folds.hpp"
#include "cpu/simd/streaming.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// How two numbers join. A NaN stays: a comparison with the first of
// two keeps it, which is what x86's instruction for extremes does, and a choice brings the second.
// What has been joined comes first and waits for no comparison.
struct Least {
  static constexpr float kNeutral = __builtin_inff();
  template <class V>
  MPSGRAD_INLINE V operator()(V a, V b) const {
    const V less = opaque(b < a ? b : a);
    return b != b ? b : less;
  }
};
struct Largest {
  static constexpr float kNeutral = -__builtin_inff();
  template <class V>
  MPSGRAD_INLINE V operator()(V a, V b) const {
    const V more = opaque(b > a ? b : a);
    return b != b ? b : more;
  }
};
// Four rows at a time, so that what has been joined is loaded and stored a quarter as often. Of
// rows that follow each other the next four are asked for, in the order in which they lie: memory
// is fastest that way.
constexpr Index kRows = 4;

template <class Join, class Element>
MPSGRAD_INLINE void fold_columns(const Join& join, const Element* x, Index stride, Index rows,
                                 Index count, float* MPSGRAD_RESTRICT out, bool first) {
  constexpr Index kOfLine = kLine / static_cast<Index>(sizeof(Element));
  const bool asks = stride == count;
  Index r = 0;
  for (; r + kRows <= rows; r += kRows, x += kRows * stride, first = false) {
    for_blocks(count, [=](auto block, Index i) MPSGRAD_MELT {
      const auto at = [=](Index row) { return block.floats(x + row * stride + i); };
      for (Index ahead = 0; asks && ahead < kRows * kWidest; ahead += kOfLine) {
        request(x, kRows * (stride + i) + ahead);
      }
      const auto four = join(join(at(0), at(1)), join(at(2), at(3)));
      block.put(out + i, first ? four : join(block.floats(out + i), four));
    });
  }
  for (; r < rows; ++r, x += stride, first = false) {
    for_blocks(count, [=](auto block, Index i) MPSGRAD_MELT {
      const auto one = block.floats(x + i);
      block.put(out + i, first ? one : join(block.floats(out + i), one));
    });
  }
}

template <class Element>
void fold(FoldKind kind, const Element* x, Index stride, Index rows, Index count, float* out,
          bool first) {
  switch (kind) {
    case FoldKind::Min:
      return fold_columns(Least{}, x, stride, rows, count, out, first);
    case FoldKind::Max:
      return fold_columns(Largest{}, x, stride, rows, count, out, first);
    case FoldKind::Sum:
      return fold_columns(Total{}, x, stride, rows, count, out, first);
  }
}

// Rows of a few whole vectors: what has been joined stays in registers, of every fourth row in the
// same. Segments are short, so that rounding errors stay small.
constexpr int kMostInRegisters = kRegisters / 2 / kRows;  // vectors of a row
constexpr Index kSegmentRows = 256;

template <int kVecs, class Join, class Element>
MPSGRAD_INLINE void fold_in_registers(const Join& join, const Element* x, Index rows, float* out) {
  using V = Floats<kWidest>;
  const Index segments = (rows + kSegmentRows - 1) / kSegmentRows;
  for (Index segment = 0; segment < segments; ++segment) {
    const Index first = segment * rows / segments;
    const Index count = (segment + 1) * rows / segments - first;
    const auto at = [=](Index row, int v)
                        MPSGRAD_MELT { return load<V>(x + ((first + row) * kVecs + v) * kWidest); };
    V joined[kRows][kVecs];
#pragma GCC unroll 4
    for (int s = 0; s < kRows; ++s) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        joined[s][v] = at(s, v);
      }
    }
    Index row = kRows;
    for (; row + kRows <= count; row += kRows) {
#pragma GCC unroll 4
      for (int s = 0; s < kRows; ++s) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          joined[s][v] = join(joined[s][v], at(row + s, v));
        }
      }
    }
    for (; row < count; ++row) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        joined[kRows - 1][v] = join(joined[kRows - 1][v], at(row, v));
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      const V four = join(join(joined[0][v], joined[1][v]), join(joined[2][v], joined[3][v]));
      float* const to = out + v * kWidest;
      store(to, segment == 0 ? four : join(load<V>(to), four));
    }
  }
}

template <int kVecs, class Element>
MPSGRAD_INLINE bool fold_in_registers(FoldKind kind, const Element* x, Index rows, Index count,
                                      float* out) {
  if constexpr (kVecs > kMostInRegisters) {
    return false;
  } else {
    if (count != kVecs * kWidest) {
      return fold_in_registers<kVecs + 1>(kind, x, rows, count, out);
    }
    switch (kind) {
      case FoldKind::Min:
        fold_in_registers<kVecs>(Least{}, x, rows, out);
        break;
      case FoldKind::Max:
        fold_in_registers<kVecs>(Largest{}, x, rows, out);
        break;
      case FoldKind::Sum:
        fold_in_registers<kVecs>(Total{}, x, rows, out);
        break;
    }
    return true;
  }
}

template <class Element>
bool fold_narrow(FoldKind kind, const Element* x, Index rows, Index count, float* out) {
  return rows >= kRows && fold_in_registers<1>(kind, x, rows, count, out);
}

void divide(float* out, Index count, float divisor) {
  for_blocks(count, [=](auto block, Index i)
                        MPSGRAD_MELT { block.put(out + i, block.floats(out + i) / divisor); });
}

template <int kLanes, class Join, class Element, class Then>
MPSGRAD_INLINE void join_channels(const Join& join, const Element* x, Index pixels, Index channels,
                                  const Then& then) {
  fold_rows<kLanes>(pixels, channels, elements_of_rows<kLanes>(x, channels), join, then);
}

// The first channel that equals the extreme of its pixel; of NaNs the first.
template <int kLanes, class Element, class Then>
MPSGRAD_INLINE void find_extremes(const float* extremes, const Element* x, Index pixels,
                                  Index channels, const Then& then) {
  using V = Floats<kLanes>;
  V lane = {};
  if constexpr (kLanes > 1) {
    for (int k = 0; k < kLanes; ++k) {
      lane[k] = static_cast<float>(k);
    }
  }
  const auto places_of = [=](Index p) MPSGRAD_MELT {
    return [=, pixel = x + p * channels, extreme = extremes[p]](Index c) MPSGRAD_MELT {
      const V value = load<V>(pixel + c);
      const V place = lane + static_cast<float>(c);
      return ((value == extreme) | (value != value)) ? place : V{} + Least::kNeutral;
    };
  };
  fold_rows<kLanes>(pixels, channels, places_of, Least{}, then);
}

// Pixels of fewer channels than a vector has lanes are taken apart.
constexpr int kMostPlanes = 3;

template <class Element, class Value>
MPSGRAD_INLINE bool each_of_planes(const Element* x, Element* out, Index pixels, Index channels,
                                   const Value& value) {
  return with_planes<kMostPlanes>(channels, [=](auto count) MPSGRAD_MELT {
    constexpr int kChannels = count;
    for (Index p = 0; p < pixels; p += kWidest) {
      const Index some = smaller(kWidest, pixels - p);
      const auto planes = take_apart<kChannels>(x + p * kChannels, some);
      put_together(Planes<1>{{value(planes)}}, out + p, some);
    }
  });
}

template <int kChannels, class Join>
MPSGRAD_INLINE Floats<kWidest> joined_planes(const Join& join, const Planes<kChannels>& planes) {
  auto total = join(Floats<kWidest>{} + Join::kNeutral, planes.of[0]);
  for (int c = 1; c < kChannels; ++c) {
    total = join(total, planes.of[c]);
  }
  return total;
}

template <class Join, class Element>
MPSGRAD_INLINE void join_pixels(const Join& join, const Element* x, Element* out, Index pixels,
                                Index channels, float weight, float divisor) {
  const auto of_planes = [=](const auto& planes) MPSGRAD_MELT {
    return joined_planes(join, planes) * weight / divisor;
  };
  if (each_of_planes(x, out, pixels, channels, of_planes)) {
    return;
  }
  with_lanes_for(channels, [=](auto count) MPSGRAD_MELT {
    join_channels<count>(join, x, pixels, channels, [=](Index p, float joined) MPSGRAD_MELT {
      store(out + p, joined * weight / divisor);
    });
  });
}

template <class Join, class Element>
MPSGRAD_INLINE void find_pixels(const Join& join, const Element* x, Element* out, Index pixels,
                                Index channels) {
  const auto of_planes = [=]<int kChannels>(const Planes<kChannels>& planes) MPSGRAD_MELT {
    const auto extreme = joined_planes(join, planes);
    Floats<kWidest> place = {};
    for (int c = kChannels; c-- > 0;) {
      const auto& value = planes.of[c];
      const auto here = Floats<kWidest>{} + static_cast<float>(c);
      place = ((value == extreme) | (value != value)) ? here : place;
    }
    return place;
  };
  if (each_of_planes(x, out, pixels, channels, of_planes)) {
    return;
  }
  with_lanes_for(channels, [=](auto count) MPSGRAD_MELT {
    constexpr Index kTogether = 64;  // pixels that stay in the nearest cache
    float extremes[kTogether];
    for (Index first = 0; first < pixels; first += kTogether) {
      const Index some = smaller(kTogether, pixels - first);
      const Element* block = x + first * channels;
      join_channels<count>(join, block, some, channels,
                           [&](Index p, float extreme) MPSGRAD_MELT { extremes[p] = extreme; });
      find_extremes<count>(extremes, block, some, channels, [=](Index p, float place) MPSGRAD_MELT {
        store(out + first + p, place);
      });
    }
  });
}

template <class Element>
void pixels(PixelKind kind, const Element* x, Element* out, Index count, Index channels,
            float weight, float divisor) {
  switch (kind) {
    case PixelKind::Min:
      return join_pixels(Least{}, x, out, count, channels, weight, divisor);
    case PixelKind::Max:
      return join_pixels(Largest{}, x, out, count, channels, weight, divisor);
    case PixelKind::Sum:
      return join_pixels(Total{}, x, out, count, channels, weight, divisor);
    case PixelKind::ArgumentMin:
      return find_pixels(Least{}, x, out, count, channels);
    case PixelKind::ArgumentMax:
      return find_pixels(Largest{}, x, out, count, channels);
  }
}

template <int kLanes, class First, class Second>
MPSGRAD_INLINE float dot(const First* x, const Second* y, Index channels) {
  using V = Floats<kLanes>;
  return fold_row<kLanes>(
      channels, [=](Index c) { return load<V>(x + c) * load<V>(y + c); }, Total{});
}

template <class Element>
void products(const Element* x, const Element* y, Element* out, Index pixels, Index channels,
              float divisor) {
  with_lanes_for(channels, [=](auto count) MPSGRAD_MELT {
    constexpr int kLanes = count;
    using V = Floats<kLanes>;
    for (Index p = 0; p < pixels; ++p) {
      const Element* weights = y + p * channels;
      const float sum = dot<kLanes>(x + p * channels, weights, channels);
      float over = divisor;
      if (divisor == 0.0F) {
        over = fold_row<kLanes>(
            channels, [=](Index c) { return load<V>(weights + c) != 0.0F ? V{} + 1.0F : V{}; },
            Total{});
      }
      store(out + p, over == 0.0F ? 0.0F : sum / over);
    }
  });
}

// Products of kPixels pixels with kShifts pixels of the second row each, both `step` elements
// apart: those of equal sums of places read the same pixel, which is loaded once. Sums of vectors
// have the same bits whatever else is in the tile.
template <int kLanes, Index kPixels, Index kShifts>
MPSGRAD_INLINE void correlate_tile(const float* x, const float* y, Index step, Index channels,
                                   float* out, Index pixel_stride) {
  using V = Floats<kLanes>;
  V sums[kPixels * kShifts] = {};
  const auto add = [&](const auto& part) MPSGRAD_MELT {
    V of_x[kPixels];
    for (Index p = 0; p < kPixels; ++p) {
      of_x[p] = part(x + p * step);
    }
    for (Index place = 0; place < kPixels + kShifts - 1; ++place) {
      const V of_y = part(y + place * step);
      for (Index p = 0; p < kPixels; ++p) {
        if (place >= p && place - p < kShifts) {
          sums[p * kShifts + place - p] += of_x[p] * of_y;
        }
      }
    }
  };
  Index c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    add([=](const float* pixel) MPSGRAD_MELT { return load<V>(pixel + c); });
  }
  if constexpr (kLanes > 1) {
    if (c < channels) {  // the last vector reaches back over lanes that have been added
      const auto is_added = lanes_below<kLanes>(c + kLanes - channels);
      add([=](const float* pixel)
              MPSGRAD_MELT { return is_added ? V{} : load<V>(pixel + channels - kLanes); });
    }
  }
  const auto put = [=](Index i, float sum)
                       MPSGRAD_MELT { out[i / kShifts * pixel_stride + i % kShifts] = sum; };
  Index i = 0;
  if constexpr (kLanes > 1) {
    for (; i + kLanes <= kPixels * kShifts; i += kLanes) {
      float joined[kLanes];
      store(joined, join_rows<kLanes, kLanes>(sums + i, 0, Total{}));
      for (Index k = 0; k < kLanes; ++k) {
        put(i + k, joined[k]);
      }
    }
  }
  for (; i < kPixels * kShifts; ++i) {
    put(i, join_lanes<kLanes>(sums[i], Total{}));
  }
}

// Tiles of pixels a shift's step apart, so that they share pixels of the second row.
void correlate(const float* x, const float* y, float* out, Index pixels, Index channels,
               Index shifts, Index step, Index result_stride) {
  with_lanes_for(channels, [=](auto count) MPSGRAD_MELT {
    constexpr int kLanes = count;
    // Compilers fuse other products of single numbers in one tile than in another.
    constexpr Index kTile = kLanes == 1 ? 1 : kRegisters > 16 ? 4 : 3;
    const auto tiles = [=](auto together, Index p) MPSGRAD_MELT {
      constexpr Index kPixels = together;
      const auto tile = [=](auto shift_count, Index m) MPSGRAD_MELT {
        constexpr Index kShifts = shift_count;
        correlate_tile<kLanes, kPixels, kShifts>(x + p * channels, y + (p + m * step) * channels,
                                                 step * channels, channels,
                                                 out + p * result_stride + m, step * result_stride);
      };
      Index m = 0;
      for (; m + kTile <= shifts; m += kTile) {
        tile(Exactly<kTile>{}, m);
      }
      for (; m < shifts; ++m) {
        tile(Exactly<1>{}, m);
      }
    };
    for (Index first = 0; first < smaller(step, pixels); ++first) {
      Index p = first;
      for (; p + (kTile - 1) * step < pixels; p += kTile * step) {
        tiles(Exactly<kTile>{}, p);
      }
      for (; p < pixels; p += step) {
        tiles(Exactly<1>{}, p);
      }
    }
  });
}

template <class Element>
constexpr ReductionLoops<Element> kLoops{&fold<Element>, &fold_narrow<Element>, &divide,
                                         &pixels<Element>, &products<Element>};

}  // namespace

const ByElement<ReductionLoops> reduction_loops{kLoops<float>, kLoops<Half>};
const ShiftedProductLoops shifted_product_loops{&correlate};

}  // namespace mpsgrad::MPSGRAD_ISA
