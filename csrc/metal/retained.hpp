// The only place where Objective-C objects are retained and released: one owning pointer, one scope
// of an autorelease pool.
#pragma once

#import <Foundation/Foundation.h>

#include <utility>

namespace mpsgrad::metal {

// T is an Objective-C pointer; this class is the only owner of one in C++ code.
template <class T>
class Retained {
 public:
  Retained() = default;
  static Retained adopt(T object) { return Retained(object); }           // from alloc, new or copy
  static Retained share(T object) { return Retained([object retain]); }  // from anything else
  Retained(const Retained& other) : object_([other.object_ retain]) {}
  Retained(Retained&& other) noexcept : object_(std::exchange(other.object_, nil)) {}
  Retained& operator=(Retained other) noexcept { return std::swap(object_, other.object_), *this; }
  ~Retained() { [object_ release]; }
  T get() const { return object_; }
  explicit operator bool() const { return object_ != nil; }

 private:
  explicit Retained(T object) : object_(object) {}
  T object_ = nil;
};

// For results of callbacks, which the caller does not own.
template <class T>
T autoreleased(const Retained<T>& object) {
  return [[object.get() retain] autorelease];
}

// Drains on return and on throw; clang emits no cleanup for @autoreleasepool on the exception path.
class PoolScope {
 public:
  PoolScope() : pool_([[NSAutoreleasePool alloc] init]) {}
  ~PoolScope() { [pool_ drain]; }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  NSAutoreleasePool* pool_;
};

}  // namespace mpsgrad::metal
