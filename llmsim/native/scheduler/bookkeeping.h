// What every scheduler notes when a request starts, loses its blocks or is cancelled: its state,
// the log, the counters.
#pragma once

#include <algorithm>
#include <cstdint>

#include "scheduler/scheduler.h"

namespace llmsim {

// Counts one lookup in the prefix cache: all tokens of the sequence were queried, `hit` of them
// were found.
inline void note_hit(const Sequence& s, std::int64_t hit, SchedulerCounters& counters) {
  counters.prefix_queried_tokens += s.num_tokens;
  counters.prefix_hit_tokens += hit;
  if (s.epoch > 0) return;
  counters.first_queried_tokens += s.num_tokens;
  counters.first_hit_tokens += hit;
}

// Counts one lookup behind the prefix cache, in which `hit` tokens were found: `external` more come
// from below the devices, or from another group.
inline void note_external(RequestId request, const Sequence& s, std::int64_t hit,
                          std::int32_t external, RequestLog& log, SchedulerCounters& counters) {
  if (s.epoch > 0) return;
  counters.external_queried_tokens += s.num_tokens - hit;
  counters.external_hit_tokens += external;
  log.found_external(request, external);
}

// It runs from now on with s.num_computed tokens, `cached` of which are not computed in its group;
// of a prompt that another group computed (`prompt_elsewhere`), none count.
inline void note_start(RequestId request, const Sequence& s, Ps now, std::int32_t cached,
                       bool prompt_elsewhere, RequestLog& log, SchedulerCounters& counters) {
  if (log.scheduled[request] == kNever) {
    log.first_scheduled(request, now, cached);
    counters.started_with_tokens += s.num_computed;
    log.began_with(request, s.num_computed);
    if (!prompt_elsewhere) {
      const std::int32_t not_computed = std::min(cached, s.prompt_tokens);
      counters.prompt_tokens += s.prompt_tokens;
      counters.prompt_cached_tokens += not_computed;
      counters.prompt_external_tokens += std::min(log.external_tokens(request), not_computed);
    }
  } else if (log.resumes(request, now)) {
    counters.started_with_tokens += s.num_computed;
  }
  if (s.epoch > 0) counters.recomputed_tokens -= cached;
}

// Its blocks are gone and everything is computed again; it waits.
inline void note_preemption(RequestId request, Sequence& s, RequestLog& log,
                            SchedulerCounters& counters) {
  counters.recomputed_tokens += s.num_computed;
  counters.furthered += s.num_computed > s.lost_to;
  s.lost_to = std::max(s.lost_to, s.num_computed);
  ++counters.preemptions;
  log.preempted(request);
  s.num_computed = 0;
  ++s.epoch;
  s.status = static_cast<std::uint8_t>(Status::kWaiting);
}

// It leaves unfinished. Tokens lost to preemption and not yet recomputed are not counted as
// recomputed.
inline void note_end(Sequence& s, Status status, SchedulerCounters& counters) {
  counters.recomputed_tokens -= std::max(0, s.lost_to - s.num_computed);
  s.status = static_cast<std::uint8_t>(status);
}
inline void note_cancellation(Sequence& s, SchedulerCounters& counters) {
  note_end(s, Status::kCancelled, counters);
  ++counters.cancelled;
}
inline void note_failure(Sequence& s, SchedulerCounters& counters) {
  note_end(s, Status::kFailed, counters);
  ++counters.failed;
}

}  // namespace llmsim
