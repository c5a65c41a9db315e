// When an NPU has an event in the global queue, and what has joined each of these events.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "strict/base/events.h"

namespace astra_sim::strict {

struct PendingTime {
  Ns time;
  EventList joined;
};

// By time, without two that are equal. An NPU mostly waits for one or two, which lie here; more of
// them lie elsewhere.
class alignas(64) PendingTimes {
 public:
  bool empty() const { return first_ == end_; }
  PendingTime& front() { return all()[first_]; }
  PendingTime& back() { return all()[end_ - 1]; }

  // Needs a time after the last one.
  void push_back(Ns time) {
    if (end_ < kFew) {
      few_[end_++] = {time, {}};
    } else {
      push_beyond(time);
    }
  }

  void pop_front() {
    if (++first_ == end_) {
      first_ = end_ = 0;
      more_.clear();
    }
  }

  // The first one that is not before `time`. Needs a last one that is not.
  PendingTime* find(Ns time) {
    return std::lower_bound(all() + first_, all() + end_, time,
                            [](const PendingTime& one, Ns at) { return one.time < at; });
  }

  // Needs a place of find(`time`).
  void insert(const PendingTime* place, Ns time) {
    const auto later = all() + end_ - place;
    push_back(time);
    PendingTime* const end = all() + end_;
    std::rotate(end - 1 - later, end - 1, end);
  }

 private:
  static constexpr std::uint32_t kFew = 2;

  PendingTime* all() { return end_ <= kFew ? few_ : more_.data(); }

  // Those that have passed give their places up, at the latest when they are half of all.
  [[gnu::noinline]] void push_beyond(Ns time) {
    if (end_ == kFew) more_.assign(few_, few_ + kFew);
    more_.push_back({time, {}});
    if (first_ > 0 && 2 * first_ >= end_) {
      more_.erase(more_.begin(), more_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
    end_ = static_cast<std::uint32_t>(more_.size());
    if (end_ <= kFew) std::copy(more_.begin(), more_.end(), few_);
  }

  PendingTime few_[kFew];          // all of them, where there are not more
  std::vector<PendingTime> more_;  // else all of them
  std::uint32_t first_ = 0, end_ = 0;
};
static_assert(sizeof(PendingTimes) == 64);

}  // namespace astra_sim::strict
