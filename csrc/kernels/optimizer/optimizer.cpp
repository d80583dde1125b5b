// Rules of the optimizers: everything is checked before a time step or a read count moves.
#include "kernels/optimizer/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

void check_finite(const char* who, const char* name, double value) {
  require(std::isfinite(value), who, ": ", name, " must be finite, got ", value);
}

void check_clipping(const char* who, const OptimizerDescriptor& settings) {
  if (!settings.apply_gradient_clipping) {
    return;
  }
  const auto& [lower, upper] = std::pair(settings.gradient_clip_min, settings.gradient_clip_max);
  require(lower.has_value() && upper.has_value(), who,
          ": gradient clipping needs both gradient_clip_max and gradient_clip_min");
  require(*lower <= *upper, who, ": gradient_clip_min ", *lower, " is above gradient_clip_max ",
          *upper);
}

void check_settings(const char* who, const OptimizerDescriptor& settings) {
  check_finite(who, "learning_rate", settings.learning_rate);
  check_finite(who, "gradient_rescale", settings.gradient_rescale);
  check_finite(who, "regularization_scale", settings.regularization_scale);
  check_finite(who, "gradient_clip_max", settings.gradient_clip_max.value_or(0.0F));
  check_finite(who, "gradient_clip_min", settings.gradient_clip_min.value_or(0.0F));
  check_clipping(who, settings);
}

void check_rule(const char* who, const OptimizerRule& rule) {
  const auto below_one = [&](const char* name, double value) {
    require(value >= 0.0 && value < 1.0, who, ": ", name, " must be in [0, 1), got ", value);
  };
  check_finite(who, "momentum_scale", rule.momentum_scale);
  require(rule.decay >= 0.0 && rule.decay <= 1.0, who, ": decay must be in [0, 1], got ",
          rule.decay);
  below_one("beta1", rule.beta1);
  below_one("beta2", rule.beta2);
  check_finite(who, "epsilon", rule.epsilon);
  require(rule.epsilon >= 0.0F, who, ": epsilon must not be negative, got ", rule.epsilon);
}

// RMSProp and Adam need their histories; momentum and Adam's maximum velocity are a choice.
bool is_required(const OptimizerRule& rule, std::size_t index) {
  return rule.kind != OptimizerRule::Kind::StochasticGradientDescent && index < 2;
}

}  // namespace

Optimizer::Optimizer(std::shared_ptr<Device> device, const char* class_name,
                     OptimizerDescriptor settings, const OptimizerRule& rule)
    : KernelBase(std::move(device), class_name), settings_(settings), rule_(rule) {
  check_settings(class_name, settings_);
  check_rule(class_name, rule_);
  encoder_ = require_family(*this, this->device()->optimizer(), "optimizer")
                 .make(*this->device(), settings_, rule_);
}

void Optimizer::set_learning_rate(float value) {
  check_finite(class_name(), "learning_rate", value);
  settings_.learning_rate = value;
}

void Optimizer::set_apply_gradient_clipping(bool value) {
  OptimizerDescriptor changed = settings_;
  changed.apply_gradient_clipping = value;
  check_clipping(class_name(), changed);
  settings_ = changed;
}

void Optimizer::check_command_buffer(const CommandBuffer& command_buffer) const {
  command_buffer.require_encodable_on(device(), class_name());
}

void Optimizer::encode(const std::shared_ptr<CommandBuffer>& command_buffer,
                       const std::shared_ptr<DeviceArray>& gradient,
                       const std::shared_ptr<DeviceArray>& values,
                       const std::vector<History>& histories,
                       const std::shared_ptr<DeviceArray>& result) {
  check_command_buffer(*command_buffer);
  const auto check = [&](const char* name, const std::shared_ptr<DeviceArray>& array) {
    require<TypeError>(array != nullptr, class_name(), ": ", name, " must not be None");
    require<TypeError>(array->layout().data_type == kFloat32, class_name(), ": ", name,
                       " must be float32, got ", data_type_text(array->layout().data_type));
    array->require_usable(class_name(), *command_buffer);
    require(array->layout().same_shape(values->layout()), class_name(), ": ", name, " has shape ",
            array->layout(), ", but values has ", values->layout());
  };
  require<TypeError>(values != nullptr, class_name(), ": values must not be None");
  check("values", values);
  check("gradient", gradient);
  check("result", result);
  for (std::size_t i = 0; i < histories.size(); ++i) {
    if (histories[i].array) {
      check(histories[i].name, histories[i].array);
    } else {
      require(!is_required(rule_, i), class_name(), ": ", histories[i].name, " must not be None");
    }
  }
  const DeviceArrays read{gradient, values};
  check_reads(read);
  std::vector<ParameterUpdate> updates{{"", gradient->view(), values->view(), result->view(), {}}};
  for (const History& history : histories) {
    if (history.array) {
      updates.front().histories.push_back(history.array->view());
    }
  }
  encode_updates(command_buffer, updates);
  spend_reads(read);
}

