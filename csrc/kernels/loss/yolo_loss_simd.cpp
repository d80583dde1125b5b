// Loops over the boxes that the cells of a grid predict. Few cells hold an object, and of a box
// that holds none only the confidence counts: boxes with an object are gathered, everything else is
// 0.
#include "kernels/loss/yolo_loss_simd.hpp"

#include "cpu/simd/simd.hpp"
#include "cpu/simd/vector_math.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

constexpr Index kX = 0, kY = 1, kWidth = 2, kHeight = 3, kConfidence = 4, kClasses = 5;
constexpr Index kBoxes = 64;  // at a time

// Intersection over union of two boxes with centres at `x` and `y`.
MPSGRAD_INLINE float overlap(float x0, float y0, float w0, float h0, float x1, float y1, float w1,
                             float h1) {
  const auto side = [](float c0, float s0, float c1, float s1) MPSGRAD_MELT {
    const float end0 = c0 + 0.5F * s0;
    const float end1 = c1 + 0.5F * s1;
    const float start0 = c0 - 0.5F * s0;
    const float start1 = c1 - 0.5F * s1;
    const float shared = (end0 < end1 ? end0 : end1) - (start0 > start1 ? start0 : start1);
    return shared > 0.0F ? shared : 0.0F;
  };
  const float shared = side(x0, w0, x1, w1) * side(y0, h0, y1, h1);
  const float whole = w0 * h0 + w1 * h1 - shared;
  return shared > 0.0F ? shared / whole : 0.0F;
}

// The anchor whose size fits the label best; `labels` are those of one cell.
Index best_anchor(const YOLOFunction& f, const float* labels, Index stride) {
  Index best = 0;
  float best_overlap = -1.0F;
  for (Index a = 0; a < f.anchor_count; ++a) {
    const float* q = labels + a * stride;
    const float shared = overlap(0.0F, 0.0F, f.anchors[2 * a], f.anchors[2 * a + 1], 0.0F, 0.0F,
                                 q[kWidth], q[kHeight]);
    if (shared > best_overlap) {
      best_overlap = shared;
      best = a;
    }
  }
  return best;
}

// Boxes whose labels hold an object.
struct Objects {
  Index count = 0;
  Index box[kBoxes];
  Index anchor[kBoxes];
  bool best[kBoxes];
  float overlaps[kBoxes];
};

// Finds the objects among some boxes, of which `first` is the first.
void find_objects(const YOLOFunction& f, const float* t, Index first, Index count, Index stride,
                  Objects& objects) {
  Index known_cell = -1;
  Index best = 0;
  for (Index b = first; b < first + count; ++b) {
    if (t[b * stride + kConfidence] > 0.0F) {
      const Index cell = b / f.anchor_count;
      const Index anchor = b - cell * f.anchor_count;
      if (cell != known_cell) {
        known_cell = cell;
        best = best_anchor(f, t + cell * f.anchor_count * stride, stride);
      }
      objects.box[objects.count] = b;
      objects.anchor[objects.count] = anchor;
      objects.best[objects.count] = anchor == best;
      ++objects.count;
    }
  }
}

// How far the predicted boxes cover the true ones.
void compute_overlaps(const YOLOFunction& f, const float* y, const float* t, Index stride,
                      Objects& objects) {
  float p[4][kBoxes];
  float q[4][kBoxes];
  float anchor[2][kBoxes];
  for (Index i = 0; i < objects.count; ++i) {
    for (Index k = 0; k < 4; ++k) {
      p[k][i] = y[objects.box[i] * stride + k];
      q[k][i] = t[objects.box[i] * stride + k];
    }
    anchor[0][i] = f.anchors[2 * objects.anchor[i]];
    anchor[1][i] = f.anchors[2 * objects.anchor[i] + 1];
  }
  for (Index i = 0; i < objects.count; ++i) {
    objects.overlaps[i] =
        overlap(sigmoid(p[kX][i]), sigmoid(p[kY][i]), anchor[0][i] * exp(p[kWidth][i]),
                anchor[1][i] * exp(p[kHeight][i]), q[kX][i], q[kY][i], q[kWidth][i], q[kHeight][i]);
  }
}

// Keeps, of the objects, those whose box answers for them, and says what confidence the other boxes
// should have and how much that matters.
void assign_objects(const YOLOFunction& f, const float* t, Index first, Index stride,
                    Objects& objects, float* targets, float* factors) {
  Index kept = 0;
  for (Index i = 0; i < objects.count; ++i) {
    const Index b = objects.box[i];
    const float iou = objects.overlaps[i];
    const bool present = objects.best[i] || iou > f.presence;
    if (present) {
      targets[b - first] = t[b * stride + kConfidence] * (f.rescore ? iou : 1.0F);
      objects.box[kept] = b;
      objects.anchor[kept] = objects.anchor[i];
      ++kept;
    }
    const float without = iou < f.absence ? f.no_object_factor : 0.0F;
    factors[b - first] = present ? f.object_factor : without;
  }
  objects.count = kept;
}

