// Activations, their gradient and the descriptor that names them.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>
#import <MetalPerformanceShaders/MPSCNNNeuronType.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSNNNeuronDescriptor : EmulatedObject <NSCopying, NSSecureCoding> {
 @public
  MPSCNNNeuronType type_;
  float a_, b_, c_;
  NSData* data_;
}
@property(readwrite, nonatomic) MPSCNNNeuronType neuronType;
@property(readwrite, nonatomic) float a;
@property(readwrite, nonatomic) float b;
@property(readwrite, nonatomic) float c;
@property(readwrite, nonatomic, nullable, retain) NSData* data;
- (instancetype)init NS_UNAVAILABLE;
+ (MPSNNNeuronDescriptor*)cnnNeuronDescriptorWithType:(MPSCNNNeuronType)neuronType;
+ (MPSNNNeuronDescriptor*)cnnNeuronDescriptorWithType:(MPSCNNNeuronType)neuronType a:(float)a;
+ (MPSNNNeuronDescriptor*)cnnNeuronDescriptorWithType:(MPSCNNNeuronType)neuronType
                                                    a:(float)a
                                                    b:(float)b;
+ (MPSNNNeuronDescriptor*)cnnNeuronDescriptorWithType:(MPSCNNNeuronType)neuronType
                                                    a:(float)a
                                                    b:(float)b
                                                    c:(float)c;
+ (MPSNNNeuronDescriptor*)cnnNeuronPReLUDescriptorWithData:(NSData*)data noCopy:(bool)noCopy;
@end

@interface MPSCNNNeuron : MPSCNNKernel
@property(readonly, nonatomic) MPSCNNNeuronType neuronType;
@property(readonly, nonatomic) float a;
@property(readonly, nonatomic) float b;
@property(readonly, nonatomic) float c;
@property(readonly, nonatomic, retain, nullable) NSData* data;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
              neuronDescriptor:(MPSNNNeuronDescriptor*)neuronDescriptor;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNNeuronGradient : MPSCNNGradientKernel
@property(readonly, nonatomic) MPSCNNNeuronType neuronType;
@property(readonly, nonatomic) float a;
@property(readonly, nonatomic) float b;
@property(readonly, nonatomic) float c;
@property(readonly, nonatomic, retain, nullable) NSData* data;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
              neuronDescriptor:(MPSNNNeuronDescriptor*)neuronDescriptor;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNNeuronLinear : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(float)a b:(float)b;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronReLU : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(float)a;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronPReLU : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(const float*)a count:(NSUInteger)count;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronSigmoid : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

@interface MPSCNNNeuronHardSigmoid : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(float)a b:(float)b;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronTanH : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(float)a b:(float)b;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronAbsolute : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

@interface MPSCNNNeuronSoftPlus : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(float)a b:(float)b;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronSoftSign : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

@interface MPSCNNNeuronELU : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(float)a;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronReLUN : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(float)a b:(float)b;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronPower : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(float)a b:(float)b c:(float)c;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronExponential : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(float)a b:(float)b c:(float)c;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronLogarithm : MPSCNNNeuron
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(float)a b:(float)b c:(float)c;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

NS_ASSUME_NONNULL_END
