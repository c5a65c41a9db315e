// The contract between the loop and a scheduler.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "program/batch.h"
#include "request/request_log.h"
#include "request/sequence_table.h"
#include "scheduler/speculation.h"

namespace llmsim {

class GroupTiers;
class KeyLog;

struct SchedulerCounters {
  std::int64_t prefix_queried_tokens = 0, prefix_hit_tokens = 0;
  std::int64_t preemptions = 0, recomputed_tokens = 0;
  std::int64_t furthered =
      0;  // preemptions of requests that had computed more than at any preemption before
  std::int64_t prompt_tokens = 0, generation_tokens = 0;
  // Tokens that requests had when they first ran and that were not computed here; and scheduled
  // tokens that turned out not to be needed: rejected drafts, and what ran behind the last token of
  // an answer.
  std::int64_t started_with_tokens = 0, discarded_tokens = 0;
  std::int64_t finished = 0, cancelled = 0;
  std::int32_t peak_blocks_used = 0;
  SpeculationCounters speculation;
};

// Blocks of a group's KV cache. `total` counts the null block; `cached` are free but can still be
// hit.
struct PoolState {
  std::int32_t total = 0, free = 0, cached = 0;
};

// What a request must not exceed to ever run.
struct Limits {
  std::int32_t max_model_len = 0, block_size = 16, usable_blocks = 0;
  std::int32_t slots_ahead = 0;  // of drafts, beside those of its tokens
};

// A request whose prompt's KV comes from another group, and how much of it (tokens) was here
// already.
struct Reserved {
  RequestId request;
  std::int32_t cached;
};

// Owns its group's queues and KV cache. Batches complete in the order in which they were built.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // The engine sees the request from now on.
  virtual void add(RequestId request) = 0;
  // Whether any request is unfinished, running in flight or waiting.
  virtual bool has_requests() const = 0;
  // Fills `batch` (cleared first) with the next iteration; leaves it empty when nothing can be
  // scheduled now.
  virtual void build(Ps now, Batch& batch) = 0;
  // After a `build` that left its batch empty while nothing is in flight: whether the next one may
  // find something, with nothing else having happened (vLLM's engine goes on asking).
  virtual bool asks_again() const { return false; }
  // In a lock-step group, before each `build`: how many rounds it has run.
  virtual void set_step(std::int64_t step) { static_cast<void>(step); }
  // The client has gone: a request that was added and is unfinished leaves. Its blocks are free at
  // once, and what batches in flight compute for it is dropped, as in vLLM.
  virtual void abort(RequestId request) = 0;
  // The model's output for `batch` has arrived; finished requests leave and their rows are appended
  // to `finished`.
  virtual void complete(const Batch& batch, std::vector<RequestId>& finished) = 0;

  // Batches that may be in flight at once.
  virtual std::int32_t max_depth() const { return std::numeric_limits<std::int32_t>::max(); }
  // Where to note changes of the cached keys; a scheduler without a prefix cache has none to note.
  virtual void log_keys(KeyLog* log) { static_cast<void>(log); }

  // Pools of KV below its own, for as long as it lives.
  virtual void use_tiers(GroupTiers* tiers) {
    static_cast<void>(tiers);
    throw std::invalid_argument("this scheduler has no KV tiers");
  }
  // Whether it parks who recalls something, instead of letting the batch wait.
  virtual bool may_park() const { return false; }
  // Appends the requests that the last `build` gave blocks to and parked until their KV is there.
  virtual void take_reserved(std::vector<Reserved>& out) { static_cast<void>(out); }
  // One of the things that a parked request waits for is there; or the KV of a request that ended
  // here has been read by whoever decodes it.
  virtual void transferred(RequestId request) { static_cast<void>(request); }
  // Requests whose blocks transfers fill or read, and those of them that have not left.
  virtual std::int32_t num_bound() const { return 0; }
  virtual std::int32_t num_parked() const { return 0; }

  virtual std::int32_t num_running() const = 0;
  virtual std::int32_t num_waiting() const = 0;
  virtual PoolState pool() const = 0;
  // Recounts the pool from its blocks (invariant 4).
  virtual bool pool_consistent() const { return true; }
  virtual Limits limits() const = 0;
  // Most blocks that a request holds at once on its way to `slots` slots.
  virtual std::int64_t most_blocks(std::int64_t slots) const {
    return ceil_div(slots, limits().block_size);
  }
  virtual const SchedulerCounters& counters() const = 0;
};

}  // namespace llmsim
