// TimeBuckets: pending events by time, as a radix heap; no comparison of times, and one copy each
// in lock-step traffic.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/base/types.h"

namespace astra_sim::engine {

// Time only goes forward: nothing is pushed before the time of the last batch. Bucket k > 0 holds
// the events whose time differs from that time in bit k - 1 and in no higher one; the first
// non-empty bucket holds the earliest, and taking them spreads the rest of it over lower buckets.
// Equal times always share a bucket, in the order they were pushed, so a batch is everything
// pending for one time, first in first out; what is pushed for that same time while it is served
// forms the next batch (the next delta cycle).
template <class Event>
class TimeBuckets {
 public:
  // Needs time >= the time of the last batch.
  void push(model::Ps time, const Event& event) {
    if (time == last_) {
      current_.push_back(event);
      return;
    }
    if (filled_ == 0 || time < next_) next_ = time;
    place({time, event});
  }

  bool empty() const { return current_.empty() && filled_ == 0; }

  // Needs !empty(). Does not commit: earlier events may still be pushed.
  model::Ps next_time() const {
    if (!current_.empty()) return last_;
    if (next_ == kUnknown) {
      const std::vector<Item>& first = buckets_[first_filled()];
      next_ = first[0].time;
      for (const Item& item : first) next_ = item.time < next_ ? item.time : next_;
    }
    return next_;
  }

  // Needs !empty(). The batch may be changed and stays valid until the next pop, also while events
  // are pushed.
  std::vector<Event>& pop() {
    batch_.clear();
    if (!current_.empty()) {
      std::swap(batch_, current_);
      return batch_;
    }
    last_ = next_time();
    next_ = kUnknown;
    const std::size_t first = first_filled();
    filled_ &= filled_ - 1;
    for (const Item& item : buckets_[first]) {
      if (item.time == last_) {
        batch_.push_back(item.event);
      } else {
        place(item);  // into a lower bucket
      }
    }
    buckets_[first].clear();
    return batch_;
  }

  // Takes out what `unwanted(event)` is true for; the rest keeps its order. Visits every pending
  // event.
  template <class Test>
  void remove_if(const Test& unwanted) {
    std::erase_if(current_, unwanted);
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      std::erase_if(buckets_[bucket], [&](const Item& item) { return unwanted(item.event); });
      if (buckets_[bucket].empty()) filled_ &= ~(std::uint64_t{1} << bucket);
    }
    next_ = kUnknown;
  }

 private:
  struct Item {
    model::Ps time;
    Event event;
  };
  static constexpr model::Ps kUnknown = -1;

  std::size_t first_filled() const { return static_cast<std::size_t>(std::countr_zero(filled_)); }
  void place(const Item& item) {
    const auto difference = static_cast<std::uint64_t>(item.time ^ last_);
    const auto bucket = static_cast<std::size_t>(63 - std::countl_zero(difference));
    buckets_[bucket].push_back(item);
    filled_ |= std::uint64_t{1} << bucket;
  }

  std::array<std::vector<Item>, 64> buckets_;
  std::uint64_t filled_ = 0;    // bit k: bucket k is not empty
  std::vector<Event> current_;  // for the time of the last batch
  std::vector<Event> batch_;
  model::Ps last_ = 0;
  mutable model::Ps next_ = kUnknown;  // earliest time in the buckets, if known
};

}  // namespace astra_sim::engine
