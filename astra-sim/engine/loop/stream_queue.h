// The graphs that wait for one stream of a device, in order. Most streams of a large system stay
// empty: an empty queue owns no memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace astra_sim::engine {

struct LaneRef {
  std::uint32_t run;
  std::uint32_t lane;
};

class StreamQueue {
 public:
  std::size_t size() const { return items_.size() - first_; }
  bool empty() const { return size() == 0; }
  const LaneRef& front() const { return items_[first_]; }
  void push_back(LaneRef item) { items_.push_back(item); }
  void pop_front() {
    if (++first_ < items_.size() && 2 * first_ < items_.size()) return;
    items_.erase(items_.begin(), items_.begin() + first_);
    first_ = 0;
  }
  // Takes out what belongs to the run; true where it was at the front.
  bool remove(std::uint32_t run) {
    const auto begin = items_.begin() + first_;
    const auto entry =
        std::find_if(begin, items_.end(), [&](const LaneRef& ref) { return ref.run == run; });
    if (entry == items_.end()) return false;
    const bool head = entry == begin;
    items_.erase(entry);
    return head;
  }

 private:
  std::vector<LaneRef> items_;
  std::uint32_t first_ = 0;
};

}  // namespace astra_sim::engine
