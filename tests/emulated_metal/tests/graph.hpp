// What the tests of graphs share: handles, a data source that trains, and graphs run by handle.
#pragma once
#include <string>

#include "harness.hpp"

@interface TestHandle : NSObject <MPSHandle> {
 @public
  NSString* name_;
}
@end

// Weights of a convolution. Each way to break the duties of an update is a mode.
@interface GraphSource : NSObject <MPSCNNConvolutionDataSource> {
 @public
  std::vector<float>*weights_, *biases_;
  MPSCNNConvolutionDescriptor* descriptor_;
  MPSNNOptimizerStochasticGradientDescent* optimizer_;
  int mode_, loads_, purges_, updates_;
  BOOL refuses_;
}
@end
enum { kStep, kReturnSource, kLowerNothing, kReturnNothing, kWrongClass, kLowerSourceOnly };

namespace tests {

TestHandle* handle(NSString* name);
MPSNNImageNode* node(NSString* name);
std::string name_of(id handle);
std::vector<std::string> names_of(NSArray* handles);
// 1 x 1 convolutions; the learning rate is 0.5.
GraphSource* graph_source(NSUInteger in, NSUInteger out, std::vector<float> weights,
                          std::vector<float> biases);
// Exported, readable by the CPU and named.
void expose(MPSNNImageNode* image, NSString* name);
MPSNNGraph* graph_of(NSArray<MPSNNImageNode*>* results, bool needed = true);
MPSCNNLossLabels* graph_labels(const Values& values);
MPSCNNLossDescriptor* squared_error();

using Inputs = std::map<std::string, NSArray<MPSImage*>*>;
struct Outputs {
  NSArray<MPSImage*>* result = nil;
  std::map<std::string, NSArray<MPSImage*>*> images;
};
// Encodes with the inputs in the graph's own order, without committing.
Outputs encode(MPSNNGraph* graph, id<MTLCommandBuffer> buffer, const Inputs& inputs,
               NSArray<MPSState*>* labels = nil);
// The same with a command buffer of its own, completed and synchronized.
Outputs run(MPSNNGraph* graph, const Inputs& inputs, NSArray<MPSState*>* labels = nil);

}  // namespace tests
