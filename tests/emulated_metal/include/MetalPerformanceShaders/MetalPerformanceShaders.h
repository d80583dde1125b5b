// Emulated MetalPerformanceShaders: everything at once.
#pragma once
#import <MetalPerformanceShaders/MPSCNNConvolution.h>
#import <MetalPerformanceShaders/MPSCNNKernel.h>
#import <MetalPerformanceShaders/MPSCNNNeuron.h>
#import <MetalPerformanceShaders/MPSCNNNeuronType.h>
#import <MetalPerformanceShaders/MPSCNNPooling.h>
#import <MetalPerformanceShaders/MPSCNNSoftMax.h>
#import <MetalPerformanceShaders/MPSCommandBuffer.h>
#import <MetalPerformanceShaders/MPSCoreTypes.h>
#import <MetalPerformanceShaders/MPSImage.h>
#import <MetalPerformanceShaders/MPSKernel.h>
#import <MetalPerformanceShaders/MPSKeyedUnarchiver.h>
#import <MetalPerformanceShaders/MPSNNGradientState.h>
#import <MetalPerformanceShaders/MPSNeuralNetworkTypes.h>
#import <MetalPerformanceShaders/MPSState.h>
