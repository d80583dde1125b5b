// Pieces shared by the loss kernels: parameters, accessors, and encodes that take labels.
#pragma once
#include "loss.hpp"

namespace emulated_metal {

struct LossParams : ParamsOf<LossParams> {
  LossFunction function;
  bool label_gradients = false;
  void fields(Fields& f) override {
    function.fields(f);
    f("label_gradients", label_gradients);
  }
};

// Fills loss and gradient of one image, before weights.
using Elements =
    std::function<void(const Tensor& y, const Tensor& t, Tensor& loss, Tensor& gradient)>;

void check_geometry(const KernelBody& kernel, const Where& where);
void add_to(Reduced& total, const LossFunction& f, const Tensor& loss, const Tensor* weights);
void store_losses(const LossFunction& f, const std::vector<Tensor>& losses,
                  const std::vector<const Tensor*>& weights, const std::vector<View>& results);
void encode_with_labels(const KernelBody& kernel, const LossFunction& f, const Call& call,
                        NSArray<MPSCNNLossLabels*>* labels, const Elements& elements,
                        const Where& where);
NSArray<MPSImage*>* create_gradients(MPSCNNKernel* kernel, id<MTLCommandBuffer> command_buffer,
                                     NSArray<MPSImage*>* sources, const Where& where);

}  // namespace emulated_metal

#define READ_LOSS(type, getter, member)             \
  -(type)getter {                                   \
    return body_->as<LossParams>().function.member; \
  }
#define READ_WRITE_LOSS(type, getter, setter, member) \
  READ_LOSS(type, getter, member)                     \
  -(void)setter : (type)value {                       \
    body_->as<LossParams>().function.member = value;  \
  }
#define LOSS_READ_ONLY                                     \
  READ_LOSS(MPSCNNLossType, lossType, type)                \
  READ_LOSS(MPSCNNReductionType, reductionType, reduction) \
  READ_LOSS(BOOL, reduceAcrossBatch, across_batch)         \
  READ_LOSS(NSUInteger, numberOfClasses, classes)

// The four encodes of the kernels whose labels are a state.
#define LABEL_ENCODES(function)                                                                  \
  -(void)encodeToCommandBuffer : (id<MTLCommandBuffer>)commandBuffer sourceImage                 \
      : (MPSImage*)sourceImage labels : (MPSCNNLossLabels*)labels destinationImage               \
      : (MPSImage*)destinationImage {                                                            \
    encode_with_labels(*body_, function,                                                         \
                       {commandBuffer, {single(sourceImage)}, single(destinationImage)},         \
                       single(labels), [self elements], HERE);                                   \
  }                                                                                              \
  -(MPSImage*)encodeToCommandBuffer : (id<MTLCommandBuffer>)commandBuffer sourceImage            \
      : (MPSImage*)sourceImage labels : (MPSCNNLossLabels*)labels {                              \
    NSArray* gradients = create_gradients(self, commandBuffer, single(sourceImage), HERE);       \
    encode_with_labels(*body_, function, {commandBuffer, {single(sourceImage)}, gradients},      \
                       single(labels), [self elements], HERE);                                   \
    return [gradients objectAtIndex:0];                                                          \
  }                                                                                              \
  -(void)encodeBatchToCommandBuffer : (id<MTLCommandBuffer>)commandBuffer sourceImages           \
      : (MPSImageBatch*)sourceImage labels : (MPSCNNLossLabelsBatch*)labels destinationImages    \
      : (MPSImageBatch*)destinationImage {                                                       \
    encode_with_labels(*body_, function,                                                         \
                       {commandBuffer, {sourceImage}, destinationImage, nil, nil, true}, labels, \
                       [self elements], HERE);                                                   \
  }                                                                                              \
  -(MPSImageBatch*)encodeBatchToCommandBuffer : (id<MTLCommandBuffer>)commandBuffer sourceImages \
      : (MPSImageBatch*)sourceImage labels : (MPSCNNLossLabelsBatch*)labels {                    \
    NSArray* gradients = create_gradients(self, commandBuffer, sourceImage, HERE);               \
    encode_with_labels(*body_, function,                                                         \
                       {commandBuffer, {sourceImage}, gradients, nil, nil, true}, labels,        \
                       [self elements], HERE);                                                   \
    return gradients;                                                                            \
  }
