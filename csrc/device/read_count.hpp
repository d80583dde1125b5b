// The read count of a temporary image, state, vector or matrix, and the command buffer it belongs
// to. One ledger for all of them; nothing here is mirrored for ordinary objects, which have no
// count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/errors.hpp"
#include "base/types.hpp"
#include "device/command_buffer.hpp"

namespace mpsgrad {

class ReadCount {
 public:
  ReadCount(const std::shared_ptr<CommandBuffer>& owner, const char* class_name)
      : owner_(owner), owner_serial_(owner->serial()), class_name_(class_name) {}

  Index value() const { return value_; }
  std::shared_ptr<CommandBuffer> owner() const { return owner_.lock(); }

  // The index of this count among the entries of the Reads that is being filled, if it is there,
  // which Reads checks. So one Reads is filled before the next is begun.
  std::size_t place = 0;

  // Throws unless the object can be read or written by work on `command_buffer`.
  void require_usable(const char* who, const CommandBuffer& command_buffer) const {
    require<ReadCountError>(
        value_ > 0, who, ": this ", class_name_,
        " has read count 0, its contents are gone; set read_count to the number of reads before "
        "the first one");
    require(owner_serial_ == command_buffer.serial(), who, ": this ", class_name_,
            " belongs to another command buffer");
  }

  // Throws before anything is changed if the count is 0 or would fall below it.
  void require_addable(Index amount) const {
    require<ReadCountError>(value_ > 0, class_name_,
                            ": read count is 0 and cannot be changed any more");
    require<ReadCountError>(amount >= -value_, class_name_, ": cannot lower read count ", value_,
                            " by ", std::uint64_t{0} - static_cast<std::uint64_t>(amount));
    require(amount <= kUnlimited - value_, class_name_, ": cannot raise read count ", value_,
            " by ", amount);
  }

  void set(Index value) {
    require(value >= 0, class_name_, ": read_count must not be negative, got ", value);
    require_addable(value - value_);
    value_ = value;
  }

  void add(Index amount) {
    require_addable(amount);
    value_ += amount;
  }

 private:
  Index value_ = 1;
  std::weak_ptr<CommandBuffer> owner_;
  std::uint64_t owner_serial_;  // asked at every encode, where a lock would cost more than the rest
  const char* class_name_;
};

}  // namespace mpsgrad
