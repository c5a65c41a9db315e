// Pages of KV in files, by their names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>

#include "base/types.h"

namespace llmsim {

// Files of one size each. Where they are bounded, a page that finds no room makes some: the least
// recently used ones go until nine tenths are taken (SGLang 0.5.23:
// mem_cache/storage/file/lru_file_evictor.py).
class PageStorage {
 public:
  // A capacity of 0 bytes is no bound.
  PageStorage(std::int64_t capacity_bytes, std::int64_t page_bytes)
      : capacity_(capacity_bytes), page_bytes_(page_bytes) {}

  bool holds(Key key) const { return used_.contains(key); }
  // Whether it is there, which counts as used then.
  bool read(Key key) {
    const auto found = used_.find(key);
    if (found == used_.end()) return false;
    use(found);
    return true;
  }
  // Whether it is there behind this: a page that is larger than the storage is not.
  bool write(Key key) {
    if (read(key)) return true;
    if (capacity_ > 0 && !make_room()) return false;
    use(used_.emplace(key, 0).first);
    return true;
  }
  // Pages that have left it.
  std::int64_t erased() const { return erased_; }

 private:
  static constexpr double kWatermark = 0.9;

  std::int64_t bytes() const { return static_cast<std::int64_t>(used_.size()) * page_bytes_; }
  void use(std::unordered_map<Key, std::int64_t>::iterator page) {
    if (page->second != 0) by_use_.erase(page->second);
    page->second = ++uses_;
    by_use_.emplace(uses_, page->first);
  }
  bool make_room() {
    if (page_bytes_ > capacity_) return false;
    if (bytes() + page_bytes_ <= capacity_) return true;
    const auto watermark = static_cast<std::int64_t>(static_cast<double>(capacity_) * kWatermark);
    const std::int64_t target = std::max<std::int64_t>(0, watermark - page_bytes_);
    for (; bytes() > target; ++erased_) {
      used_.erase(by_use_.begin()->second);
      by_use_.erase(by_use_.begin());
    }
    return true;
  }

  std::int64_t capacity_, page_bytes_;
  std::unordered_map<Key, std::int64_t> used_;  // by key: its last use
  std::map<std::int64_t, Key> by_use_;
  std::int64_t uses_ = 0, erased_ = 0;
};

}  // namespace llmsim
