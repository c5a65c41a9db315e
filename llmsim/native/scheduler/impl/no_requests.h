// The scheduler of a group that gets no requests: its devices work for other groups' batches.
#pragma once

#include <stdexcept>

#include "scheduler/scheduler.h"

namespace llmsim {

class NoRequests final : public Scheduler {
 public:
  void add(RequestId) override { throw std::logic_error("a group without requests was given one"); }
  bool has_requests() const override { return false; }
  void schedule(Ps, Batch& batch) override { batch.clear(); }
  void update(const Batch&, std::vector<RequestId>&) override {}
  void abort(RequestId) override {}
  Gauges gauges() const override { return {.pool = {.total = 1}}; }
  const SchedulerCounters& counters() const override { return counters_; }
  Limits limits() const override { return {}; }

 private:
  SchedulerCounters counters_;
};

}  // namespace llmsim