Index Optimizer::check_histories(CommandBuffer& command_buffer,
                                 const std::vector<HistoryVectors>& histories) const {
  const HistoryVectors* first = nullptr;
  for (std::size_t i = 0; i < histories.size(); ++i) {
    const HistoryVectors& history = histories[i];
    if (!history.vectors) {
      require(!is_required(rule_, i), class_name(), ": ", history.name, " must not be None");
      continue;
    }
    const std::size_t count = history.vectors->size();
    require(count == 1 || count == 2, class_name(), ": ", history.name,
            " must hold 1 or 2 vectors, got ", count);
    first = first ? first : &history;
    require(count == first->vectors->size(), class_name(), ": ", history.name, " holds ", count,
            " vectors, but ", first->name, " holds ", first->vectors->size());
    for (const auto& vector : *history.vectors) {
      require<TypeError>(vector != nullptr, class_name(), ": ", history.name,
                         " must hold vectors, got None");
      require<TypeError>(vector->layout().data_type == kFloat32, class_name(), ": ", history.name,
                         " must be float32, got ", data_type_text(vector->layout().data_type));
      vector->require_usable(class_name(), command_buffer);
    }
  }
  return first ? static_cast<Index>(first->vectors->size()) : 0;
}

namespace {

template <class Wanted>
Wanted& state_as(const char* who, const char* name, const char* class_name,
                 const std::shared_ptr<State>& state, const CommandBuffer& command_buffer) {
  auto* wanted = dynamic_cast<Wanted*>(state.get());
  require<TypeError>(wanted != nullptr, who, ": ", name, " must be a ", class_name, ", got ",
                     state ? state->class_name() : "None");
  wanted->require_usable(who, command_buffer);
  return *wanted;
}

}  // namespace

void Optimizer::add_update(std::vector<ParameterUpdate>& updates,
                           const std::vector<HistoryVectors>& histories, std::size_t index,
                           const char* name, ArrayView gradient, ArrayView values,
                           ArrayView result) const {
  const Index count = values.layout.columns;
  const auto same = [&](const char* what, Index other) {
    require(other == count, class_name(), ": ", what, " has ", other, " ", name,
            ", but source_state has ", count);
  };
  same("gradient_state", gradient.layout.columns);
  same("result_state", result.layout.columns);
  updates.push_back({name, std::move(gradient), std::move(values), std::move(result), {}});
  for (const HistoryVectors& history : histories) {
    if (history.vectors) {
      ArrayView view = (*history.vectors)[index]->view();
      require(view.layout.same_shape(updates.back().values.layout), class_name(), ": ",
              history.name, "[", index, "] has shape ", view.layout, ", but there are ", count, " ",
              name);
      updates.back().histories.push_back(std::move(view));
    }
  }
}

