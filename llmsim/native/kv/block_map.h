// Open-addressing map from a block key to the first cached block that has it.
#pragma once

#include <cstddef>
#include <vector>

#include "base/types.h"

namespace llmsim {

// Keys are never 0. Linear probing with backward-shift deletion, so that look-ups stay short
// however often blocks are evicted; grows by doubling at 60 % load. Never iterated: order of a hash
// container must not reach a result.
class BlockMap {
 public:
  BlockId find(Key key) const {
    if (size_ == 0) return 0;
    for (std::size_t i = home(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].block;
      if (slots_[i].key == 0) return 0;
    }
  }

  // Inserts, or replaces the block of an existing key.
  void assign(Key key, BlockId block) {
    if ((size_ + 1) * 5 > slots_.size() * 3) grow();
    std::size_t i = home(key);
    while (slots_[i].key != 0 && slots_[i].key != key) i = (i + 1) & mask_;
    if (slots_[i].key == 0) ++size_;
    slots_[i] = {key, block};
  }

  // Removing an absent key is safe.
  void erase(Key key) {
    if (size_ == 0) return;
    std::size_t i = home(key);
    while (slots_[i].key != key) {
      if (slots_[i].key == 0) return;
      i = (i + 1) & mask_;
    }
    --size_;
    for (std::size_t j = i;;) {
      j = (j + 1) & mask_;
      if (slots_[j].key == 0) break;
      const std::size_t h = home(slots_[j].key);
      const bool reachable = i <= j ? (h <= i || h > j) : (h <= i && h > j);
      if (reachable) {
        slots_[i] = slots_[j];
        i = j;
      }
    }
    slots_[i] = {};
  }

  std::size_t size() const { return size_; }

 private:
  struct Slot {
    Key key = 0;
    BlockId block = 0;
  };

  std::size_t home(Key key) const {
    key ^= key >> 32;
    key *= 0x9E3779B97F4A7C15ull;  // 2^64 / golden ratio: spreads dense ids over the high bits
    return (key >> 20) & mask_;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : slots_.size() * 2);
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    size_ = 0;
    for (const Slot& slot : old)
      if (slot.key != 0) assign(slot.key, slot.block);
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  std::size_t size_ = 0;
};

}  // namespace llmsim
