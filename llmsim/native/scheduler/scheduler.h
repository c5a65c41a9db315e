// The contract between a group and its scheduler.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "kv/offloading/counters.h"
#include "program/batch.h"
#include "request/request_log.h"
#include "request/sequence_table.h"
#include "scheduler/abilities.h"
#include "scheduler/host_cache_config.h"
#include "scheduler/limits/encoder_cache.h"
#include "scheduler/speculation.h"

namespace llmsim {

struct SchedulerCounters {
  std::int64_t prefix_queried_tokens = 0, prefix_hit_tokens = 0;
  // The part of both that requests looked up which had never been preempted; and what they looked
  // up and found below the devices, or in the group that computed their prompts (vLLM's
  // connectors).
  std::int64_t first_queried_tokens = 0, first_hit_tokens = 0;
  std::int64_t external_queried_tokens = 0, external_hit_tokens = 0;
  std::int64_t preemptions = 0, recomputed_tokens = 0;
  std::int64_t furthered =
      0;  // preemptions of requests that had computed more than at any preemption before
  std::int64_t prompt_tokens = 0, generation_tokens = 0;
  // Of prompt_tokens: not computed when their requests first ran, and the part that came from below
  // the devices.
  std::int64_t prompt_cached_tokens = 0, prompt_external_tokens = 0;
  // Tokens that requests had when they first ran and that were not computed here; and scheduled
  // tokens that turned out not to be needed: rejected drafts, and what ran behind the last token of
  // an answer.
  std::int64_t started_with_tokens = 0, discarded_tokens = 0;
  std::int64_t finished = 0, cancelled = 0, failed = 0;
  // Loads of KV that failed, and tokens whose KV they were to bring and did not.
  std::int64_t failed_loads = 0, lost_tokens = 0;
  // Steps that ran more LoRA adapters than max_loras.
  std::int64_t crowded_lora_steps = 0;
  std::int32_t peak_blocks_used = 0;
  SpeculationCounters speculation;
  EncoderCounters encoder;
  HostCacheCounters host_cache;
  OffloadingCounters offloading;
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
  std::int32_t longest_prompt = std::numeric_limits<std::int32_t>::max();  // tokens
};

// What a scheduler holds after its last call; counts of requests.
struct Gauges {
  std::int32_t running = 0;
  std::int32_t waiting = 0;  // parked ones included
  std::int32_t parked = 0;   // hold blocks, and wait for their KV
  std::int32_t bound = 0;    // their blocks are filled or read by transfers; some of them have left
  // Blocks, neither free nor cached, that only copies beside the steps hold, where nothing runs.
  std::int32_t copied = 0;
  PoolState pool;
  // Free slots of a pool of states beside the blocks; -1: there is no such pool.
  std::int32_t free_states = -1;
};

// Decides what each step of a group runs; owns the group's queues and KV cache. Batches complete in
// the order in which they were scheduled. What only some schedulers can do is found by a query.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // The engine sees the request from now on.
  virtual void add(RequestId request) = 0;
  // Whether any request is unfinished, running in flight or waiting.
  virtual bool has_requests() const = 0;
  // Fills `batch` (cleared first) with the next step; leaves it empty when nothing can be scheduled
  // now.
  virtual void schedule(Ps now, Batch& batch) = 0;
  // The model's output for `batch` has arrived; finished requests leave and their rows are appended
  // to `finished`.
  virtual void update(const Batch& batch, std::vector<RequestId>& finished) = 0;
  // The client has gone: a request that was added and is unfinished leaves. Its blocks are free at
  // once, and what batches in flight compute for it is dropped, as in vLLM.
  virtual void abort(RequestId request) = 0;
  // Its engine stops, after every request was aborted and every batch was updated: those that an
  // abort would let leave with a further step leave now.
  virtual void stop() {}
  // After a `schedule` that left its batch empty while nothing is in flight: whether the next one
  // may find something, with nothing else having happened (vLLM's engine goes on asking).
  virtual bool asks_again() const { return false; }
  // Whether a `schedule` that left its batch empty takes a place among the batches in flight.
  virtual bool queues_empty_batches() const { return false; }

  virtual Gauges gauges() const = 0;
  // Of those that wait, who waits for something else than room (vLLM's deferred requests): KV on
  // its way, or a slot of an adapter. O(requests that wait).
  virtual std::int32_t num_deferred() const { return gauges().parked; }
  virtual const SchedulerCounters& counters() const = 0;
  virtual Limits limits() const = 0;
  // Batches that may be in flight at once.
  virtual std::int32_t max_depth() const { return std::numeric_limits<std::int32_t>::max(); }
  // Most blocks that a request holds at once on its way to `slots` slots.
  virtual std::int64_t most_blocks(std::int64_t slots) const {
    return ceil_div(slots, limits().block_size);
  }
  // Recounts the pool from its blocks (invariant 4).
  virtual bool pool_consistent() const { return true; }

  // What else it can do, for as long as it lives; null: it cannot.
  virtual KvConnector* kv_connector() { return nullptr; }
  virtual TieredKv* tiered_kv() { return nullptr; }
  virtual OffloadedKv* offloaded_kv() { return nullptr; }
  virtual PrefixEvents* prefix_events() { return nullptr; }
  virtual HostCopying* host_copying() { return nullptr; }
  virtual RoundCounting* round_counting() { return nullptr; }
  virtual EngineLoop* engine_loop() { return nullptr; }

  std::int32_t num_running() const { return gauges().running; }
  std::int32_t num_waiting() const { return gauges().waiting; }
  PoolState pool() const { return gauges().pool; }
};

}  // namespace llmsim
