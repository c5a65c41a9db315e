// One pool of KV below the device's: which chunks it holds, and which it gives up when it is full.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/types.h"
#include "network/shared_network.h"

namespace llmsim {

// Which chunk of a full pool goes first.
enum class TierEviction : std::uint8_t {
  // The least recently used chunk.
  kLru,
  // The least often used chunk since it came; of several, the least recently used.
  kLfu,
  // GreedyDual-Size-Frequency (L. Cherkasova, HP Labs HPL-98-69, 1998): uses times the cost of
  // computing the chunk again, above the value of the last evicted chunk, so that nothing stays for
  // ever. A chunk's cost grows with its position in the sequence, as attention's does.
  kCost
};

struct TierPoolConfig {
  // Which of the places has the share of a rank of a group of so many.
  std::size_t part_of(std::size_t rank, std::size_t ranks) const {
    return rank * places.size() / ranks;
  }

  std::string name;
  std::int64_t capacity_bytes = 0;
  TierEviction eviction = TierEviction::kLru;
  // A memory for each of the nodes among which the ranks of its groups are spread evenly, in order;
  // each has the shares of its ranks. Mostly one.
  std::vector<NetworkNodeId> places{0};
  // A storage device serves so many reads and writes (a chunk of one rank each) at once, in order
  // of arrival; the latency comes before the first byte. 0: a memory, which serves all at once and
  // in as few transfers as there are ranks.
  std::int32_t queue_depth = 0;
  Ps read_latency = 0, write_latency = 0;
};

struct TierCounters {
  std::int64_t hit_chunks = 0, hit_tokens = 0;  // recalled
  std::int64_t missed_chunks = 0;  // looked for and not there, by requests that were admitted
  std::int64_t written_chunks = 0, evicted_chunks = 0,
               unwritten_chunks = 0;  // unwritten: no room could be made
  std::int64_t thrashed_chunks =
      0;  // written again within as many evictions as the pool holds chunks
  std::int64_t recalled_bytes = 0, written_bytes = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t operations = 0,
               queued_operations = 0;  // of a storage device; queued: had to wait for others
};

struct TierChunk {
  Key key = 0;
  std::int64_t bytes = 0;
  std::int32_t depth = 0;  // place in its sequence, from 0
};

// Changed by KvTiers only. A chunk is on its way (its room is taken), there, or there and being
// read; what is on its way or being read stays.
class TierPool {
 public:
  explicit TierPool(TierPoolConfig config) : config_(std::move(config)) {}

  const TierPoolConfig& config() const { return config_; }
  const TierCounters& counters() const { return counters_; }
  TierCounters& counters() { return counters_; }
  std::int64_t used_bytes() const { return used_; }
  std::int64_t num_chunks() const { return static_cast<std::int64_t>(entries_.size()); }

  // Whether it is there and can be read.
  bool holds(Key key) const {
    const auto found = entries_.find(key);
    return found != entries_.end() && found->second.ready;
  }
  // Whether it is there or on its way.
  bool knows(Key key) const { return entries_.contains(key); }
  // Takes room for a chunk on its way, giving up others, which are appended; false, with nothing
  // changed, when there is not enough that may go. Requires !knows(key).
  bool reserve(const TierChunk& chunk, std::vector<TierChunk>& given_up);
  void arrived(Key key);
  // It loses all that it holds. Requires that nothing is read or on its way.
  void clear();
  // A request reads it, or would have.
  void use(Key key);
  void begin_read(Key key);
  void end_read(Key key);

  std::int64_t num_readers() const;   // summed over its chunks
  std::int64_t num_arriving() const;  // chunks on their way
  // Recounts (invariant 4).
  bool consistent() const;

 private:
  struct Entry {
    std::int64_t bytes = 0, uses = 0, value = 0, turn = 0;
    std::int32_t depth = 0, readers = 0;
    bool ready = false;
  };
  using Rank = std::tuple<std::int64_t, std::int64_t, Key>;  // value, turn of the last use, key
  bool listed(const Entry& entry) const { return entry.ready && entry.readers == 0; }
  void revalue(Entry& entry);
  void remember(Key key);

  TierPoolConfig config_;
  TierCounters counters_;
  std::unordered_map<Key, Entry> entries_;  // looked up only
  std::set<Rank> order_;                    // of those that may go, the first to go first
  std::int64_t used_ = 0, free_to_go_ = 0, turn_ = 0, floor_ = 0;
  // What was given up lately, in order, and as which eviction; written again, a key is in the deque
  // only.
  std::deque<std::pair<Key, std::int64_t>> given_up_;
  std::unordered_map<Key, std::int64_t> ghosts_;
};

}  // namespace llmsim
