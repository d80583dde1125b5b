// Kinds of loss and of reduction.
#pragma once
#import <MetalPerformanceShaders/MPSCoreTypes.h>

typedef NS_ENUM(uint32_t, MPSCNNLossType) {
  MPSCNNLossTypeMeanAbsoluteError = 0,
  MPSCNNLossTypeMeanSquaredError = 1,
  MPSCNNLossTypeSoftMaxCrossEntropy = 2,
  MPSCNNLossTypeSigmoidCrossEntropy = 3,
  MPSCNNLossTypeCategoricalCrossEntropy = 4,
  MPSCNNLossTypeHinge = 5,
  MPSCNNLossTypeHuber = 6,
  MPSCNNLossTypeCosineDistance = 7,
  MPSCNNLossTypeLog = 8,
  MPSCNNLossTypeKullbackLeiblerDivergence = 9,
  MPSCNNLossTypeCount = 10,
};

typedef NS_ENUM(int32_t, MPSCNNReductionType) {
  MPSCNNReductionTypeNone = 0,
  MPSCNNReductionTypeSum = 1,
  MPSCNNReductionTypeMean = 2,
  MPSCNNReductionTypeSumByNonZeroWeights = 3,
  MPSCNNReductionTypeCount = 4,
};
