// What Apple asks data sources for while it encodes a graph, and after.
#pragma once

#import <Foundation/Foundation.h>
#import <MetalPerformanceShaders/MetalPerformanceShaders.h>
#import <objc/runtime.h>

namespace mpsgrad::metal {

// Called on any thread; nothing is thrown.
class SourceUpdates {
 public:
  enum class What { Weights, Statistics };  // gamma and beta are weights

  virtual ~SourceUpdates() = default;
  virtual bool has(What what, bool on_completion) const = 0;
  // The state with new numbers, autoreleased; nil if there are none. `source` may be nil.
  virtual MPSState* now(What what, NSArray<MPSState*>* states, MPSState* source) = 0;
  // Whether to load the source again.
  virtual bool on_completion(What what, NSArray<MPSState*>* states, MPSState* source) = 0;
};

}  // namespace mpsgrad::metal
