// A request's progress in its group.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace llmsim {

// kParked: between the two groups of a disaggregated request, or holding blocks whose content is on
// its way. kFailed: its engine has ended it with an error.
enum class Status : std::uint8_t {
  kPending,
  kWaiting,
  kRunning,
  kFinished,
  kRejected,
  kCancelled,
  kParked,
  kRefused,
  kFailed
};

// Changed by the scheduler of the group that the request was routed to, and by nobody else.
// `output_tokens` is the oracle of how long the answer will be: only `SequenceTable::stops` may
// read it (invariant 8).
struct Sequence {
  std::int32_t prompt_tokens = 0;
  std::int32_t num_tokens = 0;  // prompt plus tokens received from the model
  std::int32_t num_computed =
      0;  // tokens whose KV is computed once all batches in flight have ended
  std::int32_t num_in_flight =
      0;                        // sampled by batches in flight, not received yet (async scheduling)
  std::int32_t num_drafts = 0;  // speculative tokens to be verified by the next step
  std::int32_t num_keyed_blocks = 0;  // leading blocks that carry a key
  std::int32_t priority = 0;
  std::int32_t adapter = 0;  // LoRA; 0: the model itself
  std::int32_t lost_to =
      0;  // computed tokens when it was preempted: up to here, computing is computing again
  std::int32_t kv_brought =
      0;  // tokens of KV that were moved to its group before it runs there for the first time
  std::uint32_t epoch = 0;  // +1 at each preemption
  std::uint8_t status = 0;  // Status
  bool remote_kv = false;   // the KV of the prompt comes from another group
  bool in_prompt =
      false;  // its last step did not reach the end of what was known (vLLM: is_prefill_chunk)
  std::int64_t aside = 0;  // its place among those who were passed over or parked and have not run
                           // since; 0: neither
  // While it has fewer tokens, known and computed, a step of one token finds nothing to do but to
  // count it: no block is filled or needed, and nothing ends. Set whenever a step is scheduled in
  // full by VllmV1. Sglang uses the first alone, for outputs.
  std::int32_t fast_until_tokens = 0, fast_computed = 0;
  // Known tokens when it last started to run; and computed ones of then and of steps in its prompt
  // that have ended since.
  std::int32_t started_with = 0, prompt_processed = 0;
  // Tokens of steps in flight that were formed before it lost its blocks.
  std::int32_t stale = 0;
  Ps arrival = 0;                     // for the priority order
  std::int64_t next_decode_call = 0;  // of its scheduler, before which it does not run
  std::vector<BlockId> blocks;

  // Of a request that begins anew: nothing has happened to it.
  Sequence renewed() const {
    Sequence fresh;
    fresh.prompt_tokens = fresh.num_tokens = prompt_tokens;
    fresh.priority = priority;
    fresh.adapter = adapter;
    fresh.arrival = arrival;
    return fresh;
  }

  std::int32_t emitted() const { return num_tokens - prompt_tokens; }
  // Leading tokens that no step in flight computes: behind the first token that it got since it
  // started, all but the last one.
  std::int32_t processed() const {
    return num_tokens > started_with ? num_tokens - 1 : prompt_processed;
  }
};

}  // namespace llmsim
