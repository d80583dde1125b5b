// Weights as the loops read them: packed when a form is first asked for, and kept.
#include "cpu/threads.hpp"
#include "kernels/convolution/convolution_engine.hpp"
#include "kernels/convolution/convolution_rows.hpp"
#include "kernels/convolution/convolution_winograd.hpp"

namespace mpsgrad::cpu {
namespace {

using namespace convolution;
using Form = ConvolutionWeights::Form;

// Writes one form of some weights.
class Packer {
 public:
  Packer(const Form& form, const float* values)
      : form_(form),
        values_(values),
        width_(static_cast<Index>(form.taps_x.size())),
        taps_(static_cast<Index>(form.taps_y.size()) * width_),
        // The values' outer axis counts the results of a forward pass or, when transposed, of a
        // data gradient.
        results_outside_(form.of_results == form.transposed),
        blocks_per_group_(ceil_div(form.group_results, form.lanes)),
        blocks_(form.groups * blocks_per_group_) {}

  Index floats() const {
    if (form_.depthwise) {
      return taps_ * form_.mixed * form_.group_results;
    }
    return (form_.winograd ? kWinogradParts : taps_) * blocks_ * form_.group_operands * form_.lanes;
  }

  void pack(float* out) const {
    if (form_.depthwise) {
      return pack_depthwise(out);
    }
    const Index tap_floats = form_.group_operands * form_.lanes;
    const Index block_floats = taps_ * tap_floats;
    parallel_for(blocks_, [&](Index b) {
      if (!form_.winograd) {
        return pack_block(b, out + b * block_floats);
      }
      Scratch scratch(Scratch::bytes<float>(block_floats));
      auto* weights = scratch.take<float>(block_floats);
      pack_block(b, weights);
      winograd_loops().weights(weights, tap_floats, out + b * tap_floats, blocks_ * tap_floats);
    });
  }

 private:
  // Position of a packed tap in the values.
  Index tap_of(Index tap) const {
    const Index at = form_.taps_y[static_cast<std::size_t>(tap / width_)] * width_ +
                     form_.taps_x[static_cast<std::size_t>(tap % width_)];
    return form_.transposed ? taps_ - 1 - at : at;
  }

  void pack_depthwise(float* to) const {
    const Index mixed = form_.mixed;
    for (Index tap = 0; tap < taps_; ++tap) {
      const Index at = tap_of(tap);
      for (Index k = 0; k < mixed; ++k) {
        for (Index c = 0; c < form_.group_results; ++c, ++to) {
          const Index first = results_outside_ ? c % mixed : k;
          const Index second = results_outside_ ? k : c % mixed;
          *to = values_[((c / mixed * mixed + first) * taps_ + at) * mixed + second];
        }
      }
    }
  }

  // A block of results: taps, operands, lanes.
  void pack_block(Index b, float* to) const {
    const Index lanes = form_.lanes, results = form_.group_results, operands = form_.group_operands;
    const Index inner = results_outside_ ? operands : results;
    const Index result_step = results_outside_ ? taps_ * operands : 1;
    const Index operand_step = results_outside_ ? 1 : taps_ * results;
    const Index first = b % blocks_per_group_ * lanes;
    const Index here = std::min(lanes, results - first);
    const float* from =
        values_ + b / blocks_per_group_ * (results * operands * taps_) + first * result_step;
    for (Index tap = 0; tap < taps_; ++tap, to += operands * lanes) {
      const float* weights = from + tap_of(tap) * inner;
      if (here < lanes) {
        std::fill_n(to, operands * lanes, 0.0F);
      }
      if (results_outside_) {
        for (Index l = 0; l < here; ++l) {
          for (Index k = 0; k < operands; ++k) {
            to[k * lanes + l] = weights[l * result_step + k];
          }
        }
      } else {
        for (Index k = 0; k < operands; ++k) {
          std::copy_n(weights + k * operand_step, here, to + k * lanes);
        }
      }
    }
  }

  const Form& form_;
  const float* values_;
  Index width_, taps_;
  bool results_outside_;
  Index blocks_per_group_, blocks_;
};

}  // namespace

const float* ConvolutionWeights::find(const Form& form) const {
  for (const Packed& packed : packed_) {
    if (packed.form == form) {
      return reinterpret_cast<const float*>(packed.block->data());
    }
  }
  return nullptr;
}

const float* ConvolutionWeights::packed(const Form& form) const {
  {
    const std::lock_guard lock(mutex_);
    if (const float* found = find(form)) {
      return found;
    }
  }
  // Without the mutex, which a fork() meanwhile would leave locked in the child for ever. Of two
  // threads that pack the same form one has done so in vain.
  const Packer packer(form, values_);
  auto block = MemoryPool::instance().acquire(
      static_cast<std::size_t>(std::max<Index>(packer.floats(), 1)) * sizeof(float));
  auto* out = reinterpret_cast<float*>(block->data());
  packer.pack(out);
  const std::lock_guard lock(mutex_);
  if (const float* found = find(form)) {
    return found;
  }
  packed_.push_back({form, std::move(block)});
  return out;
}

}  // namespace mpsgrad::cpu
