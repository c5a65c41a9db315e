// Changes of what a group has cached, on their way from its block pool to a router: a log, never a
// copy of the index.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/types.h"

namespace llmsim {

// What the groups have published, in order of time.
class KeyTimeline {
 public:
  // Takes over the changes, in order; the vector is left empty.
  void publish(Ps now, std::int32_t group, std::vector<Key>& changes) {
    entries_.push_back({now, group, static_cast<std::uint32_t>(changes.size())});
    changes_.insert(changes_.end(), changes.begin(), changes.end());
    changes.clear();
  }

  // Calls take(group, key, cached) for each change published at `until` or before, once and in
  // order, and forgets it.
  template <typename Take>
  void replay(Ps until, Take take) {
    for (; !entries_.empty() && entries_.front().at <= until; entries_.pop_front()) {
      for (std::uint32_t i = 0; i < entries_.front().count; ++i) {
        const Key change = changes_.front();
        changes_.pop_front();
        take(entries_.front().group, change & ~kDropped, (change & kDropped) == 0);
      }
    }
  }

  static constexpr Key kDropped = Key{1} << 63;  // clear in the keys of a workload

 private:
  struct Entry {
    Ps at;
    std::int32_t group;
    std::uint32_t count;
  };
  std::deque<Entry> entries_;
  std::deque<Key> changes_;
};

// One group's end of the log: its block pool notes changes while a step is formed, and its outputs
// publish them, as vLLM sends its KV events with the outputs of a step.
class KeyLog {
 public:
  KeyLog(KeyTimeline& timeline, std::int32_t group) : timeline_(timeline), group_(group) {}

  // A key entered the pool's index, or left it. Content that only its own request can ask for is
  // nobody's business.
  void added(Key key) {
    if ((key & KeyTimeline::kDropped) == 0) changes_.push_back(key);
  }
  void removed(Key key) {
    if ((key & KeyTimeline::kDropped) == 0) changes_.push_back(key | KeyTimeline::kDropped);
  }
  void publish(Ps now) {
    if (!changes_.empty()) timeline_.publish(now, group_, changes_);
  }

 private:
  KeyTimeline& timeline_;
  std::int32_t group_;
  std::vector<Key> changes_;  // not published yet
};

}  // namespace llmsim
