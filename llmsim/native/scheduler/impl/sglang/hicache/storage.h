// Storage behind SGLang's host pool (HiCache's third level): mem_cache/unified_radix_cache.py,
// storage_prefetch.py and managers/cache_controller.py of SGLang 0.5.23.
//
// What was copied to the host is written to storage. A request that joins the queue looks there
// for what neither the device nor the host has of its prompt; what is found comes to host memory,
// half of which such requests may ask for, and becomes a part of the tree. The queue's head waits
// for that as the policy says. Who found nothing may look again some passes later.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "kv/radix/radix_tree.h"
#include "scheduler/host_cache_config.h"
#include "scheduler/impl/sglang/hicache/storage_threads.h"

namespace llmsim {

// Pages of the host pool, and how many of them are free.
struct HostPages {
  std::int64_t all, free;
};

class SglangStorage {
 public:
  using NodeId = RadixTree::NodeId;
  // Leaves of the host leave it until so many pages are free, or none can.
  using Evict = std::function<void(std::int32_t pages)>;
  static constexpr std::int32_t kUnknown = -1;

  // The pages behind those that the device and the host have, up to `end`.
  struct Asked {
    RequestId request;
    NodeId last;  // node of what they have
    std::int32_t first;
    std::vector<Key> keys;
    std::int32_t stored_end = kUnknown;  // storage holds them up to there, as a search has shown
  };
  // Somebody looks again.
  struct Retry {
    RequestId request;
    std::int32_t stored_end;
  };

  // With `back`, pages are copied to the host when they leave the device.
  SglangStorage(const HostStorageConfig& config, std::int32_t page_size, bool back, RadixTree& tree,
                HostPages& host, Evict evict, HostCacheCounters& counters);

  // A pass of the scheduler begins, which sees what has happened until then.
  void begin_pass(Ps now);
  void prefetch(Asked asked, Ps now);
  // Whether a request goes on with what it has; if so, nothing more comes for it.
  bool ready(RequestId request);
  // Somebody asks and is left out of this pass; the next one says whether it waits for an answer.
  void leave_out() { leaves_out_ = true; }
  void admitted(RequestId request);
  void release(RequestId request);
  // Who looks again in this pass, in the order of the queue.
  std::vector<Retry> retries(std::span<const RequestId> waiting,
                             const std::function<std::int64_t(RequestId)>& attempts);
  std::int64_t most_retries() const { return config_.most_retries; }
  void write(NodeId node, Ps at);
  // Hears of what the threads have ended. What was given back before that is free.
  void drain();

  // When anything happens next; the largest Ps where nothing does.
  Ps next(Ps now) const;
  // Whether the next pass finds something new, though nothing happens until then: who was left out,
  // somebody of the queue who counts passes until it looks again, or memory that was given back.
  bool passes_again(std::span<const RequestId> waiting) const {
    const auto counts = [this](RequestId request) { return misses_.contains(request); };
    return leaves_out_ || returned_ > 0 || std::ranges::any_of(waiting, counts);
  }
  bool writes() const { return writing_ > 0; }
  // Pages of the host pool that are neither free nor in the tree.
  std::int64_t held() const { return held_ + returned_; }

 private:
  using Prefetch = StorageThreads::Prefetch;
  struct Wait {
    Ps since, timeout;
    bool late = false;
  };
  struct Miss {
    std::int32_t stored_end;
    std::int64_t due = kUnknown;  // pass; unknown: it has not been seen in the queue
  };

  std::int64_t tokens(std::size_t pages) const {
    return static_cast<std::int64_t>(pages) * page_size_;
  }
  bool too_few(std::size_t pages) const { return tokens(pages) < config_.prefetch_threshold; }
  // Requests ask for half of the host pool, at most.
  bool crowded() const { return asked_tokens_ >= tokens(static_cast<std::size_t>(host_.all)) / 2; }
  void miss(RequestId request, std::int32_t stored_end = kUnknown) {
    misses_.insert_or_assign(request, Miss{stored_end});
  }
  bool waits(const StorageSearch& search) const;
  bool late(const StorageSearch& search) const;
  void searched(const Prefetch& search);
  void take_memory(const Prefetch& search);
  void progress(const StorageThreads::Progress& progress);
  // What has come becomes a part of the tree.
  void settle(const Prefetch& search);
  // A request's search is over; what it has in host memory is given back.
  void retire(RequestId request);

  HostStorageConfig config_;
  std::int32_t page_size_;
  bool back_;
  RadixTree& tree_;
  HostPages& host_;
  Evict evict_;
  HostCacheCounters& counters_;
  StorageThreads threads_;
  std::unordered_map<RequestId, Prefetch> searches_;
  std::map<RequestId, Wait> waits_;
  std::unordered_map<RequestId, Miss> misses_;
  std::int64_t pass_ = 0, asked_tokens_ = 0, writing_ = 0;
  std::int64_t held_ = 0, returned_ = 0;  // pages: that searches hold, and have given back
  Ps now_ = 0;
  bool leaves_out_ = false;
};

}  // namespace llmsim
