// Recorders of what groups did; the model never reads them.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "scheduler/scheduler.h"
#include "step/executor.h"

namespace llmsim {

// One row per step, as columns of equal length.
struct StepRecorder {
  std::vector<std::int16_t> group;
  std::vector<Ps> schedule_ps, start_ps, end_ps;
  std::vector<std::int32_t> tokens, padded_tokens, prefill_tokens, sequences, decode_sequences,
      running, waiting, free_blocks, preempted;

  // A step is launched; returns its row, whose times follow.
  std::size_t record(std::int32_t index, Ps scheduled, const Batch& batch,
                     const Scheduler& scheduler);
  void timed(std::size_t row, const StepTimes& times);
};

// Which request used the devices of a group for how long: every step's time, split over its batch
// by scheduled tokens. The parts of a step add up to it exactly.
struct DeviceShares {
  std::vector<RequestId> request;
  std::vector<Ps> ps;  // parallel to request

  // `place[request]` is where the request stood last time, in this group or another; kept here.
  void record(const Batch& batch, Ps duration, std::vector<std::int32_t>& place);
};

// The schedule itself, step by step, for conformance tests: which request got how many tokens on
// which context.
struct ScheduleRecorder {
  std::vector<Ps> time_ps,
      end_ps;  // end_ps and free_blocks_after are -1 for a step that scheduled nothing
  std::vector<std::int32_t> running, waiting, free_blocks, free_blocks_after;
  std::vector<std::int64_t> item_offsets{0};
  std::vector<std::int32_t> item_request, item_tokens, item_computed, item_drafts;
  std::vector<std::int32_t> finished_step, finished_request, preempted_step, preempted_request;

  void built(Ps now, const Scheduler& scheduler, const Batch& batch);
  void completed(Ps now, const Scheduler& scheduler, std::span<const RequestId> finished);

 private:
  std::deque<std::int32_t> in_flight_;
};

}  // namespace llmsim
