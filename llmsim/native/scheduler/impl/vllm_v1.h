// vLLM's v1 scheduler, version 0.24, proven step for step against recorded schedules
// (tests/conformance).
#pragma once

#include <memory>
#include <vector>

#include "kv/kv_cache.h"
#include "scheduler/deferred_frees.h"
#include "scheduler/parked_queue.h"
#include "scheduler/pending_release.h"
#include "scheduler/scheduler.h"
#include "scheduler/speculation.h"
#include "scheduler/step_limits.h"
#include "scheduler/waiting_queue.h"

namespace llmsim {

struct VllmV1Config {
  std::int32_t max_num_seqs = 128;
  std::int32_t max_num_scheduled_tokens = 2048;
  bool chunked_prefill = true;
  bool reserve_full_isl = true;
  bool async_scheduling = false;
  // Calls of the scheduler from one decode of a sequence to its next, with async scheduling: the
  // pipeline stages of vLLM's Model Runner V2, whose workers pass sampled tokens on in so many
  // turns.
  std::int32_t decode_interval = 1;
  bool output_length_known = true;  // answers end with their last token asked for, and not with one
                                    // that only the model knows
  std::int32_t watermark_blocks = 0;
  bool prefill_first = false;  // not vLLM: a step is all prompts while there are any
  bool decode_only = false;    // not vLLM: requests arrive with the KV of their prompts
  bool kv_producer =
      false;  // a prefill group: keeps the blocks of ended requests until their KV has been read
  bool kv_consumer = false;  // a decode group: the KV of prompts comes from prefill groups
  bool prefill_all_but_last_token =
      false;  // the producer's KV excludes the prompt's last token (see KvTable)
  // With several batches in flight and a connector, a request that leaves one of them behind gives
  // its blocks back when they have ended; without a connector (no role, no tiers) at once.
  bool defer_block_free = false;
  bool disable_fast_path =
      false;  // no fast path for single-token decodes: same result, slower; for tests
  QueueConfig queue;
  SpeculationConfig speculation;
  StepLimitsConfig limits;
  KvCacheConfig kv;
  std::function<std::int64_t(std::span<const SequenceView>, const SequenceView&)> victim =
      nullptr;  // Policies::victim
};

// There is no prefill or decode phase: every request has computed tokens and wanted tokens, and a
// step closes the gap within the token budget, running requests first, then waiting ones.
class VllmV1 final : public Scheduler,
                     public KvConnector,
                     public TieredKv,
                     public PrefixEvents,
                     public RoundCounting {
 public:
  VllmV1(const VllmV1Config& config, SequenceTable& sequences, RequestLog& log);

  void add(RequestId request) override;
  bool has_requests() const override {
    return !running_.empty() || !waiting_.empty() || !parked_.empty();
  }
  void schedule(Ps now, Batch& batch) override;
  void update(const Batch& batch, std::vector<RequestId>& finished) override;
  void abort(RequestId request) override;
  bool asks_again() const override;

  Gauges gauges() const override;
  const SchedulerCounters& counters() const override { return counters_; }
  Limits limits() const override;
  std::int64_t most_blocks(std::int64_t slots) const override {
    return kv_.most_blocks(slots, limits().slots_ahead);
  }
  bool pool_consistent() const override { return kv_.pool().consistent(); }

  KvConnector* kv_connector() override { return this; }
  void take_reserved(std::vector<Reserved>& out) override;
  void transferred(RequestId request) override;
  TieredKv* tiered_kv() override { return this; }
  void use_tiers(GroupTiers* tiers) override { kv_.use_tiers(tiers); }
  bool may_park() const override { return true; }
  PrefixEvents* prefix_events() override { return this; }
  void log_keys(KeyLog* log) override { kv_.log_keys(log); }
  RoundCounting* round_counting() override { return this; }
  void set_round(std::int64_t round) override { steps_ = round; }

 private:
  std::int32_t num_running() const { return static_cast<std::int32_t>(running_.size()); }
  std::int32_t num_waiting() const {
    return static_cast<std::int32_t>(waiting_.size()) + parked_.size();
  }
  bool parks() const { return config_.kv_consumer || kv_.parks(); }
  enum class Only : std::uint8_t { kAll, kPrefills, kDecodes };
  void build_prefill_first(Ps now, Batch& batch, StepBudget& budget);
  // False when it stopped at a request without room.
  bool schedule_running(Batch& batch, StepBudget& budget, Only only = Only::kAll);
  void schedule_waiting(Ps now, Batch& batch, StepBudget& budget);
  // kNoRoom: nobody behind it may run either.
  enum class Admission : std::uint8_t { kNoRoom, kParked, kScheduled };
  Admission admit(Ps now, RequestId request, std::int32_t budget, Batch& batch, bool alone);
  Admission reserve(Ps now, RequestId request);
  Admission load(Ps now, RequestId request, std::int32_t hit, std::int32_t recalled);
  Admission admit_arrived(Ps now, RequestId request, std::int32_t budget, Batch& batch);
  // Tokens of a request that has `computed`, in this step; 0: it would have to be cut and may not
  // be, or has to wait.
  std::int32_t first_tokens(const Sequence& s, std::int32_t computed, std::int32_t budget) const;
  bool room_to_load(const Sequence& s, std::int32_t slots) const;
  void park(RequestId request, std::int32_t cached, std::int32_t loaded, std::int32_t transfers);
  bool somebody_decodes() const;
  // Both sides of a transfer hold the same blocks (vLLM: limit_lookahead_tokens).
  std::int32_t lookahead_of_loads() const {
    return config_.kv.drops_last_hit ? 0 : config_.speculation.lookahead;
  }
  std::int32_t blocks_still_needed() const;
  std::int32_t spare_blocks() const { return running_.empty() ? 0 : config_.watermark_blocks; }
  std::int32_t tokens_wanted(RequestId request, const Sequence& s, std::int32_t budget) const;
  // Frees blocks until `request` can hold `tokens`; false when it had to preempt the request
  // itself. `index` is the request's place in the running list and moves when a victim stood before
  // it.
  bool make_room(RequestId request, std::int32_t tokens, Batch& batch, StepBudget& budget,
                 std::size_t& index);
  bool unschedule(RequestId request, Batch& batch, StepBudget& budget);
  std::size_t choose_victim(RequestId needy) const;
  void preempt(RequestId request);
  void release(RequestId request, bool preempted);
  bool defer_block_free() const {
    return config_.defer_block_free &&
           (config_.kv_producer || config_.kv_consumer || kv_.has_tiers());
  }
  void run(RequestId request, std::int32_t tokens, Batch& batch);
  // Whether nothing but the sequence decides what a step of one token does.
  bool may_take_fast_path() const {
    return !config_.disable_fast_path && !config_.kv_producer && config_.decode_interval == 1 &&
           !config_.speculation.on() && !kv_.has_tiers();
  }
  void calm(RequestId request, Sequence& s, std::int32_t before) const;
  void leave_drafts(Batch& batch);
  void receive(const Item& item, std::int32_t drafts_after, std::vector<RequestId>& finished);
  bool stops(RequestId request, const Sequence& s) const;
  void finish(RequestId request, std::vector<RequestId>& finished);

  VllmV1Config config_;
  SequenceTable& sequences_;
  RequestLog& log_;
  KvCache kv_;
  WaitingQueue waiting_;
  ParkedQueue parked_;
  PrefillPacing pacing_;
  std::int32_t most_running_;
  std::int32_t prompt_cap_ = 0;    // of the step that is being built; 0: none
  bool defers_prompts_ = false;    // in that step
  bool some_run_ = false;          // in that step, of those that ran before it,
  bool some_prompts_run_ = false;  // and of these some that had not reached their end
  std::int64_t calls_ = 0;         // of `build`
  std::int64_t steps_ =
      0;  // with work since the last one without; a lock-step group sets it to its own
  std::vector<Reserved> reserved_;           // by the last build
  std::vector<RequestId> partly_prefilled_;  // parked or running, where requests can be parked
  PendingReleases leaving_;
  DeferredFrees late_;
  std::vector<RequestId> running_;
  std::vector<BlockId> hits_;  // scratch
  SchedulerCounters counters_;
  bool some_running_finished_ = false;
};

}  // namespace llmsim
