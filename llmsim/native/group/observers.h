// Recorders of what groups did; the model never reads them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "base/columns.h"
#include "scheduler/scheduler.h"
#include "step/executors/executor.h"

namespace llmsim {

// One row per step, as columns of equal length.
struct StepRecorder {
  std::vector<std::int16_t> group;
  std::vector<Ps> schedule_ps, start_ps, end_ps;
  std::vector<std::int32_t> tokens, padded_tokens, prefill_tokens, sequences, decode_sequences,
      running, waiting, free_blocks, preempted;

  static constexpr auto columns() {
    using S = StepRecorder;
    return std::tuple{
        Column{"group", &S::group},
        Column{"schedule_ps", &S::schedule_ps},
        Column{"start_ps", &S::start_ps},
        Column{"end_ps", &S::end_ps},
        Column{"tokens", &S::tokens},
        Column{"padded_tokens", &S::padded_tokens},
        Column{"prefill_tokens", &S::prefill_tokens},
        Column{"sequences", &S::sequences},
        Column{"decode_sequences", &S::decode_sequences},
        Column{"running", &S::running},
        Column{"waiting", &S::waiting},
        Column{"free_blocks", &S::free_blocks},
        Column{"preempted", &S::preempted},
    };
  }

  // A step is launched; returns its row, whose times follow.
  std::size_t record(std::int32_t index, Ps scheduled, const Batch& batch,
                     const Scheduler& scheduler);
  void timed(std::size_t row, const StepTimes& times);
};

// Tokens of each step that gives answers, as vLLM counts them: those it gives, and of each prompt
// that it ends all tokens that were computed.
class StepTokens {
 public:
  // Before and after the scheduler hears of the step's end.
  void ends(const Batch& batch, const RequestLog& log);
  void ended(const Batch& batch, const RequestLog& log, const SequenceTable& sequences);
  // How many steps had so many.
  const std::map<std::int64_t, std::int64_t>& steps() const { return steps_; }

 private:
  std::vector<std::int32_t> emitted_;  // before the step, by item
  std::map<std::int64_t, std::int64_t> steps_;
};

// Which request used the devices of a group for how long: every step's time, split over its batch
// by scheduled tokens. The parts of a step add up to it exactly.
struct DeviceShares {
  std::vector<RequestId> request;
  std::vector<Ps> ps;  // parallel to request

  // `place[request]` is where the request stood last time, in this group or another; kept here.
  void record(const Batch& batch, Ps duration, std::vector<std::int32_t>& place);
};

// The schedule itself for conformance tests: a row per step, an item per request of a step (those
// of step i are item_offsets[i] .. item_offsets[i + 1]), and pairs of a step and a request.
struct ScheduleTable {
  std::vector<Ps> time_ps;
  std::vector<Ps> end_ps;  // -1, like free_blocks_after, for a step that scheduled nothing
  std::vector<std::int32_t> running, waiting, free_blocks, free_blocks_after;
  std::vector<std::int32_t> free_states, free_states_after;  // -1: there is no pool of states
  std::vector<std::int32_t> drafts_after;  // proposed at the end of the step for each sequence
  std::vector<std::int32_t> adapter_use;   // of each step those of AdapterUse, EncoderUse
  std::vector<std::int64_t> item_offsets{0};
  std::vector<std::int32_t> item_request, item_tokens, item_computed, item_drafts;
  std::vector<std::int32_t> finished_step, finished_request, preempted_step, preempted_request;

  static constexpr auto columns() {
    using S = ScheduleTable;
    return std::tuple{
        Column{"time_ps", &S::time_ps},
        Column{"end_ps", &S::end_ps},
        Column{"running", &S::running},
        Column{"waiting", &S::waiting},
        Column{"free_blocks", &S::free_blocks},
        Column{"free_blocks_after", &S::free_blocks_after},
        Column{"free_states", &S::free_states},
        Column{"free_states_after", &S::free_states_after},
        Column{"drafts_after", &S::drafts_after},
        Column{"adapter_use", &S::adapter_use},
        Column{"item_offsets", &S::item_offsets},
        Column{"item_request", &S::item_request},
        Column{"item_tokens", &S::item_tokens},
        Column{"item_computed", &S::item_computed},
        Column{"item_drafts", &S::item_drafts},
        Column{"finished_step", &S::finished_step},
        Column{"finished_request", &S::finished_request},
        Column{"preempted_step", &S::preempted_step},
        Column{"preempted_request", &S::preempted_request},
    };
  }
};

// Which request got how many tokens on which context, step by step.
class ScheduleRecorder : public ScheduleTable {
 public:
  void built(Ps now, const Scheduler& scheduler, const Batch& batch);
  void completed(Ps now, const Scheduler& scheduler, std::span<const RequestId> finished);
  // The batch that was built last ends before those in flight.
  void completed_last(Ps now, const Scheduler& scheduler, std::span<const RequestId> finished) {
    in_flight_.push_front(in_flight_.back());
    in_flight_.pop_back();
    completed(now, scheduler, finished);
  }

 private:
  std::deque<std::int32_t> in_flight_;
};

}  // namespace llmsim
