// Kinds of activation.
#pragma once
#import <MetalPerformanceShaders/MPSNeuralNetworkTypes.h>

typedef NS_ENUM(int32_t, MPSCNNNeuronType) {
  MPSCNNNeuronTypeNone = 0,
  MPSCNNNeuronTypeReLU = 1,
  MPSCNNNeuronTypeLinear = 2,
  MPSCNNNeuronTypeSigmoid = 3,
  MPSCNNNeuronTypeHardSigmoid = 4,
  MPSCNNNeuronTypeTanH = 5,
  MPSCNNNeuronTypeAbsolute = 6,
  MPSCNNNeuronTypeSoftPlus = 7,
  MPSCNNNeuronTypeSoftSign = 8,
  MPSCNNNeuronTypeELU = 9,
  MPSCNNNeuronTypePReLU = 10,
  MPSCNNNeuronTypeReLUN = 11,
  MPSCNNNeuronTypePower = 12,
  MPSCNNNeuronTypeExponential = 13,
  MPSCNNNeuronTypeLogarithm = 14,
  MPSCNNNeuronTypeGeLU = 15,
  MPSCNNNeuronTypeCount = 16,
};
