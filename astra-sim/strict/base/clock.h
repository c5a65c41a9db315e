// Time under strict rules: the global queue, and for each NPU what it schedules for itself.
#pragma once

#include <span>
#include <vector>

#include "strict/base/pending_times.h"
#include "strict/base/time_queue.h"

namespace astra_sim::strict {

// The first event that an NPU schedules for a time goes into the global queue; later ones for the
// same NPU and time join it and run right after it. While they run, events for the same instant
// extend their list; after that they make a new one. This is upstream's order, which decides ties.
class Clock {
 public:
  explicit Clock(std::uint32_t npus) : pending_(npus) {}

  Ns now() const { return queue_.now(); }
  void global(Ns delay, Event event) { queue_.push(delay, event); }

  void local(std::uint32_t npu, Ns delay, Event event) {
    PendingTimes& pending = pending_[npu];
    event.set_npu(npu & 0xffffff);
    const Ns time = queue_.now() + delay;
    if (pending.empty() || pending.back().time < time) {
      pending.push_back(time);
      queue_.push(delay, event);
    } else {
      not_last(pending, delay, event);
    }
  }

  // The next events of one time, in order; none at the end.
  std::span<const Event> take() { return queue_.take(); }

  // Needs to follow each event of take() that is of_one_npu(), and each event that this gave: what
  // joined it, in order; false at the end.
  bool pop_joined(std::uint32_t npu, Event& event) {
    PendingTimes& pending = pending_[npu];
    EventList& joined = pending.front().joined;
    if (joined.head != kNone) {
      event = pool_.take(joined);
      return true;
    }
    pending.pop_front();
    return false;
  }

 private:
  // The NPU has an event in the queue at this time, or after it.
  [[gnu::noinline]] void not_last(PendingTimes& pending, Ns delay, Event event) {
    const Ns time = queue_.now() + delay;
    PendingTime* const place = pending.find(time);
    if (place->time == time) {
      pool_.append(place->joined, event);
    } else {
      pending.insert(place, time);
      queue_.push(delay, event);
    }
  }

  EventPool pool_;  // what joined others
  TimeQueue queue_;
  std::vector<PendingTimes> pending_;  // by NPU
};

}  // namespace astra_sim::strict
