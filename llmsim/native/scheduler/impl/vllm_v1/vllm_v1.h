// vLLM's v1 scheduler, version 0.24, proven step for step against recorded schedules
// (tests/conformance).
#pragma once

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kv/kv_cache.h"
#include "kv/tiers/load_failures.h"
#include "scheduler/config.h"
#include "scheduler/limits/encoder_cache.h"
#include "scheduler/limits/lora_slots.h"
#include "scheduler/limits/step_limits.h"
#include "scheduler/queue/deferred_frees.h"
#include "scheduler/queue/parked_queue.h"
#include "scheduler/queue/pending_release.h"
#include "scheduler/registry.h"
#include "scheduler/scheduler.h"

namespace llmsim {

// There is no prefill or decode phase: every request has computed tokens and wanted tokens, and a
// step closes the gap within the token budget, running requests first, then waiting ones. A ranking
// (config.ranking) may order both, choose victims, and let both lists take turns.
class VllmV1 final : public Scheduler,
                     public KvConnector,
                     public TieredKv,
                     public OffloadedKv,
                     public PrefixEvents,
                     public RoundCounting {
 public:
  VllmV1(const SchedulerConfig& config, SequenceTable& sequences, RequestLog& log);

  void add(RequestId request) override;
  bool has_requests() const override {
    return !running_.empty() || !waiting_.empty() || !parked_.empty() || kv_.below().pending();
  }
  void schedule(Ps now, Batch& batch) override;
  void update(const Batch& batch, std::vector<RequestId>& finished) override;
  void abort(RequestId request) override;
  bool asks_again() const override;
  bool queues_empty_batches() const override { return true; }

  Gauges gauges() const override;
  std::int32_t num_deferred() const override;
  const SchedulerCounters& counters() const override { return counters_; }
  Limits limits() const override;
  std::int64_t most_blocks(std::int64_t slots) const override {
    return kv_.most_blocks(slots, limits().slots_ahead);
  }
  bool pool_consistent() const override {
    return kv_.pool().consistent() && kv_.below().consistent();
  }

  KvConnector* kv_connector() override { return this; }
  void take_reserved(std::vector<Reserved>& out) override;
  bool transferred(RequestId request) override;
  TieredKv* tiered_kv() override { return this; }
  void use_tiers(GroupTiers* tiers) override { kv_.use_tiers(*tiers); }
  bool may_park() const override { return true; }
  OffloadedKv* offloaded_kv() override { return this; }
  void use_copies(GroupCopies& copies) override;
  PrefixEvents* prefix_events() override { return this; }
  void log_keys(KeyLog* log) override { kv_.log_keys(log); }
  RoundCounting* round_counting() override { return this; }
  void set_round(std::int64_t round, Ps /*now*/) override {
    steps_ = round;
    pacing_.by_rounds();
  }

 private:
  std::int32_t num_running() const { return static_cast<std::int32_t>(running_.size()); }
  std::int32_t num_waiting() const {
    return static_cast<std::int32_t>(waiting_.size()) + parked_.size();
  }
  bool parks() const { return config_.kv_consumer || kv_.below().parks(); }
  enum class Only : std::uint8_t { kAll, kPrefills, kDecodes };
  // Asks the ranking for the order of this step.
  void rank(Ps now);
  // Both lists in the order of a ranking that pauses: the first requests run, up to max_num_seqs
  // and the token budget; a request without room takes the blocks of those behind it.
  void schedule_turns(Ps now, Batch& batch, StepBudget& budget);
  // False: neither the request at this place of the order nor any behind it runs in this step.
  bool take_turn(Ps now, std::size_t place, Batch& batch, StepBudget& budget);
  bool continue_turn(Ps now, std::size_t place, Batch& batch, StepBudget& budget);
  std::int32_t tokens_of_turn(RequestId request, std::int32_t budget) const;
  // `tokens` behind `computed` ones, or fewer, so that what is cut off of a prompt is as long as
  // its drafter reads ahead.
  std::int32_t leave_lookahead(const Sequence& s, std::int32_t computed,
                               std::int32_t tokens) const {
    const std::int32_t rest = s.num_tokens - computed - tokens,
                       ahead = config_.speculation.prompt_lookahead;
    return rest > 0 && rest < ahead ? std::max(0, tokens - (ahead - rest)) : tokens;
  }
  // The same where the step cannot encode all that the tokens show; as vLLM, behind the cuts of
  // states and in front of those of drafters.
  std::int32_t cut_prompt(RequestId request, const Sequence& s, std::int32_t computed,
                          std::int32_t tokens) {
    if (encoder_.on())
      tokens = encoder_.cut(request, computed, tokens, config_.speculation.prompt_lookahead);
    return leave_lookahead(s, computed, tokens);
  }
  // Of a prompt in one step.
  std::int32_t most_of_prompt() const {
    const std::int32_t threshold = config_.limits.long_prefill_token_threshold;
    return threshold > 0 ? std::min(threshold, config_.max_num_scheduled_tokens)
                         : config_.max_num_scheduled_tokens;
  }
  bool start_turn(Ps now, std::size_t place, Batch& batch, StepBudget& budget);
  // Takes the blocks of requests behind `place`, the last one first, until `blocks` are free;
  // false, with nothing changed, where they do not hold enough.
  bool drop_behind(std::size_t place, std::int32_t blocks, Batch& batch);
  // Parked requests whose KV has come hold it from now on like paused ones.
  void land_arrived();
  void reserve_in_order(Ps now);
  void leave_ranking(RequestId request);
  void build_prefill_first(Ps now, Batch& batch, StepBudget& budget);
  // False when it stopped at a request without room.
  bool schedule_running(Batch& batch, StepBudget& budget, Only only = Only::kAll);
  void schedule_waiting(Ps now, Batch& batch, StepBudget& budget);
  void admit_waiting(Ps now, Batch& batch, StepBudget& budget);
  // kNoRoom: nobody behind it may run either.
  enum class Admission : std::uint8_t { kNoRoom, kPassedOver, kParked, kScheduled };
  // What becomes of a request of which the step can take no token behind `cut_prompt`.
  Admission cut_off() const {
    return config_.rules.passes_over_cut ? Admission::kPassedOver : Admission::kNoRoom;
  }
  Admission admit(Ps now, RequestId request, std::int32_t budget, Batch& batch, bool alone);
  std::int32_t cached_tokens(RequestId request);
  Admission reserve(Ps now, RequestId request);
  Admission load(Ps now, RequestId request, std::int32_t hit, std::int32_t recalled);
  // The parked request whose turn it is; `alone` as of `admit`.
  Admission admit_parked(Ps now, RequestId request, std::int32_t budget, Batch& batch, bool alone);
  Admission admit_arrived(Ps now, RequestId request, std::int32_t budget, Batch& batch,
                          bool slots_for_drafts = true);
  // What has come of the parked request whose turn it is can be hit; of whom nothing has come, the
  // blocks are free.
  void land();
  // The next parked request that may run, as far as adapters go; -1: there is none.
  RequestId next_parked();
  void pass_over_waiting(Ps now);
  // Whether who holds blocks while it waits is looked at before all others.
  bool holders_first() const;
  void pass_over_parked();
  // Tokens of a request that has `computed`, in this step; 0: it would have to be cut and may not
  // be, or has to wait.
  std::int32_t first_tokens(const Sequence& s, std::int32_t computed, std::int32_t budget) const;
  // The request is the head of the queue, unless requests that wait for blocks were passed over.
  void leave_waiting(RequestId request) {
    if (takes_turns_) {
      waiting_.remove(request);
    } else {
      waiting_.pop_front();
    }
  }
  bool is_parked(RequestId request) const {
    return sequences_[request].status == static_cast<std::uint8_t>(Status::kParked);
  }
  // It is the head of the queue as above, or the parked request whose turn it is.
  void leave_queues(RequestId request) {
    if (is_parked(request)) {
      parked_.take();
    } else {
      leave_waiting(request);
    }
  }
  void note_partly_prefilled(RequestId request) {
    if (std::ranges::find(partly_prefilled_, request) == partly_prefilled_.end())
      partly_prefilled_.push_back(request);
  }
  // Whether the parked request, whose KV has come, goes before the head of the waiting queue.
  bool parked_first(RequestId parked, RequestId waiting) const;
  bool room_to_load(const Sequence& s, std::int32_t slots) const;
  void park(const ParkedQueue::Parked& parked);
  // Up to where KV will be here of a load of which the tiers give the tokens [hit, hit + recalled)
  // and another group those from there to `loaded`.
  std::int32_t comes(RequestId request, std::int32_t hit, std::int32_t recalled,
                     std::int32_t loaded);
  bool somebody_decodes() const;
  // What is below hears of the step.
  void tell_below(const Batch& batch);
  // Both sides of a transfer hold the same blocks (vLLM: limit_lookahead_tokens).
  std::int32_t lookahead_of_loads() const {
    return config_.kv.drops_last_hit || config_.rules.loads_without_drafts
               ? 0
               : config_.speculation.lookahead;
  }
  // Slots of one verification, as far as loads leave room for it.
  std::int32_t verification_of_loads() const {
    return config_.rules.loads_spare_verification && config_.speculation.on()
               ? 1 + config_.speculation.tokens + config_.speculation.lookahead
               : 0;
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
  // It leaves without an answer: nothing of it is left but what batches in flight and transfers
  // hold.
  void drop(RequestId request);
  // It runs from now on with so many computed tokens.
  void start(RequestId request, std::int32_t computed);
  // Gives keys to the blocks that a received token has filled.
  void key_received(RequestId request, const Sequence& s);
  // Requests behind one that had to preempt itself still run.
  bool passes_own_victim(const Sequence& s) const {
    return config_.rules.passes_own_victim && config_.queue.order == QueueOrder::kPriority &&
           s.status == static_cast<std::uint8_t>(Status::kWaiting);
  }
  // Its LoRA would be one more than fit into a step.
  bool lacks_slot(RequestId request) const {
    const std::int32_t most = config_.limits.max_loras, adapter = sequences_[request].adapter;
    return most > 0 && adapter > 0 && static_cast<std::int32_t>(loras_.size()) >= most &&
           !loras_.contains(adapter);
  }
  void note_lora(RequestId request) {
    const std::int32_t adapter = sequences_[request].adapter;
    if (config_.limits.max_loras > 0 && adapter > 0) loras_.insert(adapter);
  }
  // Steps in flight still have tokens for a request that lost its blocks.
  bool awaits_output(RequestId request) const {
    return config_.rules.awaits_output && !drops_stale() && sequences_[request].stale > 0;
  }
  // Whether what steps in flight compute for a preempted request is dropped: what counts where KV
  // is handed over is the KV, which it has lost. Both sides of a hand-over are taken to have the
  // kv_role kv_both.
  bool drops_stale() const {
    return config_.kv_producer || (config_.rules.delivers_kv && config_.kv_consumer);
  }
  bool defer_block_free() const {
    return config_.defer_block_free &&
           (config_.kv_producer || config_.kv_consumer || kv_.below().there());
  }
  void run(RequestId request, std::int32_t tokens, Batch& batch);
  // Of releases that let a preempted request start at once: how far the workers of Model Runner V2
  // are ahead of what the scheduler takes a request to have computed. It takes off drafts that were
  // rejected in a step from before (Scheduler.update_from_output), and they do not.
  bool counts_ahead() const {
    return config_.decode_interval > 1 && config_.speculation.on() && !config_.rules.awaits_output;
  }
  // So they reach the end of a prompt in an earlier step, and sample there and in each that
  // follows.
  bool samples_early(RequestId request) const;
  // Whether nothing but the sequence decides what a step of one token does.
  bool may_take_fast_path() const {
    return !config_.disable_fast_path && !config_.kv_producer && config_.decode_interval == 1 &&
           !config_.speculation.on() && !kv_.below().there();
  }
  void calm(RequestId request, Sequence& s, std::int32_t before) const;
  void leave_drafts(Batch& batch);
  void leave_drafts(RequestId request, std::int32_t drafts);
  void receive(const Item& item, std::int32_t drafts_after, std::vector<RequestId>& finished);
  bool stops(RequestId request, const Sequence& s) const;
  void finish(RequestId request, std::vector<RequestId>& finished);

  SchedulerConfig config_;
  SequenceTable& sequences_;
  RequestLog& log_;
  // By request: tokens that its workers are ahead, and that they have sampled early in steps in
  // flight.
  struct Ahead {
    std::int32_t tokens = 0, sampled = 0;
  };
  std::vector<Ahead> ahead_;
  KvCache kv_;
  EncoderCache encoder_;
  LoraSlots lora_slots_;
  WaitingQueue waiting_;
  ParkedQueue parked_;
  // Who began where only parked requests held blocks, since one of these began, KV moved, anybody
  // got a token, or a request came or left.
  std::unordered_set<RequestId> begun_beside_parked_;
  LoadFailures load_failures_;
  PrefillPacing pacing_;
  std::int32_t most_running_;
  std::int32_t prompt_cap_ = 0;      // of the step that is being built; 0: none
  bool defers_prompts_ = false;      // in that step
  bool some_run_ = false;            // in that step, of those that ran before it,
  bool some_prompts_run_ = false;    // and of these some that had not reached their end
  bool some_prompts_start_ = false;  // in that step, with more than their last token to compute
  std::int64_t calls_ = 0;           // of `schedule`
  std::int64_t steps_ =
      0;  // with work since the last one without; a lock-step group sets it to its own
  std::vector<Reserved> reserved_;           // by the last build
  std::unordered_set<std::int32_t> loras_;   // of this step
  std::vector<RequestId> partly_prefilled_;  // parked or running, where requests can be parked
  PendingReleases leaving_;
  DeferredFrees late_;
  std::vector<RequestId> running_;
  std::vector<BlockId> hits_;                        // scratch
  std::vector<KvBelow::Scheduled> told_below_;       // scratch
  const OffloadingConnector* offloading_ = nullptr;  // null: it offloads nothing
  SchedulerCounters counters_;
  bool some_running_finished_ = false;
  std::unique_ptr<Ranker> ranker_;     // null: no ranking
  RankEvents* rank_events_ = nullptr;  // of the ranking; null: it hears of nothing
  bool takes_turns_ = false;           // the ranking pauses
  std::vector<RequestId> in_turn_;     // in the last step or in flight, where requests take turns
  std::vector<RequestId> turn_ended_;  // of these, those whose step has ended
  struct Landed {
    std::int32_t cached;
    bool remote;
  };
  std::unordered_map<RequestId, Landed> landed_;  // have come, and have not run
};

}  // namespace llmsim
