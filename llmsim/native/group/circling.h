// Finds out that the requests of a group only take KV blocks from each other.
#pragma once

#include <cstdint>

#include "scheduler/scheduler.h"

namespace llmsim {

// Under any fixed order of precedence, the first of a group's requests loses its blocks to nobody.
// It computes at least one token per step, so it is further than ever after as many steps as the
// model length has tokens. A group that preempts in kCircles times as many steps, and in
// kMoreCircles on top, while nothing gets further, runs in circles. A rank in lock-step that runs
// as many dummies while its requests wait only waits for others: to read the KV that fills its
// memory, say.
class Circling {
 public:
  explicit Circling(std::int32_t max_model_len)
      : most_futile_(kCircles * max_model_len + kMoreCircles) {}

  // A step has preempted.
  void preempted(const SchedulerCounters& counters) {
    look(counters);
    ++futile_;
  }
  // A step was a dummy while requests waited.
  void waited(const SchedulerCounters& counters) {
    look(counters);
    ++dummies_;
  }
  // A request has come, with which things may go on.
  void arrived() { futile_ = dummies_ = 0; }
  bool found() const { return futile_ > most_futile_; }
  bool waits() const { return dummies_ > most_futile_; }

 private:
  // A token, an end, a cancellation, or a victim that was further than ever when it lost its blocks
  // shows that the group gets on.
  void look(const SchedulerCounters& counters) {
    const std::int64_t progress =
        counters.generation_tokens + counters.finished + counters.cancelled + counters.furthered;
    if (progress != progress_) arrived();
    progress_ = progress;
  }

  static constexpr std::int64_t kCircles = 4, kMoreCircles = 1000;

  // Since the group got on: steps that preempted, and dummies while requests waited.
  std::int64_t futile_ = 0, dummies_ = 0;
  std::int64_t most_futile_;
  std::int64_t progress_ = 0;  // sum of counters that grow when the group gets on
};

}  // namespace llmsim