void Optimizer::encode_convolution(const std::shared_ptr<CommandBuffer>& command_buffer,
                                   const std::shared_ptr<State>& gradient_state,
                                   const std::shared_ptr<State>& source_state,
                                   const std::vector<HistoryVectors>& histories,
                                   const std::shared_ptr<State>& result_state) {
  check_command_buffer(*command_buffer);
  using Weights = ConvolutionWeightsAndBiasesState;
  constexpr const char* kWeights = "ConvolutionWeightsAndBiasesState";
  auto& gradient = state_as<ConvolutionGradientState>(
      class_name(), "gradient_state", "ConvolutionGradientState", gradient_state, *command_buffer);
  auto& source =
      state_as<Weights>(class_name(), "source_state", kWeights, source_state, *command_buffer);
  auto& result =
      state_as<Weights>(class_name(), "result_state", kWeights, result_state, *command_buffer);
  require<StateError>(gradient.has_gradients(), class_name(),
                      ": gradient_state has no gradients yet; encode ConvolutionGradient first");
  const Index vectors = check_histories(*command_buffer, histories);
  const bool all_biases = source.has_biases() && result.has_biases();
  require(vectors < 2 || all_biases, class_name(),
          ": two history vectors update weights and biases, but ",
          source.has_biases() ? "result_state" : "source_state", " has no biases");

  std::vector<ParameterUpdate> updates;
  const auto add = [&](const char* name, std::size_t index, ArrayView from, ArrayView value,
                       ArrayView to) {
    add_update(updates, histories, index, name, std::move(from), std::move(value), std::move(to));
  };
  add("weights", 0, float_view(gradient.gradient_for_weights(), 0, gradient.weight_count()),
      float_view(source.weights(), source.weights_offset(), source.weight_count()),
      float_view(result.weights(), result.weights_offset(), result.weight_count()));
  if (vectors == 2 || (vectors == 0 && all_biases)) {
    add("biases", 1, float_view(gradient.gradient_for_biases(), 0, gradient.bias_count()),
        float_view(source.biases(), source.biases_offset(), source.bias_count()),
        float_view(result.biases(), result.biases_offset(), result.bias_count()));
  }

  Reads reads;
  reads.add(StateBatch{gradient_state});
  reads.add(StateBatch{source_state});
  reads.check();
  encode_updates(command_buffer, updates, &gradient);
  gradient.mark_consumed();
  reads.spend();
}

void Optimizer::encode_batch_normalization(const std::shared_ptr<CommandBuffer>& command_buffer,
                                           const std::shared_ptr<State>& gradient_state,
                                           const std::shared_ptr<State>& source_state,
                                           const std::vector<HistoryVectors>& histories,
                                           const std::shared_ptr<State>& result_state) {
  check_command_buffer(*command_buffer);
  constexpr const char* kState = "BatchNormalizationState";
  auto& gradient = state_as<BatchNormalizationState>(class_name(), "batch_normalization_state",
                                                     kState, gradient_state, *command_buffer);
  auto& source = source_state
                     ? state_as<BatchNormalizationState>(class_name(), "source_state", kState,
                                                         source_state, *command_buffer)
                     : gradient;
  auto& result = state_as<NormalizationGammaAndBetaState>(class_name(), "result_state",
                                                          "NormalizationGammaAndBetaState",
                                                          result_state, *command_buffer);
  gradient.require_complete_gradients(class_name());
  const Index vectors = check_histories(*command_buffer, histories);
  const auto has = [&](const std::shared_ptr<Buffer>& values, const char* name) {
    require(values != nullptr, class_name(), ": the kernel of ",
            source_state ? "source_state" : "batch_normalization_state", " has no ", name,
            " to update");
  };
  has(source.gamma(), "gamma");
  if (vectors == 2) {
    has(source.beta(), "beta");
  }
  const Index channels = source.channels();
  require(result.channels() >= channels, class_name(), ": result_state holds ", result.channels(),
          " values an array, but the kernel has ", channels, " channels");

  std::vector<ParameterUpdate> updates;
  add_update(updates, histories, 0, "gamma",
             float_view(gradient.gamma_sums(), 0, gradient.channels()),
             float_view(source.gamma(), 0, channels), float_view(result.gamma(), 0, channels));
  if (vectors == 2 || (vectors == 0 && source.beta())) {
    add_update(updates, histories, 1, "beta",
               float_view(gradient.beta_sums(), 0, gradient.channels()),
               float_view(source.beta(), 0, channels), float_view(result.beta(), 0, channels));
  }

  Reads reads;
  reads.add(StateBatch{gradient_state});
  if (source_state) {
    reads.add(StateBatch{source_state});
  }
  reads.check();
  encode_updates(command_buffer, updates);
  reads.spend();
}

