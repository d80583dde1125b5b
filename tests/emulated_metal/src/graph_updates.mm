// Who updates the weights: callbacks of data sources, their duties, and what is reloaded.
#include <set>

#include "convolution.hpp"
#include "graph.hpp"

using namespace emulated_metal;

namespace {

using States = NSArray<MPSState*>*;

// One callback of a data source and the reloads that follow it.
struct Callback {
  SEL gpu, cpu;
  Class result;
  MPSState* (*on_gpu)(id source, id<MTLCommandBuffer> buffer, States states, MPSState* weights);
  BOOL (*on_cpu)(id source, States states, MPSState* weights);
  void (*from_state)(id kernel, id<MTLCommandBuffer> buffer, id state);
  void (*from_source)(id kernel);
};

template <class Batch>
Batch* as(States states) {
  return static_cast<Batch*>(static_cast<id>(states));
}

void reload_weights(id kernel, id<MTLCommandBuffer> buffer, id state) {
  [static_cast<MPSCNNConvolution*>(kernel) reloadWeightsAndBiasesWithCommandBuffer:buffer
                                                                             state:state];
}
void reload_weights(id kernel) {
  [static_cast<MPSCNNConvolution*>(kernel) reloadWeightsAndBiasesFromDataSource];
}
void reload_scale(id kernel, id<MTLCommandBuffer> buffer, id state) {
  [static_cast<MPSCNNBatchNormalization*>(kernel) reloadGammaAndBetaWithCommandBuffer:buffer
                                                                    gammaAndBetaState:state];
}
void reload_scale(id kernel) {
  [static_cast<MPSCNNBatchNormalization*>(kernel) reloadGammaAndBetaFromDataSource];
}
void reload_statistics(id kernel, id<MTLCommandBuffer> buffer, id state) {
  [static_cast<MPSCNNBatchNormalization*>(kernel) reloadMeanAndVarianceWithCommandBuffer:buffer
                                                                    meanAndVarianceState:state];
}
void reload_statistics(id kernel) {
  [static_cast<MPSCNNBatchNormalization*>(kernel) reloadMeanAndVarianceFromDataSource];
}

std::vector<Callback> callbacks(Update update) {
  switch (update) {
    case Update::none:
      return {};
    case Update::convolution:
      return {{@selector(updateWithCommandBuffer:gradientState:sourceState:),
               @selector(updateWithGradientState:sourceState:),
               [MPSCNNConvolutionWeightsAndBiasesState class],
               [](id source, id<MTLCommandBuffer> buffer, States states, MPSState* weights) {
                 return static_cast<MPSState*>([static_cast<id<MPSCNNConvolutionDataSource>>(source)
                     updateWithCommandBuffer:buffer
                               gradientState:static_cast<MPSCNNConvolutionGradientState*>(
                                                 [states objectAtIndex:0])
                                 sourceState:static_cast<MPSCNNConvolutionWeightsAndBiasesState*>(
                                                 weights)]);
               },
               [](id source, States states, MPSState* weights) {
                 return [static_cast<id<MPSCNNConvolutionDataSource>>(source)
                     updateWithGradientState:static_cast<MPSCNNConvolutionGradientState*>(
                                                 [states objectAtIndex:0])
                                 sourceState:static_cast<MPSCNNConvolutionWeightsAndBiasesState*>(
                                                 weights)];
               },
               reload_weights, reload_weights}};
    case Update::batch: {
      using Source = id<MPSCNNBatchNormalizationDataSource>;
      using State = MPSCNNBatchNormalizationState*;
      return {
          {@selector(updateGammaAndBetaWithCommandBuffer:batchNormalizationState:),
           @selector(updateGammaAndBetaWithBatchNormalizationState:),
           [MPSCNNNormalizationGammaAndBetaState class],
           [](id source, id<MTLCommandBuffer> buffer, States states, MPSState*) {
             return static_cast<MPSState*>([static_cast<Source>(source)
                 updateGammaAndBetaWithCommandBuffer:buffer
                             batchNormalizationState:static_cast<State>([states objectAtIndex:0])]);
           },
           [](id source, States states, MPSState*) {
             return [static_cast<Source>(source)
                 updateGammaAndBetaWithBatchNormalizationState:static_cast<State>(
                                                                   [states objectAtIndex:0])];
           },
           reload_scale, reload_scale},
          {@selector(updateMeanAndVarianceWithCommandBuffer:batchNormalizationState:),
           @selector(updateMeanAndVarianceWithBatchNormalizationState:),
           [MPSCNNNormalizationMeanAndVarianceState class],
           [](id source, id<MTLCommandBuffer> buffer, States states, MPSState*) {
             return static_cast<MPSState*>([static_cast<Source>(source)
                 updateMeanAndVarianceWithCommandBuffer:buffer
                                batchNormalizationState:static_cast<State>(
                                                            [states objectAtIndex:0])]);
           },
           [](id source, States states, MPSState*) {
             return [static_cast<Source>(source)
                 updateMeanAndVarianceWithBatchNormalizationState:static_cast<State>(
                                                                      [states objectAtIndex:0])];
           },
           reload_statistics, reload_statistics}};
    }
    case Update::instance: {
      using Source = id<MPSCNNInstanceNormalizationDataSource>;
      using Batch = MPSCNNInstanceNormalizationGradientStateBatch;
      return {{@selector(updateGammaAndBetaWithCommandBuffer:instanceNormalizationStateBatch:),
               @selector(updateGammaAndBetaWithInstanceNormalizationStateBatch:),
               [MPSCNNNormalizationGammaAndBetaState class],
               [](id source, id<MTLCommandBuffer> buffer, States states, MPSState*) {
                 return static_cast<MPSState*>([static_cast<Source>(source)
                     updateGammaAndBetaWithCommandBuffer:buffer
                         instanceNormalizationStateBatch:as<Batch>(states)]);
               },
               [](id source, States states, MPSState*) {
                 return [static_cast<Source>(source)
                     updateGammaAndBetaWithInstanceNormalizationStateBatch:as<Batch>(states)];
               },
               reload_scale, reload_scale}};
    }
    default: {
      using Source = id<MPSCNNGroupNormalizationDataSource>;
      using Batch = MPSCNNGroupNormalizationGradientStateBatch;
      return {{@selector(updateGammaAndBetaWithCommandBuffer:groupNormalizationStateBatch:),
               @selector(updateGammaAndBetaWithGroupNormalizationStateBatch:),
               [MPSCNNNormalizationGammaAndBetaState class],
               [](id source, id<MTLCommandBuffer> buffer, States states, MPSState*) {
                 return static_cast<MPSState*>([static_cast<Source>(source)
                     updateGammaAndBetaWithCommandBuffer:buffer
                            groupNormalizationStateBatch:as<Batch>(states)]);
               },
               [](id source, States states, MPSState*) {
                 return [static_cast<Source>(source)
                     updateGammaAndBetaWithGroupNormalizationStateBatch:as<Batch>(states)];
               },
               reload_scale, reload_scale}};
    }
  }
}

// Only convolutions keep weights in their gradient kernels too.
bool holds_weights(const Unit& unit) {
  const Update update = unit.filter->family->update();
  return update != Update::none && (update == Update::convolution || !unit.filter->gradient);
}

std::vector<MPSKernel*> kernels_of(const Program& program, id source) {
  std::vector<MPSKernel*> kernels;
  for (const Unit& unit : program.units) {
    if (holds_weights(unit) && unit.filter->family->data_source() == source) {
      kernels.push_back(unit.kernels[0].get());
    }
  }
  return kernels;
}

MPSState* exported_weights(const Program& program, const Unit& unit, id<MTLCommandBuffer> buffer,
                           BOOL temporary) {
  if (unit.filter->family->update() != Update::convolution) return nil;
  return [static_cast<MPSCNNConvolution*>(program.units[unit.forward].kernels[0].get())
      exportWeightsAndBiasesWithCommandBuffer:buffer
                    resultStateCanBeTemporary:temporary];
}

std::set<MPSState*> distinct(States states) {
  std::set<MPSState*> all;
  for (MPSState* state in states) all.insert(state);
  return all;
}

void expect_count(MPSState* state, NSUInteger expected, const Where& where) {
  REQUIRE(![state isTemporary] || [state readCount] == expected, update_read_count, where,
          "a %s has read count %lu, expected %lu", [NSStringFromClass([state class]) UTF8String],
          static_cast<unsigned long>([state readCount]), static_cast<unsigned long>(expected));
}

}  // namespace

