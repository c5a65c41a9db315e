// A scheduler written in Python behind the scheduler's contract.
#pragma once

#include <nanobind/nanobind.h>

#include <tuple>
#include <vector>

#include "scheduler/scheduler.h"

namespace llmsim {

// Calls an object with the methods of llmsim.scheduling.base.Scheduler, once per step and per
// arrival, holding the interpreter's lock only during the calls. Exceptions of the object end the
// run and reach the caller of run().
class PythonScheduler final : public Scheduler {
 public:
  PythonScheduler(nanobind::object scheduler, Limits limits, SpeculationConfig speculation,
                  SequenceTable& sequences, RequestLog& log);
  ~PythonScheduler() override;

  void add(RequestId request) override;
  bool has_requests() const override { return num_running_ + num_waiting_ > 0; }
  void schedule(Ps now, Batch& batch) override;
  bool asks_again() const override;
  bool queues_empty_batches() const override { return queues_empty_batches_; }
  void abort(RequestId request) override;
  void update(const Batch& batch, std::vector<RequestId>& finished) override;

  Gauges gauges() const override {
    return {.running = num_running_,
            .waiting = num_waiting_,
            .parked = 0,
            .bound = 0,
            .pool = {limits_.usable_blocks + 1, free_blocks_, 0}};
  }
  Limits limits() const override { return limits_; }
  const SchedulerCounters& counters() const override { return counters_; }

 private:
  // (requests running, requests waiting, free blocks)
  using Counts = std::tuple<std::int32_t, std::int32_t, std::int32_t>;
  Counts ask_gauges() const;
  void keep(const Counts& counts);
  void finish(RequestId request, std::vector<RequestId>& finished);
  void note_scheduled(Ps now, const Item& item);
  void count_drafts(const Batch& batch);

  nanobind::object scheduler_;
  Limits limits_;
  SpeculationConfig speculation_;
  SequenceTable& sequences_;
  RequestLog& log_;
  SchedulerCounters counters_;
  bool may_ask_again_;               // the scheduler has a method `asks_again`
  bool queues_empty_batches_;        // it has an attribute of that name
  std::vector<RequestId> verified_;  // by the batch that completes, sorted
  std::int32_t num_running_ = 0, num_waiting_ = 0, free_blocks_ = 0;
};

}  // namespace llmsim
