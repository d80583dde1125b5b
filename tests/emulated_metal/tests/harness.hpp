// Test registration, and shorthand for images of the emulated framework.
#pragma once
#import <MetalPerformanceShaders/MetalPerformanceShaders.h>
#import <emulated_metal/emulated_metal.h>

#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace tests {

using Body = std::function<void()>;
std::map<std::string, Body>& examples();               // must return
std::map<std::string, std::vector<Body>>& offences();  // must die, by trap name

struct RegisterExample {
  RegisterExample(const char* name, Body body);
};
struct RegisterOffence {
  RegisterOffence(const char* trap, Body body);
};

[[noreturn]] void fail(const char* file, int line, const std::string& what);

// Shape and values of an image, row by row, channels innermost.
struct Values {
  NSUInteger width, height, channels;
  std::vector<float> data;
};

id<MTLDevice> device(int index = 0);  // autoreleased
id<MTLCommandQueue> queue();          // autoreleased, of device 0
MPSImageDescriptor* descriptor(
    NSUInteger width, NSUInteger height, NSUInteger channels,
    MPSImageFeatureChannelFormat format = MPSImageFeatureChannelFormatFloat32);
MPSImage* empty(NSUInteger width, NSUInteger height, NSUInteger channels,
                MPSImageFeatureChannelFormat format = MPSImageFeatureChannelFormatFloat32,
                int device_index = 0);
MPSImage* image(const Values& values);
MPSImage* row(std::initializer_list<float> values);       // one line, one channel
MPSImage* channels(std::initializer_list<float> values);  // one pixel
MPSTemporaryImage* temporary(id<MTLCommandBuffer> buffer, NSUInteger width, NSUInteger height,
                             NSUInteger channels);
void write(MPSImage* image, const std::vector<float>& values);  // float32 only
std::vector<float> read(MPSImage* image);                       // float32 only, as the CPU sees it
void finish(id<MTLCommandBuffer> buffer, std::initializer_list<MPSImage*> results = {});

bool close(float actual, float expected, float tolerance);
void expect_values(const char* file, int line, const std::vector<float>& actual,
                   const std::vector<float>& expected, float tolerance);

}  // namespace tests

#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
// An example that must hold.
#define EXAMPLE(name)                                                           \
  static void example_##name();                                                 \
  static const ::tests::RegisterExample register_##name(#name, example_##name); \
  static void example_##name()
// A misuse that must end the process with that trap. Several may share a trap.
#define OFFENCE(trap) OFFENCE_(trap, __COUNTER__)
#define OFFENCE_(trap, number)                                              \
  static void CONCAT(offence_##trap##_, number)();                          \
  static const ::tests::RegisterOffence CONCAT(register_##trap##_, number)( \
      #trap, CONCAT(offence_##trap##_, number));                            \
  static void CONCAT(offence_##trap##_, number)()
#define EXPECT(condition)                                            \
  do {                                                               \
    if (!(condition)) ::tests::fail(__FILE__, __LINE__, #condition); \
  } while (false)
#define EXPECT_VALUES(actual, ...) \
  ::tests::expect_values(__FILE__, __LINE__, actual, std::vector<float> __VA_ARGS__, 1e-5F)
