// Optimizers (MPSNNOptimizer and its subclasses): one step of gradient descent on numbers that the
// caller owns. Vectors, matrices and states all become a list of parameters, so the arithmetic and
// its rules exist once, whatever an encode was given.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/batch_normalization_state.hpp"
#include "core/convolution_states.hpp"
#include "core/kernel.hpp"
#include "device/vector.hpp"
#include "kernels/optimizer/regularization_type.hpp"

namespace mpsgrad {

// MPSNNOptimizerDescriptor: what all optimizers have in common.
struct OptimizerDescriptor {
  float learning_rate = 0.001F;
  float gradient_rescale = 1.0F;
  bool apply_gradient_clipping = false;
  std::optional<float> gradient_clip_max, gradient_clip_min;  // units of the raw gradient
  RegularizationType regularization_type = RegularizationType::None;
  float regularization_scale = 0.0F;
  bool operator==(const OptimizerDescriptor&) const = default;
};

// What a class of optimizers adds; each reads the fields it has.
struct OptimizerRule {
  enum class Kind { StochasticGradientDescent, RMSProp, Adam };
  Kind kind = Kind::StochasticGradientDescent;
  float momentum_scale = 0.0F;
  bool use_nesterov_momentum = false;
  double decay = 0.9;
  double beta1 = 0.9, beta2 = 0.999;
  float epsilon = 1e-8F;
};

// One parameter of a step. All views have one shape. `histories` in the order of the encode's
// arguments: momentum; sum of squares; momentum, velocity, maximum velocity. Empty: plain descent.
struct ParameterUpdate {
  const char* name;  // "weights"; "" where there is only one
  ArrayView gradient, values, result;
  std::vector<ArrayView> histories;
};

struct OptimizerCall {
  const OptimizerDescriptor& settings;  // as they are now
  Index time_step;                      // of this update, from 1; only Adam uses it
  const std::vector<ParameterUpdate>& parameters;
  // Whose gradients the parameters' are, weights and then biases; null for vectors and matrices.
  const ConvolutionGradientState* convolution;
};

class OptimizerEncoder {
 public:
  virtual ~OptimizerEncoder() = default;
  virtual void encode(CommandBuffer& command_buffer, const OptimizerCall& call) = 0;
};

// What a device supplies to run the family.
class OptimizerBackend {
 public:
  virtual ~OptimizerBackend() = default;
  virtual std::unique_ptr<OptimizerEncoder> make(Device& device,
                                                 const OptimizerDescriptor& settings,
                                                 const OptimizerRule& rule) const = 0;
};

class Optimizer : public KernelBase {
 public:
  // One history argument: a vector or matrix, null if there is none.
  struct History {
    const char* name;
    std::shared_ptr<DeviceArray> array;
  };
  // The same for states with several parameters: one vector each. Null: no storage.
  struct HistoryVectors {
    const char* name;
    const std::vector<std::shared_ptr<Vector>>* vectors;
  };

  const OptimizerDescriptor& settings() const { return settings_; }
  const OptimizerRule& rule() const { return rule_; }
  void set_learning_rate(float value);
  void set_apply_gradient_clipping(bool value);

  // Vectors or matrices; `result` may be `values`.
  void encode(const std::shared_ptr<CommandBuffer>& command_buffer,
              const std::shared_ptr<DeviceArray>& gradient,
              const std::shared_ptr<DeviceArray>& values, const std::vector<History>& histories,
              const std::shared_ptr<DeviceArray>& result);
  // Weights, and biases where there are two histories, or none at all and biases everywhere.
  void encode_convolution(const std::shared_ptr<CommandBuffer>& command_buffer,
                          const std::shared_ptr<State>& gradient_state,
                          const std::shared_ptr<State>& source_state,
                          const std::vector<HistoryVectors>& histories,
                          const std::shared_ptr<State>& result_state);
  // Gamma, and beta where there are two histories, or none at all and the source has one.
  // `source_state` may be null: then the values come from the gradient state.
  void encode_batch_normalization(const std::shared_ptr<CommandBuffer>& command_buffer,
                                  const std::shared_ptr<State>& gradient_state,
                                  const std::shared_ptr<State>& source_state,
                                  const std::vector<HistoryVectors>& histories,
                                  const std::shared_ptr<State>& result_state);

  // Gamma, and beta unless there is one history only, by the summed gradients of several states.
  void encode_gamma_beta(const std::shared_ptr<CommandBuffer>& command_buffer,
                         const StateBatch& states, const std::shared_ptr<State>& source_state,
                         const std::vector<HistoryVectors>& histories,
                         const std::shared_ptr<State>& result_state);

 protected:
  Optimizer(std::shared_ptr<Device> device, const char* class_name, OptimizerDescriptor settings,
            const OptimizerRule& rule);
  // The time step the next encode works with, and the news that it has been encoded.
  virtual Index next_time_step() const { return 0; }
  virtual void note_step(Index /*time_step*/) {}

 private:
  void check_command_buffer(const CommandBuffer& command_buffer) const;
  // How many parameters the histories are for; 0 if there are none.
  Index check_histories(CommandBuffer& command_buffer,
                        const std::vector<HistoryVectors>& histories) const;
  // Adds parameter number `index` of a state, with its vector out of every history.
  void add_update(std::vector<ParameterUpdate>& updates,
                  const std::vector<HistoryVectors>& histories, std::size_t index, const char* name,
                  ArrayView gradient, ArrayView values, ArrayView result) const;
  void check_updates(const std::vector<ParameterUpdate>& updates) const;
  // Of updates of the same parameters by one state's gradients each: gives the first the sums.
  void encode_gradient_sums(const std::shared_ptr<CommandBuffer>& command_buffer,
                            std::vector<std::vector<ParameterUpdate>>& updates);
  void encode_updates(const std::shared_ptr<CommandBuffer>& command_buffer,
                      const std::vector<ParameterUpdate>& updates,
                      const ConvolutionGradientState* convolution = nullptr);

  OptimizerDescriptor settings_;
  OptimizerRule rule_;
  std::unique_ptr<OptimizerEncoder> encoder_;
  std::unique_ptr<Optimizer> adder_;  // of gradients; made for the first ones
};

class StochasticGradientDescent final : public Optimizer {
 public:
  StochasticGradientDescent(std::shared_ptr<Device> device, OptimizerDescriptor settings,
                            float momentum_scale, bool use_nesterov_momentum);
};

class RMSProp final : public Optimizer {
 public:
  RMSProp(std::shared_ptr<Device> device, OptimizerDescriptor settings, double decay,
          float epsilon);
};

class Adam final : public Optimizer {
 public:
  Adam(std::shared_ptr<Device> device, OptimizerDescriptor settings, double beta1, double beta2,
       float epsilon, Index time_step);
  Index time_step() const { return time_step_; }
  void set_time_step(Index value);

 protected:
  Index next_time_step() const override { return time_step_ + 1; }
  void note_step(Index time_step) override { time_step_ = time_step; }

 private:
  Index time_step_ = 0;
};

}  // namespace mpsgrad
