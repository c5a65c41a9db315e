// A pool of KV in host memory: which chunks it holds, writes and reads (vLLM 0.33:
// vllm/v1/kv_offload/cpu/manager.py).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "kv/offloading/cache_policy.h"
#include "kv/offloading/rules.h"
#include "kv/offloading/store_filter.h"

namespace llmsim {

struct CpuManagerConfig {
  std::int64_t num_chunks = 0;
  OffloadingEviction eviction = OffloadingEviction::kLru;
  // A chunk is stored when it is offered, or looked for, for the so manieth time; below 2: at once.
  std::int32_t store_threshold = 0;
  std::int64_t max_tracker_size = 64'000;  // chunks that are counted for it
  OffloadingRules rules;
};

class CpuManager {
 public:
  enum class Lookup : std::uint8_t { kMiss, kHit, kPending };

  explicit CpuManager(const CpuManagerConfig& config)
      : config_(config),
        policy_(make_cache_policy(config.eviction, config.num_chunks, config.rules)),
        filter_(make_store_filter(config.store_threshold, config.max_tracker_size, config.rules)) {}

  // What a request finds that looks for the chunk. kPending: it is being written.
  Lookup look_up(Key key);
  // The request reads these, which are all there, until `complete_load`.
  void prepare_load(std::span<const OffloadedChunk> chunks, ChunkAccess& request);
  void complete_load(std::span<const OffloadedChunk> chunks);
  // Of the request's chunks, takes room for those that are to be written; nothing where there is
  // not enough.
  std::optional<std::vector<OffloadedChunk>> prepare_store(std::span<const OffloadedChunk> chunks,
                                                           ChunkAccess& request);
  void complete_store(std::span<const OffloadedChunk> chunks);
  // The request has looked for its chunks, of which these are all, or stores some of them.
  void touch(std::span<const OffloadedChunk> chunks) { policy_->touched(chunks, held_); }
  void request_finished(const ChunkAccess& request) { policy_->request_finished(request, held_); }

  std::int64_t num_held() const { return static_cast<std::int64_t>(held_.size()); }
  std::int64_t num_evicted() const { return num_evicted_; }
  // Recounts what may be given up (invariant 4).
  bool consistent() const;

 private:
  Lookup lookup(Key key) const;
  void note_access(std::span<const OffloadedChunk> chunks, ChunkAccess& request);
  bool make_room(std::size_t count, std::span<const OffloadedChunk> spared);

  CpuManagerConfig config_;
  std::unique_ptr<CachePolicy> policy_;
  std::unique_ptr<StoreFilter> filter_;
  HeldChunks held_;
  std::int64_t num_idle_ = 0;  // of the held ones: no transfer uses them
  std::int64_t num_evicted_ = 0;
};

}  // namespace llmsim
