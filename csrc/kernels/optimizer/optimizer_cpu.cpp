// Optimizers of the CPU device: one pass over the parameters, cut into runs that fit the cache.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.hpp"
#include "cpu/cpu_buffer.hpp"
#include "cpu/cpu_calls.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "kernels/optimizer/optimizer_simd.hpp"

namespace mpsgrad {
namespace {

// Elements of a run: six arrays of it lie in a core's second-level cache.
constexpr Index kRun = 8192;

// Where the elements of one view are; strides in bytes.
struct Elements {
  std::shared_ptr<cpu::BufferMemory> memory;
  Index offset = 0;  // bytes
  Index row_bytes = 0, part_bytes = 0;
  float* at(Index part, Index row, Index column) const {
    return reinterpret_cast<float*>(memory->bytes() + offset + part * part_bytes +
                                    row * row_bytes) +
           column;
  }
};

struct Parameter {
  Index parts, rows, columns;
  Elements gradient, values, result;
  std::array<Elements, 3> histories;
  OptimizerStep::Rule rule;
};

OptimizerStep::Rule rule_of(const OptimizerRule& rule, std::size_t histories) {
  switch (rule.kind) {
    case OptimizerRule::Kind::RMSProp:
      return OptimizerStep::kRMSProp;
    case OptimizerRule::Kind::Adam:
      return histories == 3 ? OptimizerStep::kAMSGrad : OptimizerStep::kAdam;
    case OptimizerRule::Kind::StochasticGradientDescent:
      break;
  }
  if (histories == 0) {
    return OptimizerStep::kPlain;
  }
  return rule.use_nesterov_momentum ? OptimizerStep::kNesterov : OptimizerStep::kMomentum;
}

// Scalars are worked out in double and rounded once.
OptimizerStep step_of(const OptimizerRule& rule, const OptimizerDescriptor& settings,
                      Index time_step) {
  OptimizerStep step;
  step.regularization = settings.regularization_type;
  step.regularization_scale = settings.regularization_scale;
  step.clip = settings.apply_gradient_clipping;
  step.clip_min = settings.gradient_clip_min.value_or(0.0F);
  step.clip_max = settings.gradient_clip_max.value_or(0.0F);
  step.rescale = settings.gradient_rescale;
  step.rate = settings.learning_rate;
  step.epsilon = rule.epsilon;
  switch (rule.kind) {
    case OptimizerRule::Kind::StochasticGradientDescent:
      step.keep1 = rule.momentum_scale;
      break;
    case OptimizerRule::Kind::RMSProp:
      step.keep1 = static_cast<float>(rule.decay);
      step.add1 = static_cast<float>(1.0 - rule.decay);
      break;
    case OptimizerRule::Kind::Adam: {
      const auto t = static_cast<double>(time_step);
      const double correction =
          std::sqrt(1.0 - std::pow(rule.beta2, t)) / (1.0 - std::pow(rule.beta1, t));
      step.rate = static_cast<float>(static_cast<double>(settings.learning_rate) * correction);
      step.keep1 = static_cast<float>(rule.beta1);
      step.add1 = static_cast<float>(1.0 - rule.beta1);
      step.keep2 = static_cast<float>(rule.beta2);
      step.add2 = static_cast<float>(1.0 - rule.beta2);
      break;
    }
  }
  return step;
}

// The views of one parameter; packed arrays become one row, so that rows do not matter.
Parameter parameter_of(const OptimizerRule& rule, const ParameterUpdate& update) {
  const auto elements = [](const ArrayView& view) {
    return Elements{cpu::memory_of(*view.buffer), view.offset, view.layout.row_bytes,
                    view.layout.part_bytes};
  };
  const ArrayLayout& shape = update.values.layout;
  Parameter result{shape.parts,
                   shape.rows,
                   shape.columns,
                   elements(update.gradient),
                   elements(update.values),
                   elements(update.result),
                   {},
                   rule_of(rule, update.histories.size())};
  bool packed = update.gradient.layout.packed() && shape.packed() && update.result.layout.packed();
  for (std::size_t i = 0; i < update.histories.size(); ++i) {
    result.histories[i] = elements(update.histories[i]);
    packed = packed && update.histories[i].layout.packed();
  }
  if (packed) {
    result.columns *= result.parts * result.rows;
    result.parts = result.rows = 1;
  }
  return result;
}

void run_parameter(OptimizerStep step, const Parameter& parameter) {
  step.rule = parameter.rule;
  const Index run = std::min(kRun, parameter.columns);
  const Index runs = cpu::chunks_of(parameter.columns, run);
  const Index total = parameter.parts * parameter.rows * runs;
  const Index group = std::max<Index>(1, kRun / run);  // short rows together
  cpu::parallel_for(cpu::chunks_of(total, group), [&](Index chunk) {
    for (Index item = chunk * group; item < std::min(total, (chunk + 1) * group); ++item) {
      const Index column = item % runs * run;
      const Index row = item / runs % parameter.rows;
      const Index part = item / runs / parameter.rows;
      OptimizerRun arrays{parameter.gradient.at(part, row, column),
                          parameter.values.at(part, row, column),
                          {},
                          parameter.result.at(part, row, column)};
      for (std::size_t i = 0; i < parameter.histories.size(); ++i) {
        if (parameter.histories[i].memory) {
          arrays.history[i] = parameter.histories[i].at(part, row, column);
        }
      }
      optimizer_loops().step(step, arrays, std::min(run, parameter.columns - column));
    }
  });
}

class CpuOptimizer final : public OptimizerEncoder {
 public:
  explicit CpuOptimizer(const OptimizerRule& rule) : rule_(rule) {}

  void encode(CommandBuffer& command_buffer, const OptimizerCall& call) override {
    std::vector<Parameter> parameters;
    for (const ParameterUpdate& update : call.parameters) {
      parameters.push_back(parameter_of(rule_, update));
    }
    cpu::record(command_buffer, [step = step_of(rule_, call.settings, call.time_step),
                                 parameters = std::move(parameters)] {
      for (const Parameter& parameter : parameters) {
        run_parameter(step, parameter);
      }
    });
  }

 private:
  OptimizerRule rule_;
};

class CpuOptimizerBackend final : public OptimizerBackend {
 public:
  std::unique_ptr<OptimizerEncoder> make(Device&, const OptimizerDescriptor&,
                                         const OptimizerRule& rule) const override {
    return std::make_unique<CpuOptimizer>(rule);
  }
};

}  // namespace

const OptimizerBackend& cpu_optimizer() {
  static const CpuOptimizerBackend backend;
  return backend;
}

}  // namespace mpsgrad
