// When the CPU may look at a buffer.
#include "device/buffer.hpp"

#include "base/errors.hpp"
#include "base/warnings.hpp"

namespace mpsgrad {

void Buffer::expect_synchronize(std::string what) {
  name_ = std::move(what);
  wants_synchronize_ = true;
}

std::byte* Buffer::for_reading() {
  uses_.require_readable(name_);
  std::byte* bytes = contents();
  require<std::runtime_error>(
      bytes != nullptr, name_,
      ": the contents are private to the device and cannot be read by the CPU");
  if (wants_synchronize_ && !synchronized_.exchange(true)) {
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true)) {
      warn(WarningKind::Runtime,
           text(name_,
                " is read without synchronize(command_buffer) after the kernel that wrote it; this "
                "works on "
                "shared memory and returns stale data on a GPU with memory of its own"));
    }
  }
  return bytes;
}

std::byte* Buffer::for_writing() {
  uses_.require_writable(name_);
  std::byte* bytes = contents();
  require<std::runtime_error>(
      bytes != nullptr, name_,
      ": the contents are private to the device and cannot be written by the CPU");
  lent_ = true;
  return bytes;
}

void Buffer::note_use(const std::shared_ptr<Work>& work, bool writes) {
  if (lent_ && synchronized_) {
    publish();
  }
  uses_.add(work, writes);
  if (writes) {
    synchronized_ = false;
  }
}

}  // namespace mpsgrad
