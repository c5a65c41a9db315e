// Which chunks a full pool of host memory gives up (vLLM 0.33: vllm/v1/kv_offload/cpu/policies).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/types.h"
#include "kv/offloading/rules.h"

namespace llmsim {

// A chunk of a request: its content, and its place among the request's chunks.
struct OffloadedChunk {
  Key key;
  std::int32_t place;
};

// What a request has had to do with the chunks of a pool, by their places.
struct ChunkAccess {
  std::map<std::int32_t, Key> seen;
  std::set<std::int32_t> inserted, reused, missed;
  std::int64_t rank = 0;  // of its chunks while it runs (LRU); 0: it has none yet
};

// Chunks that a pool holds, by key: transfers that read one, or -1 while it is being written.
using HeldChunks = std::unordered_map<Key, std::int32_t>;

class CachePolicy {
 public:
  virtual ~CachePolicy() = default;
  // A new chunk is being written for the request.
  virtual void inserted(const OffloadedChunk& chunk, ChunkAccess& request) = 0;
  // These are not held and will be, if there is room.
  virtual void missed(std::span<const OffloadedChunk> chunks) = 0;
  // The request sees these for the first time.
  virtual void accessed(std::span<const OffloadedChunk> chunks, ChunkAccess& request,
                        const HeldChunks& held) = 0;
  virtual void request_finished(const ChunkAccess& request, const HeldChunks& held) = 0;
  // A request has looked for its chunks, of which these are all, or stores some of them.
  virtual void touched(std::span<const OffloadedChunk>, const HeldChunks&) {}
  // Whether also those stay that are offered with new chunks, but too seldom to be stored.
  virtual bool spares_seldom_offered() const { return true; }
  // No transfer reads or writes the chunk any more; one does again.
  virtual void released(Key key) = 0;
  virtual void pinned(Key key) = 0;
  // Appends exactly `count` chunks that no transfer uses and that are not `spared`, which are given
  // up; false, with nothing changed, where there are fewer.
  virtual bool evict(std::size_t count, const std::unordered_set<Key>& spared,
                     const HeldChunks& held, std::vector<Key>& victims) = 0;
};

// The touched ones are those of vLLM up to 0.30.
enum class OffloadingEviction : std::uint8_t { kLru, kArc, kLruByChunk, kTouchedLru, kTouchedArc };

// For a pool of so many chunks.
std::unique_ptr<CachePolicy> make_cache_policy(OffloadingEviction kind, std::int64_t num_chunks,
                                               const OffloadingRules& rules);

}  // namespace llmsim
