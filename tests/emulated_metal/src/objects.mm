// Traps, options, and the census of emulated objects.
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <unordered_map>

#include "internal.hpp"

#import <objc/runtime.h>

namespace emulated_metal {
namespace {

struct TrapText {
  const char* name;
  const char* text;
};
constexpr TrapText kTraps[] = {
#define EMULATED_METAL_TEXT(name, text) {#name, text},
    EMULATED_METAL_TRAPS(EMULATED_METAL_TEXT)
#undef EMULATED_METAL_TEXT
};

struct Options {
  std::mutex mutex;
  std::map<std::string, long> values{{"devices", 1},
                                     {"unified_memory", 0},
                                     {"delay_us", 100},
                                     {"stagger_us", 0},
                                     {"fail_next", 0},
                                     {"fail_after", 0},
                                     {"leaks", 2},
                                     {"callback_thread", 1},
                                     {"padding_rounds_down", 0},
                                     {"shared_source_reads", 2},
                                     {"state_encode_steps", 1},
                                     {"batch_gradients_late", 0},
                                     {"graph_pieces", 1}};
  Options() {
    for (auto& [name, value] : values) {
      std::string variable = "EMULATED_METAL_";
      for (const char letter : name) variable += static_cast<char>(std::toupper(letter));
      if (const char* text = std::getenv(variable.c_str())) value = std::strtol(text, nullptr, 10);
    }
  }
};

Options& options() {
  static auto* instance = new Options;  // outlives every static destructor
  return *instance;
}

constexpr size_t kQuarantine = 100000;  // dead objects whose memory is kept, to recognize them

struct Census {
  std::mutex mutex;
  std::unordered_map<const void*, const char*> alive, dead;
  std::deque<id> quarantine;
};

Census& census() {
  static auto* instance = new Census;
  return *instance;
}

void report_at_exit() {
  const long mode = option("leaks");
  if (mode == 0) return;
  emulated_metal_wait_idle();
  if (emulated_metal_report_leaks() > 0 && mode == 2) _Exit(97);
}

}  // namespace

long option(const char* name) {
  std::lock_guard lock(options().mutex);
  return options().values.at(name);
}

void spring(Trap trap, const Where& where) { spring(trap, where, "%s", ""); }

void spring(Trap trap, const Where& where, const char* detail, ...) {
  std::va_list arguments;
  va_start(arguments, detail);
  char extra[512];
  std::vsnprintf(extra, sizeof extra, detail, arguments);
  va_end(arguments);
  std::string subject;
  if (where.function != nullptr) {
    subject = where.function;
  } else {
    const bool is_class = where.object != nil && object_getClass(where.object) != Nil &&
                          class_isMetaClass(object_getClass(where.object));
    const Class owner =
        is_class ? reinterpret_cast<Class>(where.object) : object_getClass(where.object);
    subject = std::string(is_class ? "+[" : "-[") + class_getName(owner) + " " +
              sel_getName(where.selector) + "]";
  }
  const TrapText& text = kTraps[static_cast<int>(trap)];
  std::fprintf(stderr, "%s: failed assertion '%s'%s%s (trap %s)\n", subject.c_str(), text.text,
               extra[0] != 0 ? ": " : "", extra, text.name);
  std::fflush(stderr);
  std::abort();
}

}  // namespace emulated_metal

using namespace emulated_metal;

// Stands in for every released object. Whatever is sent to it is an error of the sender.
@interface EmulatedZombie : NSProxy
@end

@implementation EmulatedZombie
- (void)springFor:(SEL)selector {
  std::string name = "?";
  {
    std::lock_guard lock(census().mutex);
    const auto found = census().dead.find(self);
    if (found != census().dead.end()) name = found->second;
  }
  spring(Trap::message_to_deallocated, Where{nil, nullptr, "message send"}, "-[%s %s]",
         name.c_str(), sel_getName(selector));
}
- (NSMethodSignature*)methodSignatureForSelector:(SEL)selector {
  [self springFor:selector];
  return nil;
}
- (void)forwardInvocation:(NSInvocation*)invocation {
  [self springFor:[invocation selector]];
}
#define ZOMBIE(type, name) \
  -(type)name {            \
    [self springFor:_cmd]; \
    std::abort();          \
  }
ZOMBIE(id, retain)
ZOMBIE(oneway void, release)
ZOMBIE(id, autorelease)
ZOMBIE(NSUInteger, retainCount)
ZOMBIE(Class, class)
ZOMBIE(Class, superclass)
ZOMBIE(NSUInteger, hash)
ZOMBIE(id, self)
ZOMBIE(BOOL, isProxy)
ZOMBIE(NSZone*, zone)
ZOMBIE(NSString*, description)
#define ZOMBIE_WITH(type, name, argument) \
  -(type)name : (argument)value {         \
    (void)value;                          \
    [self springFor:_cmd];                \
    std::abort();                         \
  }
ZOMBIE_WITH(BOOL, isEqual, id)
ZOMBIE_WITH(BOOL, isKindOfClass, Class)
ZOMBIE_WITH(BOOL, isMemberOfClass, Class)
ZOMBIE_WITH(BOOL, respondsToSelector, SEL)
ZOMBIE_WITH(BOOL, conformsToProtocol, Protocol*)
ZOMBIE_WITH(id, performSelector, SEL)
@end

@implementation EmulatedObject
+ (id)allocWithZone:(NSZone*)zone {
  static const bool registered = [] {
    std::atexit(report_at_exit);
    return true;
  }();
  (void)registered;
  const id object = [super allocWithZone:zone];
  std::lock_guard lock(census().mutex);
  census().dead.erase(object);
  census().alive[object] = class_getName(self);
  return object;
}
// Keeps the memory as a zombie; the oldest zombies are freed for good.
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wobjc-missing-super-calls"
- (void)dealloc {
  id evicted = nil;
  {
    std::lock_guard lock(census().mutex);
    census().alive.erase(self);
    census().dead[self] = class_getName(object_getClass(self));
    census().quarantine.push_back(self);
    if (census().quarantine.size() > kQuarantine) {
      evicted = census().quarantine.front();
      census().quarantine.pop_front();
      census().dead.erase(evicted);
    }
  }
  object_setClass(self, [EmulatedZombie class]);
  if (evicted != nil) {
    object_setClass(evicted, [NSObject class]);
    NSDeallocateObject(evicted);
  }
}
@end
#pragma clang diagnostic pop

int emulated_metal_set_option(const char* name, long value) {
  std::lock_guard lock(options().mutex);
  const auto found = options().values.find(name);
  if (found == options().values.end()) return -1;
  found->second = value;
  return 0;
}

long emulated_metal_get_option(const char* name) { return option(name); }

long emulated_metal_live_objects(void) {
  std::lock_guard lock(census().mutex);
  return static_cast<long>(census().alive.size());
}

long emulated_metal_report_leaks(void) {
  std::map<std::string, long> counts;
  {
    std::lock_guard lock(census().mutex);
    for (const auto& [object, name] : census().alive) ++counts[name];
  }
  long total = 0;
  for (const auto& [name, count] : counts) {
    std::fprintf(stderr, "emulated_metal: %ld leaked %s\n", count, name.c_str());
    total += count;
  }
  return total;
}

int emulated_metal_trap_count(void) { return static_cast<int>(std::size(kTraps)); }
const char* emulated_metal_trap_name(int index) { return kTraps[index].name; }
const char* emulated_metal_trap_text(int index) { return kTraps[index].text; }
