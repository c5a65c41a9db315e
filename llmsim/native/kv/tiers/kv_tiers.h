// KV below the device's pool: what is found there is recalled, what is computed or pushed out is
// written there, and both are transfers over the cluster's links.
//
// A chunk is the KV of `chunk_tokens` tokens of a sequence, named by the key of its last block, so
// by its whole prefix. Its bytes are those of all ranks; each rank moves its own share. Recall: an
// admitted request takes the blocks of what the tiers hold beyond its hits. Either its batch starts
// when all of it has landed, and the batches behind it wait too (vLLM's connectors that load
// synchronously); or the request alone is parked until then, and others go on (vLLM's
// WAITING_FOR_REMOTE_KVS). Write-through: a chunk is written when it has been computed. Selective:
// when the device's own cache hits it for the first time. Both read blocks that stay valid
// meanwhile; who takes a freed block does not wait for the copy. Write-back: a chunk is written
// when its last block loses its content on the device, and the batch that takes the block waits, or
// the recall into it of a request that is parked; the other blocks of a chunk go later, since the
// last of a sequence are given back first. What a pool gives up moves to the next one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/columns.h"
#include "base/types.h"
#include "kv/tiers/group_moves.h"
#include "kv/tiers/tier_pool.h"
#include "network/shared_network.h"

namespace llmsim {

enum class TierWrite : std::uint8_t { kThrough, kSelective, kBack };

// A group's view of the pools below it.
struct GroupTiersConfig {
  std::vector<std::int32_t> pools;            // in order of lookup
  std::vector<NetworkNodeId> ranks;           // its devices
  std::int32_t chunk_tokens = 256;            // a multiple of its block size
  std::vector<std::int64_t> bytes_per_token;  // of each rank
  std::int32_t model = 0;                     // content of different models never meets
  std::int64_t all_bytes_per_token() const {
    return std::accumulate(bytes_per_token.begin(), bytes_per_token.end(), std::int64_t{0});
  }
};

struct KvTiersConfig {
  std::vector<TierPoolConfig> pools;
  std::vector<GroupTiersConfig> groups;  // by index; no pools: the group has no tiers
  TierWrite write = TierWrite::kThrough;
  bool parks = false;   // who recalls is parked alone; needs a scheduler that knows such requests
  bool shared = false;  // pools outlive the groups that use them
  // A place of pools that is several memories, over which all KV there is spread evenly: their
  // places; empty: none is.
  NetworkNodeId striped = -1;
  std::vector<NetworkNodeId> stripes;
};

// Gauges and counters per interval and pool, as columns.
struct TierSeries {
  std::vector<Ps> time_ps;
  std::vector<std::int32_t> pool;
  std::vector<std::int64_t> used_bytes, hit_tokens, recalled_bytes, written_bytes, evicted_chunks,
      thrashed_chunks;

  static constexpr auto columns() {
    using S = TierSeries;
    return std::tuple{
        Column{"time_ps", &S::time_ps},
        Column{"pool", &S::pool},
        Column{"used_bytes", &S::used_bytes},
        Column{"hit_tokens", &S::hit_tokens},
        Column{"recalled_bytes", &S::recalled_bytes},
        Column{"written_bytes", &S::written_bytes},
        Column{"evicted_chunks", &S::evicted_chunks},
        Column{"thrashed_chunks", &S::thrashed_chunks},
    };
  }
};

class KvTiers;

// What a group's KV cache and loop call. What is asked for until a step is `formed` belongs to the
// batch being built, or, between `open_load` and `close_load`, to a request that is parked.
class GroupTiers final : public GroupMoves {
 public:
  GroupTiers(KvTiers& tiers, std::int32_t group) : tiers_(tiers), group_(group) {}

  std::int32_t chunk_tokens() const;
  TierWrite write() const;
  bool parks() const;
  // Whether any pool holds the chunk, ready to be read.
  bool holds(Key key) const;
  // `tokens` tokens of this chunk are read. Requires holds(chunk.key).
  void recall(const TierChunk& chunk, std::int32_t tokens);
  // Counts a lookup by an admitted request that missed.
  void missed();
  // The chunk has been computed, or hit, or (`gate`) pushed out: it is written to where it is
  // missing.
  void store(Key key, std::int32_t depth, bool gate);
  void open_load(RequestId request) {
    loads_.emplace_back().request = request;
    loading_ = true;
  }
  void close_load() { loading_ = false; }

  // What is asked for starts at once.
  void formed(Ps now, std::int32_t, bool) override { start(now); }
  void step_ended(Ps now) override { start(now); }
  // Recounts all pools. O(chunks).
  bool consistent() const override;
  bool open() const override { return gates_ == 0; }
  // What a pool hands on to the next counts for both.
  const std::vector<std::pair<std::int32_t, std::int64_t>>& moved() const override {
    return moved_;
  }

