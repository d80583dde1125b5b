// The root of every emulated class: it counts live objects and turns the dead into zombies.
#pragma once
#import <Foundation/Foundation.h>

namespace emulated_metal {
struct CommandBufferBody;
struct ImageBody;
struct KernelBody;
struct StateBody;
struct TextureDescriptorBody;
struct ImageDescriptorBody;
struct ResourceListBody;
struct ConvolutionDescriptorBody;
struct ArrayBody;
}  // namespace emulated_metal

// A message to a released object ends the process, an object still alive at exit fails the run.
@interface EmulatedObject : NSObject
@end
