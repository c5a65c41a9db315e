// Blocks that batches in flight still write though nobody holds them any more: free when those
// batches have ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "kv/kv_cache.h"
#include "program/batch.h"

namespace llmsim {

// vLLM 0.24 with a connector that may fill free blocks by itself: not ordered against what a batch
// in flight writes.
class DeferredFrees {
 public:
  // Nothing waits.
  bool empty() const { return waiting_.empty(); }
  // A batch is in flight from now on; batches end in the order in which they were begun.
  void begun(const Batch& batch) {
    if (batch.empty()) return;
    ++begun_;
    std::vector<RequestId>& requests = in_flight_.emplace_back();
    requests.reserve(batch.items.size());
    for (const Item& item : batch.items) requests.push_back(item.request);
  }
  // The oldest one has ended.
  void ended(const Batch& batch, KvCache& kv) {
    if (batch.empty()) return;
    in_flight_.pop_front();
    const std::int64_t ended = begun_ - static_cast<std::int64_t>(in_flight_.size());
    for (; !waiting_.empty() && waiting_.front().fence <= ended; waiting_.pop_front())
      kv.give_back(waiting_.front().blocks);
  }
  // Whether a batch in flight writes what the request holds.
  bool writes(RequestId request) const {
    return std::any_of(in_flight_.begin(), in_flight_.end(),
                       [request](const std::vector<RequestId>& batch) {
                         return std::find(batch.begin(), batch.end(), request) != batch.end();
                       });
  }
  // What the request holds is free when the youngest batch in flight has ended, or at once where it
  // is in none of them.
  void release(RequestId request, bool preempted, KvCache& kv) {
    if (!writes(request)) return kv.release(request, preempted);
    std::vector<BlockId> blocks = kv.take(request, preempted);
    if (!blocks.empty()) waiting_.push_back({begun_, std::move(blocks)});
  }

 private:
  struct Waiting {
    std::int64_t fence;  // batches that have to end, counted from the first of all
    std::vector<BlockId> blocks;
  };
  std::int64_t begun_ = 0;
  std::deque<std::vector<RequestId>> in_flight_;
  std::deque<Waiting> waiting_;
};

}  // namespace llmsim
