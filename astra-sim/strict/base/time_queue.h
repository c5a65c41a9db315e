// The global queue: time -> list of events, first in first out; a wheel of single nanoseconds and a
// heap beyond it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/base/errors.h"
#include "strict/base/events.h"

namespace astra_sim::strict {

// Events within kSlots ns lie in the list of their nanosecond. Later ones wait in a heap by (time,
// order of pushing) and come into the wheel as soon as it reaches them, before anything can be
// pushed there directly: so lists keep the order.
class TimeQueue {
 public:
  TimeQueue() { slots_.fill(kNone); }

  Ns now() const { return now_; }

  // Needs delay >= 0.
  void push(Ns delay, Event event) {
    if (delay >= kSlots) {
      push_far(delay, event);
    } else {
      append(static_cast<std::uint32_t>(now_ + delay) & kMask, event);
    }
  }

  // Takes all events of the next time that has any, and moves the time; none where nothing is
  // pending. They stay until the next call. What is pushed for the same time comes with that one.
  std::span<const Event> take() {
    const std::uint32_t slot = static_cast<std::uint32_t>(now_) & kMask;
    if (slots_[slot] == kNone) {
      unmark(slot);
      if (!advance()) return {};
    }
    if (taken_ != kNone) give_back(taken_);
    taken_ = std::exchange(slots_[static_cast<std::uint32_t>(now_) & kMask], kNone);
    return lists_[taken_];
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
  static constexpr std::size_t kMostKept = 4096;  // events

  static bool later(const Far& a, const Far& b) {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
  void mark(std::uint32_t slot) { filled_[slot / 64] |= std::uint64_t{1} << (slot % 64); }
  void unmark(std::uint32_t slot) { filled_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64)); }

  void append(std::uint32_t slot, Event event) {
    if (slots_[slot] == kNone) open(slot);
    lists_[slots_[slot]].push_back(event);
  }

  // This and the next function are apart, so that the common path of push() stays short.
  [[gnu::noinline]] void open(std::uint32_t slot) {
    mark(slot);
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(lists_.size()));
      lists_.emplace_back();
    }
    slots_[slot] = free_.back();
    free_.pop_back();
  }

  [[gnu::noinline]] void push_far(Ns delay, Event event) {
    if (now_ > kHorizonNs) throw model::OutOfRange("the run takes longer than 2^61 ns (73 years)");
    far_.push_back({now_ + delay, pushed_++, event});
    std::push_heap(far_.begin(), far_.end(), later);
  }

  // The freed are taken first, so that a run in lock-step stays in a small part of memory. Long
  // ones give their memory back: otherwise every list would become as long in the end.
  void give_back(std::uint32_t list) {
    lists_[list].clear();
    if (lists_[list].capacity() > kMostKept) lists_[list] = {};
    free_.push_back(list);
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
      append(static_cast<std::uint32_t>(far_.front().time) & kMask, far_.front().event);
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

  Ns now_ = 0;
  std::array<std::uint32_t, kSlots> slots_;  // the list of a nanosecond; kNone: it is empty
  std::array<std::uint64_t, kWords> filled_{};
  std::vector<std::vector<Event>> lists_;
  std::vector<std::uint32_t> free_;  // lists that hold nothing
  std::uint32_t taken_ = kNone;      // the list of the last take()
  std::vector<Far> far_;
  std::uint64_t pushed_ = 0;
};

}  // namespace astra_sim::strict