// Writes `factor` times losses and slopes of two channels of each object.
MPSGRAD_INLINE void store_pairs(const Objects& objects, Index channel, float factor,
                                const float* pair_losses, const float* pair_slopes, Index stride,
                                float* losses, float* slopes) {
  for (Index i = 0; i < objects.count; ++i) {
    const Index to = objects.box[i] * stride + channel;
    for (Index k = 0; k < 2; ++k) {
      losses[to + k] = factor * pair_losses[2 * i + k];
      slopes[to + k] = factor * pair_slopes[2 * i + k];
    }
  }
}

void place(const YOLOFunction& f, const Objects& objects, const float* y, const float* t,
           Index stride, float* losses, float* slopes, float* scratch) {
  float at[2 * kBoxes];
  float label[2 * kBoxes];
  float inner[2 * kBoxes];
  float value[2 * kBoxes];
  float slope[2 * kBoxes];
  const Index numbers = 2 * objects.count;
  for (Index i = 0; i < numbers; ++i) {
    const Index from = objects.box[i / 2] * stride + kX + i % 2;
    inner[i] = y[from];
    label[i] = t[from];
  }
  for (Index i = 0; i < numbers; ++i) {
    at[i] = sigmoid(inner[i]);
    inner[i] = sigmoid_slope(inner[i]);
  }
  loss_loops.elements(f.xy, at, label, value, slope, scratch, objects.count, 2);
  for (Index i = 0; i < numbers; ++i) {
    slope[i] *= inner[i];
  }
  store_pairs(objects, kX, f.xy_factor, value, slope, stride, losses, slopes);
}

void size(const YOLOFunction& f, const Objects& objects, const float* y, const float* t,
          Index stride, float* losses, float* slopes, float* scratch) {
  float at[2 * kBoxes];
  float label[2 * kBoxes];
  float value[2 * kBoxes];
  float slope[2 * kBoxes];
  const Index numbers = 2 * objects.count;
  for (Index i = 0; i < numbers; ++i) {
    const Index from = objects.box[i / 2] * stride + kWidth + i % 2;
    at[i] = y[from];
    label[i] = t[from] / f.anchors[2 * objects.anchor[i / 2] + i % 2];
  }
  for (Index i = 0; i < numbers; ++i) {
    label[i] = log(label[i] + 1e-5F);
  }
  loss_loops.elements(f.wh, at, label, value, slope, scratch, objects.count, 2);
  store_pairs(objects, kWidth, f.wh_factor, value, slope, stride, losses, slopes);
}

void classify(const YOLOFunction& f, const Objects& objects, const float* y, const float* t,
              Index stride, float* losses, float* slopes, float* scratch) {
  const Index classes = stride - kClasses;
  for (Index i = 0; i < objects.count; ++i) {
    const Index from = objects.box[i] * stride + kClasses;
    loss_loops.elements(f.classes, y + from, t + from, losses + from, slopes + from, scratch, 1,
                        classes);
    for (Index k = from; k < from + classes; ++k) {
      losses[k] *= f.class_factor;
      slopes[k] *= f.class_factor;
    }
  }
}

void boxes(const YOLOFunction& f, const float* y, const float* t, Index first, Index count,
           Index stride, float* losses, float* slopes, float* scratch) {
  float confidences[kBoxes];
  float targets[kBoxes];
  float factors[kBoxes];
  float value[kBoxes];
  float slope[kBoxes];
  const float without = 0.0F < f.absence ? f.no_object_factor : 0.0F;  // nothing overlaps nothing
  for (Index b = 0; b < count; ++b) {
    confidences[b] = y[(first + b) * stride + kConfidence];
    targets[b] = 0.0F;
    factors[b] = without;
  }
  const auto bytes = static_cast<std::size_t>(count * stride) * sizeof(float);
  __builtin_memset(losses + first * stride, 0, bytes);
  __builtin_memset(slopes + first * stride, 0, bytes);
  Objects objects;
  find_objects(f, t, first, count, stride, objects);
  if (objects.count > 0) {
    compute_overlaps(f, y, t, stride, objects);
    assign_objects(f, t, first, stride, objects, targets, factors);
    place(f, objects, y, t, stride, losses, slopes, scratch);
    size(f, objects, y, t, stride, losses, slopes, scratch);
    classify(f, objects, y, t, stride, losses, slopes, scratch);
  }
  loss_loops.elements(f.confidence, confidences, targets, value, slope, scratch, count, 1);
  for (Index b = 0; b < count; ++b) {
    const Index to = (first + b) * stride + kConfidence;
    losses[to] = factors[b] == 0.0F ? 0.0F : factors[b] * value[b];
    slopes[to] = factors[b] == 0.0F ? 0.0F : factors[b] * slope[b];
  }
}

void elements(const YOLOFunction& f, const float* y, const float* t, float* losses, float* slopes,
              float* scratch, Index pixels, Index channels) {
  const Index stride = channels / f.anchor_count;
  const Index all = pixels * f.anchor_count;
  for (Index first = 0; first < all; first += kBoxes) {
    const Index count = all - first < kBoxes ? all - first : kBoxes;
    boxes(f, y, t, first, count, stride, losses, slopes, scratch);
  }
}

}  // namespace

const YOLOLossLoops yolo_loss_loops{&elements};

}  // namespace mpsgrad::MPSGRAD_ISA
