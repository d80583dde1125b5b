// Runs one example or one offence, or lists them.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "harness.hpp"

#import <objc/runtime.h>

namespace tests {

std::map<std::string, Body>& examples() {
  static std::map<std::string, Body> all;
  return all;
}
std::map<std::string, std::vector<Body>>& offences() {
  static std::map<std::string, std::vector<Body>> all;
  return all;
}
RegisterExample::RegisterExample(const char* name, Body body) {
  if (!examples().emplace(name, std::move(body)).second) fail(name, 0, "registered twice");
}
RegisterOffence::RegisterOffence(const char* trap, Body body) {
  offences()[trap].push_back(std::move(body));
}

void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::_Exit(1);
}

id<MTLDevice> device(int index) {
  if (index == 0) return [MTLCreateSystemDefaultDevice() autorelease];
  emulated_metal_set_option("devices", index + 1);
  return [[MTLCopyAllDevices() autorelease] objectAtIndex:static_cast<NSUInteger>(index)];
}
id<MTLCommandQueue> queue() { return [[device() newCommandQueue] autorelease]; }
MPSImageDescriptor* descriptor(NSUInteger width, NSUInteger height, NSUInteger channels,
                               MPSImageFeatureChannelFormat format) {
  return [MPSImageDescriptor imageDescriptorWithChannelFormat:format
                                                        width:width
                                                       height:height
                                              featureChannels:channels];
}
MPSImage* empty(NSUInteger width, NSUInteger height, NSUInteger channels,
                MPSImageFeatureChannelFormat format, int device_index) {
  return
      [[[MPSImage alloc] initWithDevice:device(device_index)
                        imageDescriptor:descriptor(width, height, channels, format)] autorelease];
}
MPSImage* image(const Values& values) {
  MPSImage* result = empty(values.width, values.height, values.channels);
  write(result, values.data);
  return result;
}
MPSImage* row(std::initializer_list<float> values) {
  return image({values.size(), 1, 1, std::vector<float>(values)});
}
MPSImage* channels(std::initializer_list<float> values) {
  return image({1, 1, values.size(), std::vector<float>(values)});
}
MPSTemporaryImage* temporary(id<MTLCommandBuffer> buffer, NSUInteger width, NSUInteger height,
                             NSUInteger channels) {
  return [MPSTemporaryImage temporaryImageWithCommandBuffer:buffer
                                            imageDescriptor:descriptor(width, height, channels)];
}
void write(MPSImage* target, const std::vector<float>& values) {
  const NSUInteger count = [target width] * [target height] * [target featureChannels];
  if (values.size() != count) fail("write", 0, "wrong number of values");
  [target writeBytes:values.data()
          dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
          imageIndex:0];
}
std::vector<float> read(MPSImage* source) {
  std::vector<float> values([source width] * [source height] * [source featureChannels]);
  [source readBytes:values.data()
         dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
         imageIndex:0];
  return values;
}
void finish(id<MTLCommandBuffer> buffer, std::initializer_list<MPSImage*> results) {
  for (MPSImage* result : results) [result synchronizeOnCommandBuffer:buffer];
  [buffer commit];
  [buffer waitUntilCompleted];
}

bool close(float actual, float expected, float tolerance) {
  if (std::isnan(expected)) return std::isnan(actual);
  return std::fabs(actual - expected) <= tolerance * std::fmax(1.0F, std::fabs(expected));
}
void expect_values(const char* file, int line, const std::vector<float>& actual,
                   const std::vector<float>& expected, float tolerance) {
  bool equal = actual.size() == expected.size();
  for (size_t i = 0; equal && i < actual.size(); ++i) {
    equal = close(actual[i], expected[i], tolerance);
  }
  if (equal) return;
  std::string text = "got";
  for (const float value : actual) text += " " + std::to_string(value);
  text += ", expected";
  for (const float value : expected) text += " " + std::to_string(value);
  fail(file, line, text);
}

}  // namespace tests

int main(int count, char** arguments) {
  using namespace tests;
  const std::string command = count > 1 ? arguments[1] : "";
  if (command == "list") {
    for (const auto& [name, body] : examples()) std::printf("example %s\n", name.c_str());
    for (int trap = 0; trap < emulated_metal_trap_count(); ++trap) {
      const char* name = emulated_metal_trap_name(trap);
      std::printf("trap %s %zu\n", name, offences()[name].size());
    }
    return 0;
  }
  if (command == "example" && count == 3) {
    const auto found = examples().find(arguments[2]);
    if (found == examples().end()) fail(arguments[2], 0, "no such example");
    NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
    found->second();
    [pool release];
    emulated_metal_wait_idle();
    std::puts("done");
    return 0;
  }
  if (command == "trap" && count == 4) {
    const std::vector<Body>& bodies = offences()[arguments[2]];
    const size_t index = std::strtoul(arguments[3], nullptr, 10);
    if (index >= bodies.size()) fail(arguments[2], 0, "no such offence");
    NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
    bodies[index]();
    [pool release];
    std::puts("survived");
    return 0;
  }
  if (command == "responds") {  // "- Class selector" a line; prints those without a method
    char line[512];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
      char sign = 0, owner[128], selector[360];
      if (std::sscanf(line, "%c %127s %359s", &sign, owner, selector) != 3) continue;
      const Class found = objc_lookUpClass(owner);
      const SEL name = sel_registerName(selector);
      if (found == Nil || (sign == '-' ? ![found instancesRespondToSelector:name]
                                       : ![found respondsToSelector:name])) {
        std::printf("%c[%s %s]\n", sign, owner, selector);
      }
    }
    return 0;
  }
  std::fprintf(stderr, "usage: emulator_tests list | example NAME | trap NAME INDEX\n");
  return 2;
}