 private:
  friend class KvTiers;
  void start(Ps now);
  void count(std::int32_t pool, std::int64_t bytes);

  struct Piece {
    Key key;
    std::int32_t tokens;
  };
  struct Wanted {
    std::int32_t pool;
    std::vector<Piece> pieces;
  };
  struct Write {
    TierChunk chunk;
    bool gate;
  };
  // A parked request's: first what its blocks held is written back, then they are filled.
  struct Load {
    RequestId request = -1;
    std::vector<Wanted> recalls;
    std::vector<Write> writes;
    std::int32_t group = 0, jobs = 0;  // under way
    bool reading = false;
  };

  KvTiers& tiers_;
  std::int32_t group_;
  std::vector<Wanted> recalls_;
  std::vector<Write> writes_;
  std::vector<Load> loads_;
  std::vector<std::pair<std::int32_t, std::int64_t>> moved_;
  bool loading_ = false;  // the last of `loads_` is open
  std::int32_t gates_ = 0;
};

class KvTiers final : public TransferOwner {
 public:
  struct Callbacks {
    std::function<void(std::int32_t group)> opened;  // its batch may start
    std::function<void(std::int32_t group, RequestId request)>
        loaded;  // a parked request's KV is there
  };
  // Throws std::invalid_argument for numbers out of range.
  KvTiers(KvTiersConfig config, SharedNetwork& network, Callbacks callbacks);

  // Groups come in the order of their indices. Throws std::invalid_argument as the constructor.
  void add_group(const GroupTiersConfig& group);
  // A group has left: pools that it had alone are empty.
  void leave(std::int32_t group);
  // Null for a group without tiers.
  GroupTiers* of(std::int32_t group) { return groups_[static_cast<std::size_t>(group)].get(); }
  const GroupTiers* of(std::int32_t group) const {
    return groups_[static_cast<std::size_t>(group)].get();
  }
  const std::vector<TierPool>& pools() const { return pools_; }
  bool parks() const { return config_.parks; }
  // The interval that ends at `now` is over.
  void sample(Ps now);
  // Hands over what was recorded since the last call.
  TierSeries take_series() { return std::exchange(series_, {}); }
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;
  // Recounts the pools, and what is on its way to and from them (invariant 4). O(chunks).
  bool consistent() const;

 private:
  friend class GroupTiers;
  struct Job {
    std::int32_t group = 0, pool = 0, transfers = 0;  // still under way; 0: the job is over
    bool recall = false, gate = false;
    std::int64_t load = -1;  // for which it is done; -1: for a batch, or for nobody
    std::vector<Key> keys;
    bool pieces = false;  // its transfers are one operation of a storage device
  };
  // A read or write of a storage device, or any other transfer.
  struct Operation {
    NetworkNodeId from = 0, to = 0;
    std::int64_t bytes = 0;
    std::uint64_t job = 0;
    bool read = false;
  };
  struct Queue {
    std::int32_t busy = 0;
    std::deque<Operation> waiting;
  };
  const GroupTiersConfig& config_of(std::int32_t group) const {
    return config_.groups[static_cast<std::size_t>(group)];
  }
  void view(const GroupTiersConfig& group);
  std::uint64_t new_job(Job job);
  void start_recall(std::int32_t group, const GroupTiers::Wanted& wanted, std::int64_t load,
                    Ps now);
  // Returns how many jobs it made.
  std::int32_t start_write(std::int32_t group, const GroupTiers::Write& write, std::int64_t load,
                           Ps now);
  // `from`: the pool that hands the chunk on; -1: the group's devices.
  bool write_to(std::size_t level, const TierChunk& chunk, std::int32_t from, Job job, Ps now);
  static std::vector<Operation> from_devices(const GroupTiersConfig& group,
                                             const TierPoolConfig& pool);
  std::vector<Operation> handed_on(const GroupTiersConfig& group, const TierChunk& chunk,
                                   std::int32_t from, std::int32_t to) const;
  void start_load(GroupTiers::Load load, Ps now);
  void read_load(std::int64_t load, Ps now);
  void job_of_load_ended(std::int64_t load, Ps now);
  void operate(std::int32_t pool, const Operation& operation, Ps now);
  void begin(std::int32_t pool, const Operation& operation, Ps now);
  void move(const Operation& operation, bool queued, Ps at, Ps now);
  void ended(std::int32_t pool, Ps now);

  KvTiersConfig config_;
  SharedNetwork& network_;
  Callbacks callbacks_;
  std::vector<TierPool> pools_;
  std::vector<Queue> queues_;  // by pool
  std::vector<std::unique_ptr<GroupTiers>> groups_;
  std::vector<Job> jobs_;
  std::vector<std::uint64_t> free_jobs_;
  std::vector<GroupTiers::Load> loads_;
  std::vector<std::int64_t> free_loads_;
  TierSeries series_;
  std::vector<TierCounters> sampled_;
};

}  // namespace llmsim