namespace emulated_metal {

size_t update_count(const Unit& unit, MPSNNTrainingStyle style) {
  if (!unit.filter->gradient || unit.filter->style != style) return 0;
  size_t count = 0;
  for (const Callback& callback : callbacks(unit.filter->family->update())) {
    const bool gpu = style == MPSNNTrainingStyleUpdateDeviceGPU;
    const bool cpu = style == MPSNNTrainingStyleUpdateDeviceCPU;
    if ((gpu || cpu) &&
        [unit.filter->family->data_source() respondsToSelector:gpu ? callback.gpu : callback.cpu]) {
      ++count;
    }
  }
  return count;
}

void update_on_gpu(const Program& program, const Unit& unit, id<MTLCommandBuffer> buffer,
                   NSArray<MPSState*>* states) {
  const id source = unit.filter->family->data_source();
  for (const Callback& callback : callbacks(unit.filter->family->update())) {
    if (![source respondsToSelector:callback.gpu]) continue;
    const Where where{source, callback.gpu};
    MPSState* weights = exported_weights(program, unit, buffer, YES);
    std::map<MPSState*, NSUInteger> before;
    for (MPSState* state : distinct(states)) before[state] = [state readCount];
    MPSState* returned = nil;
    call_out([&] { returned = [callback.on_gpu(source, buffer, states, weights) retain]; });
    [returned autorelease];
    REQUIRE(returned == nil || [returned isKindOfClass:callback.result], update_state, where,
            "a %s", [NSStringFromClass([returned class]) UTF8String]);
    for (const auto& [state, count] : before) expect_count(state, count - 1, where);
    if (weights != nil && weights != returned) expect_count(weights, 0, where);
    if (returned == nil) continue;
    expect_count(returned, 1, where);
    const std::vector<MPSKernel*> kernels = kernels_of(program, source);
    keep(static_cast<States>(@[ returned ]), kernels.size());
    for (MPSKernel* kernel : kernels) callback.from_state(kernel, buffer, returned);
  }
}

std::function<void()> update_on_cpu(const std::shared_ptr<Program>& program, const Unit& unit,
                                    id<MTLCommandBuffer> buffer, NSArray<MPSState*>* states) {
  for (MPSState* state : distinct(states)) [state synchronizeOnCommandBuffer:buffer];
  MPSState* weights = exported_weights(*program, unit, buffer, NO);
  [weights synchronizeOnCommandBuffer:buffer];
  return [program, family = unit.filter->family, held = Strong<States>(states),
          weights = Strong<MPSState*>(weights)] {
    const id source = family->data_source();
    for (const Callback& callback : callbacks(family->update())) {
      if (![source respondsToSelector:callback.cpu]) continue;
      BOOL changed = NO;
      call_out([&] { changed = callback.on_cpu(source, held.get(), weights.get()); });
      if (!changed) continue;
      for (MPSKernel* kernel : kernels_of(*program, source)) callback.from_source(kernel);
    }
  };
}

void reload(const Program& program) {
  for (const Unit& unit : program.units) {
    if (!holds_weights(unit)) continue;
    for (const Callback& callback : callbacks(unit.filter->family->update())) {
      callback.from_source(unit.kernels[0].get());
    }
  }
}

}  // namespace emulated_metal
