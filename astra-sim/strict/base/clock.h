// Time under strict rules: the global queue, and for each NPU the lists of what it schedules for
// itself.
#pragma once

#include <vector>

#include "strict/base/time_queue.h"

namespace astra_sim::strict {

// The first event that an NPU schedules for a time goes into the global queue; later ones for the
// same NPU and time join it and run right after it. While they run, events for the same instant
// extend their list; after that they make a new one. This is upstream's order, which decides ties.
class Clock {
 public:
  explicit Clock(std::uint32_t npus) : queue_(pool_), lists_(npus) {}

  Ns now() const { return queue_.now(); }
  void global(Ns delay, Event event) { queue_.push(delay, event); }

  void local(std::uint32_t npu, Ns delay, Event event) {
    Lists& lists = lists_[npu];
    event.set_npu(npu & 0xffffff);
    const Ns time = queue_.now() + delay;
    if (lists.first == lists.pending.size() || lists.pending.back().time < time) {
      lists.pending.push_back({time, {}});
      queue_.push(delay, event);
    } else if (lists.pending.back().time == time) {
      pool_.append(lists.pending.back().joined, event);
    } else {
      between(lists, delay, event);
    }
  }

  bool pop(Event& event) { return queue_.pop(event); }

  // Needs to follow each popped event that is of_one_npu(), and each event that this gave: what
  // joined it, in order; false at the end.
  bool pop_joined(std::uint32_t npu, Event& event) {
    Lists& lists = lists_[npu];
    EventList& joined = lists.pending[lists.first].joined;
    if (joined.head != kNone) {
      event = pool_.take(joined);
      return true;
    }
    if (++lists.first == lists.pending.size()) {
      lists.pending.clear();
      lists.first = 0;
    } else if (lists.first >= 64 && lists.first * 2 >= lists.pending.size()) {
      lists.pending.erase(lists.pending.begin(),
                          lists.pending.begin() + static_cast<std::ptrdiff_t>(lists.first));
      lists.first = 0;
    }
    return false;
  }

 private:
  struct Entry {
    Ns time;
    EventList joined;
  };
  struct Lists {
    std::vector<Entry> pending;  // from `first` on, by time
    std::size_t first = 0;
  };

  // Neither the last time of the NPU nor after it.
  void between(Lists& lists, Ns delay, Event event) {
    const Ns time = queue_.now() + delay;
    std::size_t at = lists.pending.size();
    while (at > lists.first && lists.pending[at - 1].time > time) --at;
    if (at > lists.first && lists.pending[at - 1].time == time) {
      pool_.append(lists.pending[at - 1].joined, event);
      return;
    }
    lists.pending.insert(lists.pending.begin() + static_cast<std::ptrdiff_t>(at), {time, {}});
    queue_.push(delay, event);
  }

  EventPool pool_;
  TimeQueue queue_;
  std::vector<Lists> lists_;
};

}  // namespace astra_sim::strict
