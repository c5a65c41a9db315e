// The global queue: time -> list of events, first in first out; a wheel of single nanoseconds and a
// heap beyond it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "model/base/errors.h"
#include "strict/base/events.h"

namespace astra_sim::strict {

// Events within kSlots ns lie in the list of their nanosecond. Later ones wait in a heap by (time,
// order of pushing) and come into the wheel as soon as it reaches them, before anything can be
// pushed there directly: so lists keep the order.
class TimeQueue {
 public:
  explicit TimeQueue(EventPool& pool) : pool_(pool) {}

  Ns now() const { return now_; }

  // Needs delay >= 0.
  void push(Ns delay, Event event) {
    if (delay >= kSlots) {
      push_far(delay, event);
      return;
    }
    const std::uint32_t slot = static_cast<std::uint32_t>(now_ + delay) & kMask;
    if (slots_[slot].head == kNone) mark(slot);
    pool_.append(slots_[slot], event);
  }

  // Takes the next event and moves the time; false where nothing is pending.
  bool pop(Event& event) {
    EventList* list = &slots_[static_cast<std::uint32_t>(now_) & kMask];
    if (list->head == kNone) {
      unmark(static_cast<std::uint32_t>(now_) & kMask);
      if (!advance()) return false;
      list = &slots_[static_cast<std::uint32_t>(now_) & kMask];
    }
    event = pool_.take(*list);
    return true;
  }

 private:
  struct Far {
    Ns time;
    std::uint64_t order;
    Event event;
  };
  static constexpr Ns kHorizonNs = Ns{1} << 61;  // with a span on top it still fits
  static constexpr Ns kSlots = 1 << 14;
  static constexpr std::uint32_t kMask = kSlots - 1;
  static constexpr std::uint32_t kWords = kSlots / 64;

  static bool later(const Far& a, const Far& b) {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
  void mark(std::uint32_t slot) { filled_[slot / 64] |= std::uint64_t{1} << (slot % 64); }
  void unmark(std::uint32_t slot) { filled_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64)); }

  // Apart, so that the common path of push() stays short.
  [[gnu::noinline]] void push_far(Ns delay, Event event) {
    if (now_ > kHorizonNs) throw model::OutOfRange("the run takes longer than 2^61 ns (73 years)");
    far_.push_back({now_ + delay, pushed_++, event});
    std::push_heap(far_.begin(), far_.end(), later);
  }

  bool advance() {
    const Ns distance = next_filled();
    if (distance > 0) {
      now_ += distance;
    } else {
      if (far_.empty()) return false;
      now_ = far_.front().time;
    }
    while (!far_.empty() && far_.front().time < now_ + kSlots) {
      const std::uint32_t slot = static_cast<std::uint32_t>(far_.front().time) & kMask;
      if (slots_[slot].head == kNone) mark(slot);
      pool_.append(slots_[slot], far_.front().event);
      std::pop_heap(far_.begin(), far_.end(), later);
      far_.pop_back();
    }
    return true;
  }

  // ns from now to the next list that holds something; 0 where the wheel is empty.
  Ns next_filled() const {
    const std::uint32_t from = static_cast<std::uint32_t>(now_) & kMask;
    std::uint32_t word = from / 64;
    std::uint64_t bits = filled_[word] & (~std::uint64_t{0} << (from % 64));
    for (std::uint32_t looked = 0; looked <= kWords; ++looked) {
      if (bits != 0) {
        const std::uint32_t slot = word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
        return static_cast<Ns>((slot - from) & kMask);
      }
      word = (word + 1) % kWords;
      bits = filled_[word];
    }
    return 0;
  }

  EventPool& pool_;
  Ns now_ = 0;
  std::array<EventList, kSlots> slots_;
  std::array<std::uint64_t, kWords> filled_{};
  std::vector<Far> far_;
  std::uint64_t pushed_ = 0;
};

}  // namespace astra_sim::strict