namespace {

// The states' gradients; throws unless all have as many channels.
std::vector<GammaAndBetaGradients*> gradients_of(const char* who,
                                                 const CommandBuffer& command_buffer,
                                                 const StateBatch& states) {
  require(!states.empty(), who, ": states must hold one state at least");
  std::vector<GammaAndBetaGradients*> gradients;
  for (const auto& state : states) {
    auto* const own = dynamic_cast<GammaAndBetaGradients*>(state.get());
    require<TypeError>(own != nullptr, who, ": states must hold gradients of gamma and beta, got ",
                       state ? state->class_name() : "None");
    state->require_usable(who, command_buffer);
    own->require_complete_gradients(who);
    require(std::find(gradients.begin(), gradients.end(), own) == gradients.end(), who,
            ": states hold a ", state->class_name(), " twice");
    gradients.push_back(own);
    require(own->channels() == gradients.front()->channels(), who,
            ": states must be of as many channels, got ", gradients.front()->channels(), " and ",
            own->channels());
  }
  return gradients;
}

}  // namespace

void Optimizer::encode_gamma_beta(const std::shared_ptr<CommandBuffer>& command_buffer,
                                  const StateBatch& states,
                                  const std::shared_ptr<State>& source_state,
                                  const std::vector<HistoryVectors>& histories,
                                  const std::shared_ptr<State>& result_state) {
  check_command_buffer(*command_buffer);
  using Values = NormalizationGammaAndBetaState;
  constexpr const char* kValues = "NormalizationGammaAndBetaState";
  const auto gradients = gradients_of(class_name(), *command_buffer, states);
  auto& source =
      state_as<Values>(class_name(), "source_state", kValues, source_state, *command_buffer);
  auto& result =
      state_as<Values>(class_name(), "result_state", kValues, result_state, *command_buffer);
  const Index channels = gradients.front()->channels();
  const auto holds = [&](const char* name, Index count) {
    require(count >= channels, class_name(), ": ", name, " holds ", count,
            " values an array, but the states are of ", channels, " channels");
  };
  holds("source_state", source.channels());
  holds("result_state", result.channels());
  const Index vectors = check_histories(*command_buffer, histories);
  const auto view = [&](const std::shared_ptr<Buffer>& buffer) {
    return float_view(buffer, 0, channels);
  };
  // The same update, by the gradients of each state.
  std::vector<std::vector<ParameterUpdate>> updates;
  for (GammaAndBetaGradients* const own : gradients) {
    auto& by_one = updates.emplace_back();
    add_update(by_one, histories, 0, "gamma", view(own->gamma_sums()), view(source.gamma()),
               view(result.gamma()));
    if (vectors != 1) {
      add_update(by_one, histories, 1, "beta", view(own->beta_sums()), view(source.beta()),
                 view(result.beta()));
    }
    check_updates(by_one);
  }
  Reads reads;
  reads.add(states);
  reads.add(StateBatch{source_state});
  reads.check();
  encode_gradient_sums(command_buffer, updates);
  encode_updates(command_buffer, updates.front());
  reads.spend();
}

void Optimizer::encode_gradient_sums(const std::shared_ptr<CommandBuffer>& command_buffer,
                                     std::vector<std::vector<ParameterUpdate>>& updates) {
  if (updates.size() == 1) {
    return;
  }
  if (!adder_) {
    OptimizerDescriptor settings;
    settings.learning_rate = -1.0F;  // values - (-1) * gradient
    adder_ = std::make_unique<StochasticGradientDescent>(device(), settings, 0.0F, false);
  }
  for (std::size_t k = 0; k < updates.front().size(); ++k) {
    ArrayView& total = updates.front()[k].gradient;
    Vector sum(device(), VectorDescriptor{.length = total.layout.columns});
    for (std::size_t i = 1; i < updates.size(); ++i) {
      adder_->encode_updates(command_buffer, {{"", updates[i][k].gradient, total, sum.view(), {}}});
      total = sum.view();
    }
  }
}

