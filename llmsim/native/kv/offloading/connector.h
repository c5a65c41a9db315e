// Which chunks of a group's KV are copied to host memory and back, and when (the scheduler's half
// of vLLM's OffloadingConnector, 0.33: kv_connector/v1/offloading/scheduler.py), for layers that
// see everything.
//
// A chunk is some blocks of a sequence. It is stored with the step that completes it, once; the
// pool holds its room from then on, and gives it to nobody until the copy has ended. A waiting
// request whose prefix goes on in the pool is parked until that has come. It is passed over for a
// step where a chunk of it is on its way, in either direction, or where a copy of its own is.
// With a budget of tokens that a step may load, who fits it is not parked, but runs in the step,
// which waits for the load.
//
// Blocks of a request that has ended are free while they are being stored: a step that takes one of
// them waits for the copy, as does one that takes away a running request's blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/types.h"
#include "kv/kv_below.h"
#include "kv/offloading/copies.h"
#include "kv/offloading/counters.h"
#include "kv/offloading/cpu_manager.h"
#include "request/sequence_table.h"

namespace llmsim {

struct OffloadingConfig {
  CpuManagerConfig pool;
  std::int32_t blocks_per_chunk = 1;
  bool prompt_only = true;            // chunks of answers are not stored
  std::int64_t sync_load_tokens = 0;  // that a step loads and waits for, at most
};

class OffloadingConnector final : public KvBelow {
 public:
  // The key of a request's block.
  using KeyOf = std::function<Key(RequestId request, std::int32_t block)>;

  // `drafts_from_states`: a drafter reads hidden states. Throws std::invalid_argument for numbers
  // out of range.
  OffloadingConnector(const OffloadingConfig& config, std::int32_t block_size,
                      bool drafts_from_states, SequenceTable& sequences, KeyOf key_of,
                      GroupCopies& copies);

  bool parks() const override { return true; }
  bool parks_for(RequestId request) const override { return !loads_in_step_.contains(request); }
  std::int32_t chunk_tokens() const override { return chunk_tokens_; }
  std::int32_t find(RequestId request, std::int32_t cached) override;
  void recall(RequestId request, std::int32_t hit, std::int32_t recalled) override;
  void begin_load(RequestId, std::int32_t, std::int32_t) override {}
  void end_load(RequestId request, std::int32_t hit, std::int32_t recalled) override;
  void computed(RequestId, std::int32_t, std::int32_t) override {}
  void scheduled(std::span<const Scheduled> items, std::span<const RequestId> preempted) override;
  void left(RequestId request, std::int32_t computed, Leave how) override;
  bool moved(RequestId request) override;
  std::int32_t num_unawaited() const override { return num_unawaited_; }
  bool consistent() const override { return pool_.consistent(); }
  bool pending() const override { return !left_.empty() || !jobs_.empty(); }

  OffloadingCounters totals() const {
    OffloadingCounters totals = counters_;
    totals.evicted_tokens = pool_.num_evicted() * chunk_tokens_;
    return totals;
  }

 private:
  using JobId = GroupCopies::JobId;
  enum class Kind : std::uint8_t { kStore, kLoad, kLoadInStep };
  struct Job {
    RequestId request;
    Kind kind;
    std::vector<OffloadedChunk> chunks;
    std::vector<BlockId> blocks;  // that a store reads
  };
  struct Request {
    std::vector<BlockId> blocks;  // those of its last step, whoever has them now
    std::int32_t num_stored = 0;  // chunks that need not be offered again
    std::deque<JobId> jobs;       // under way
    ChunkAccess access;
    bool has_left = false;
  };

  OffloadedChunk chunk_of(RequestId request, std::int32_t place) const {
    return {key_of_(request, (place + 1) * config_.blocks_per_chunk - 1), place};
  }
  // As `find`, of a request without transfers.
  std::int32_t look_up(RequestId request, std::int32_t cached);
  void touch(RequestId request);
  std::vector<OffloadedChunk> chunks_of(RequestId request, std::int32_t first,
                                        std::int32_t end) const;
  // Whether the step waits for the load of so many tokens behind the first `cached` ones. Takes
  // them off its budget.
  bool loads_in_step(RequestId request, std::int32_t cached, std::int32_t found);
  void begin_load(RequestId request, std::int32_t hit, std::int32_t recalled, Kind kind);
  void note_blocks(RequestId request);
  void flush_preempted(RequestId request);
  void flush_taken();
  void store(RequestId request, std::int32_t computed);
  // Of a request's chunks up to so many tokens: where those end that are offered, and what it need
  // not offer again then.
  struct Storable {
    std::int32_t end, reached;
  };
  Storable storable(RequestId request, const Request& one, std::int32_t computed) const;
  std::int32_t kept_tokens(RequestId request, std::int32_t computed, Leave how) const;
  void begin_store(RequestId request, Request& one, std::vector<OffloadedChunk> chunks);
  void watch(JobId job, const std::vector<BlockId>& blocks);

  OffloadingConfig config_;
  const OffloadingRules& rules_ = config_.pool.rules;
  std::int32_t chunk_tokens_;
  std::int32_t drafted_;  // last chunks that a drafter may still write
  SequenceTable& sequences_;
  KeyOf key_of_;
  GroupCopies& copies_;
  CpuManager pool_;
  std::unordered_map<RequestId, Request> requests_;
  std::unordered_map<JobId, Job> jobs_;
  JobId next_job_ = 0, first_of_step_ = 0;
  std::unordered_set<Key> loading_;
  // Of the step that is being formed: whose loads it waits for, and their tokens.
  std::unordered_set<RequestId> loads_in_step_;
  std::int64_t sync_load_tokens_ = 0;
  std::vector<KvBelow::Scheduled> left_;  // since the last step
  std::unordered_set<BlockId> taken_;     // by this step, and by loads that begin with it
  // Stores that still read a block which nobody holds any more.
  std::unordered_map<BlockId, std::vector<JobId>> watched_;
  std::int32_t num_unawaited_ = 0;
  OffloadingCounters counters_;
};

}  // namespace llmsim
