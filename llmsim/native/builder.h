// The contract between the loop and a scheduler.
#pragma once

#include <cstdint>

#include "batch.h"
#include "kv_cache.h"
#include "request_log.h"
#include "sequence_table.h"

namespace llmsim {

struct BuilderCounters {
  std::int64_t prefix_queried_tokens = 0, prefix_hit_tokens = 0;
  std::int64_t preemptions = 0, recomputed_tokens = 0;
  std::int64_t prompt_tokens = 0, generation_tokens = 0;
  std::int64_t finished = 0;
  std::int32_t peak_blocks_used = 0;
};

// Owns its group's queues and KV cache. Batches complete in the order in which they were built.
class Builder {
 public:
  virtual ~Builder() = default;
  // The engine sees the request from now on.
  virtual void add(RequestId request) = 0;
  // Whether any request is unfinished, running in flight or waiting.
  virtual bool has_requests() const = 0;
  // Fills `batch` (cleared first) with the next iteration; leaves it empty when nothing can be scheduled now.
  virtual void build(Ps now, Batch& batch) = 0;
  // The model's output for `batch` has arrived; finished requests leave and their rows are appended to `finished`.
  virtual void complete(const Batch& batch, std::vector<RequestId>& finished) = 0;

  virtual std::int32_t num_running() const = 0;
  virtual std::int32_t num_waiting() const = 0;
  virtual const KvCache& kv_cache() const = 0;
  virtual const BuilderCounters& counters() const = 0;
};

}  // namespace llmsim