namespace {

enum class Role { Gradient, Values, Result, History };

// One view of an update, for the question who shares memory with whom.
struct Holder {
  const ArrayView* view;
  const ParameterUpdate* update;
  Role role;
  std::size_t index;  // of a history
};

std::string name_of(const Holder& holder, const OptimizerRule& rule) {
  constexpr const char* kArguments[] = {"gradient", "values", "result"};
  constexpr const char* kHistories[] = {"momentum", "velocity", "maximum_velocity"};
  const char* name = holder.role != Role::History ? kArguments[static_cast<int>(holder.role)]
                     : rule.kind == OptimizerRule::Kind::RMSProp ? "sum_of_squares"
                                                                 : kHistories[holder.index];
  return *holder.update->name ? text(name, " of the ", holder.update->name) : name;
}

// An update in place: the result is where the gradient or the values of its parameter are.
bool in_place(const Holder& read, const Holder& written) {
  return read.update == written.update && written.role == Role::Result &&
         identical(*read.view, *written.view);
}

}  // namespace

void Optimizer::check_updates(const std::vector<ParameterUpdate>& updates) const {
  std::vector<Holder> holders;
  holders.reserve(updates.size() * 6);
  for (const ParameterUpdate& update : updates) {
    holders.push_back({&update.gradient, &update, Role::Gradient, 0});
    holders.push_back({&update.values, &update, Role::Values, 0});
    holders.push_back({&update.result, &update, Role::Result, 0});
    for (std::size_t i = 0; i < update.histories.size(); ++i) {
      holders.push_back({&update.histories[i], &update, Role::History, i});
    }
  }
  for (std::size_t j = 1; j < holders.size(); ++j) {
    for (std::size_t i = 0; i < j; ++i) {
      const bool i_reads = holders[i].role <= Role::Values;
      const bool j_reads = holders[j].role <= Role::Values;
      if ((i_reads && j_reads) || !overlap(*holders[i].view, *holders[j].view) ||
          (i_reads && in_place(holders[i], holders[j]))) {
        continue;
      }
      fail(class_name(), ": the ", name_of(holders[j], rule_), " shares memory with the ",
           name_of(holders[i], rule_),
           holders[j].role == Role::Result ? "; an update in place needs the very same elements"
                                           : "");
    }
  }
}

void Optimizer::encode_updates(const std::shared_ptr<CommandBuffer>& command_buffer,
                               const std::vector<ParameterUpdate>& updates,
                               const ConvolutionGradientState* convolution) {
  check_updates(updates);
  const Index time_step = next_time_step();
  encoder_->encode(*command_buffer, {settings_, time_step, updates, convolution});
  note_step(time_step);
  command_buffer->note_encoded();
  const auto note = [&](const ArrayView& view, bool writes) {
    view.buffer->note_use(command_buffer->work(), writes);
  };
  for (const ParameterUpdate& update : updates) {
    note(update.gradient, false);
    note(update.values, false);
    note(update.result, true);
    for (const ArrayView& history : update.histories) {
      note(history, true);
    }
  }
}

StochasticGradientDescent::StochasticGradientDescent(std::shared_ptr<Device> device,
                                                     OptimizerDescriptor settings,
                                                     float momentum_scale,
                                                     bool use_nesterov_momentum)
    : Optimizer(std::move(device), "StochasticGradientDescent", settings,
                {.kind = OptimizerRule::Kind::StochasticGradientDescent,
                 .momentum_scale = momentum_scale,
                 .use_nesterov_momentum = use_nesterov_momentum}) {}

RMSProp::RMSProp(std::shared_ptr<Device> device, OptimizerDescriptor settings, double decay,
                 float epsilon)
    : Optimizer(std::move(device), "RMSProp", settings,
                {.kind = OptimizerRule::Kind::RMSProp, .decay = decay, .epsilon = epsilon}) {}

Adam::Adam(std::shared_ptr<Device> device, OptimizerDescriptor settings, double beta1, double beta2,
           float epsilon, Index time_step)
    : Optimizer(
          std::move(device), "Adam", settings,
          {.kind = OptimizerRule::Kind::Adam, .beta1 = beta1, .beta2 = beta2, .epsilon = epsilon}) {
  set_time_step(time_step);
}

void Adam::set_time_step(Index value) {
  require(value >= 0, class_name(), ": time_step must not be negative, got ", value);
  require(value < std::numeric_limits<Index>::max(), class_name(), ": time_step must be below ",
          std::numeric_limits<Index>::max(), ", for the next encode adds 1");
  time_step_ = value;
}

}  // namespace mpsgrad
