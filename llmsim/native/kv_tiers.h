// KV below the device's pool: what is found there is recalled, what is computed or pushed out is written there, and
// both are transfers over the cluster's links.
//
// A chunk is the KV of `chunk_tokens` tokens of a sequence, named by the key of its last block, so by its whole prefix.
// Its bytes are those of all ranks; each rank moves its own share.
// Recall: an admitted request takes the blocks of what the tiers hold beyond its hits; its batch starts when all of it
// has landed, and the batches behind it wait too (vLLM's connectors without asynchronous loading).
// Write-through: a chunk is written when it has been computed. Selective: when the device's own cache hits it for the
// first time. Both read blocks that stay valid meanwhile; who takes a freed block does not wait for the copy.
// Write-back: a chunk is written when its last block loses its content on the device, and the batch that takes the
// block waits; the other blocks of a chunk go later, since the last of a sequence are given back first. What a pool
// gives up moves to the next one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "fabric.h"
#include "tier_pool.h"
#include "types.h"

namespace llmsim {

enum class TierWrite : std::uint8_t { kThrough, kSelective, kBack };

// A group's view of the pools below it.
struct GroupTiersConfig {
  std::vector<std::int32_t> pools;   // in order of lookup
  std::vector<PlaceId> ranks;        // its devices
  std::int32_t chunk_tokens = 256;   // a multiple of its block size
  std::int64_t bytes_per_token = 0;  // of one rank
  std::int32_t model = 0;            // content of different models never meets
};

struct KvTiersConfig {
  std::vector<TierPoolConfig> pools;
  std::vector<GroupTiersConfig> groups;  // by index; no pools: the group has no tiers
  TierWrite write = TierWrite::kThrough;
};

// Gauges and counters per interval and pool, as columns.
struct TierSeries {
  std::vector<Ps> time_ps;
  std::vector<std::int32_t> pool;
  std::vector<std::int64_t> used_bytes, hit_tokens, recalled_bytes, written_bytes, evicted_chunks, thrashed_chunks;
};

class KvTiers;

// What a group's KV cache and loop call. `begin` opens a build; what is asked until `start` belongs to its batch.
class GroupTiers {
 public:
  GroupTiers(KvTiers& tiers, std::int32_t group) : tiers_(tiers), group_(group) {}

  std::int32_t chunk_tokens() const;
  TierWrite write() const;
  // Whether any pool holds the chunk, ready to be read.
  bool holds(Key key) const;
  // The batch being built reads `tokens` tokens of this chunk.
  void recall(const TierChunk& chunk, std::int32_t tokens);
  // The chunk has been computed, or hit, or pushed out: it is written to where it is missing.
  void store(Key key, std::int32_t depth, bool gate);

  // Starts what was asked for; true when the batch may run now.
  bool start(Ps now);
  // Whether all that the batch waits for has landed.
  bool open() const { return gates_ == 0; }

 private:
  friend class KvTiers;
  struct Wanted {
    std::int32_t pool;
    std::vector<Key> keys;
    std::int64_t bytes_per_rank = 0;
  };

  KvTiers& tiers_;
  std::int32_t group_;
  std::vector<Wanted> recalls_;
  struct Write {
    TierChunk chunk;
    bool gate;
  };
  std::vector<Write> writes_;
  std::int32_t gates_ = 0;
};

class KvTiers final : public TransferOwner {
 public:
  // `wake` lets a group act once its gate has opened. Throws std::invalid_argument for numbers out of range.
  KvTiers(KvTiersConfig config, Fabric& fabric, std::function<void(std::int32_t)> wake);

  // Null for a group without tiers.
  GroupTiers* of(std::int32_t group) { return groups_[static_cast<std::size_t>(group)].get(); }
  const std::vector<TierPool>& pools() const { return pools_; }
  // The interval that ends at `now` is over.
  void sample(Ps now);
  const TierSeries& series() const { return series_; }
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;

 private:
  friend class GroupTiers;
  struct Job {
    std::int32_t group = 0, pool = 0, transfers = 0;  // still under way
    bool recall = false, gate = false;
    std::vector<Key> keys;
  };
  const GroupTiersConfig& config_of(std::int32_t group) const {
    return config_.groups[static_cast<std::size_t>(group)];
  }
  std::uint64_t new_job(Job job);
  void start_recall(std::int32_t group, const GroupTiers::Wanted& wanted, Ps now);
  void start_write(std::int32_t group, const TierChunk& chunk, bool gate, Ps now);
  void write_to(std::size_t level, std::int32_t group, const TierChunk& chunk, PlaceId from, bool gate, Ps now);

  KvTiersConfig config_;
  Fabric& fabric_;
  std::function<void(std::int32_t)> wake_;
  std::vector<TierPool> pools_;
  std::vector<std::unique_ptr<GroupTiers>> groups_;
  std::vector<Job> jobs_;
  std::vector<std::uint64_t> free_jobs_;
  TierSeries series_;
  std::vector<TierCounters> sampled_;
};

}  // namespace llmsim
