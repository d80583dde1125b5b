// What a forward kernel tells its gradient kernel.
#pragma once
#import <MetalPerformanceShaders/MPSState.h>

@interface MPSNNGradientState : MPSState
@end
typedef NSArray<MPSNNGradientState*> MPSNNGradientStateBatch;

@interface MPSNNBinaryGradientState : MPSState
@end
typedef NSArray<MPSNNBinaryGradientState*> MPSNNBinaryGradientStateBatch;

@interface MPSNNMultiaryGradientState : MPSState
@end
typedef NSArray<MPSNNMultiaryGradientState*> MPSNNMultiaryGradientStateBatch;
