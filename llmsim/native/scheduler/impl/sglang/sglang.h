// SGLang 0.5.23's scheduler, decision by decision (python/sglang/srt/managers: scheduler.py,
// schedule_policy.py, schedule_batch.py; mem_cache: unified_radix_cache.py, allocation.py).
//
// A step is prompts or decodes, prompts first. The last prompt that does not fit the chunk is cut,
// and goes on before others start. Admission counts what running requests will still write: all of
// it where they ignore the end of text, else a share (the new token ratio) that falls with every
// decode step. A decode step that does not fit retracts requests with the shortest answers, those
// with the longest prompts first, to the end of the queue. With priorities the queue is ordered by
// them first, and who finds the batch full takes the memory of running requests that are less
// important by more than a threshold, the latest of the least important first. With drafts a decode
// verifies a fixed number of tokens, and knows the drafts that held in the step before only when
// that has ended.
//
// With pipeline stages, micro-batches take turns (scheduler_pp_mixin.py): each decodes its own
// requests and forms its next step when its last one has ended; the queue, the memory and the
// prompt that was cut are shared.
//
// A prefill group (disaggregation/prefill.py) counts on one token of an answer, decodes nothing,
// and keeps a request's pages until their KV has been sent, which it sees when an output comes.
// Twice as many requests as may run have a buffer; others wait for one in front of the queue. With
// pipeline stages, what a micro-batch's turn has seen to be sent goes round the stages, and is
// released in front of its next turn.
//
// A decode group (disaggregation/decode.py) computes no prompts: requests whose KV has come, with
// the first token of their answer, join those that decode, in a batch that takes no time. Who ends
// with the output in flight is decoded once more.
//
// The schedule is compared with the real one's (docs/reference/conformance.md). Groups that have
// tiers or a queue of another order run `SglangOutline`. Not SGLang's: a request that is alone in
// its micro-batch, or beside a prompt that goes on, pages that a host cache copies or a small pool
// of windows, and finds no room is computed again, where SGLang aborts it; of a prompt that goes on
// and finds too little memory, less is computed, where SGLang ends; without a prefix cache a
// request that takes the whole cache runs alone, where SGLang lets it wait for ever; and several
// victims of one request join the queue in the order in which they were chosen, which SGLang leaves
// open (a set). On a decode group a request that is alone and finds no room waits until others have
// left.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/impl/sglang/drafts.h"
#include "scheduler/impl/sglang/pools/memory.h"
#include "scheduler/impl/sglang/prompt_budget.h"
#include "scheduler/impl/sglang/takeover.h"
#include "scheduler/queue/pending_release.h"
#include "scheduler/registry.h"
#include "scheduler/scheduler.h"

namespace llmsim {

class Sglang final : public Scheduler,
                     public PrefixEvents,
                     public KvConnector,
                     public RoundCounting {
 public:
  // Tokens: the answer length that admission assumes, at most; prompts of one step beside the
  // chunk; and whether decodes join a step of prompts, and which order the queue has.
  static constexpr Param kNewTokens{"new_tokens", 4096, 1, (std::int64_t{1} << 31) - 1};
  static constexpr Param kPrefillTokens{"max_prefill_tokens", 16384, 1,
                                        (std::int64_t{1} << 31) - 1};
  static constexpr Param kMixedChunk{"mixed_chunk", 0, 0, 1};
  static constexpr Param kPolicy{"policy", 0, 0, 5};
  // Whether a step is formed while the one before it runs: how many batches its group has in
  // flight says so, which lowering decides.
  static constexpr Param kOverlap{"overlap", 1, 0, 1};
  // Whether the queue is ordered by priorities; whether lower numbers come first; whether who waits
  // takes the place of who runs, and by how much its priority must be better for that; and whether
  // decodes are retracted by priority first.
  static constexpr Param kPriorities{"priorities", 0, 0, 1};
  static constexpr Param kLowFirst{"low_priorities_first", 0, 0, 1};
  static constexpr Param kPreemption{"preemption", 1, 0, 1};
  static constexpr Param kThreshold{"preemption_threshold", 10, -(std::int64_t{1} << 31),
                                    (std::int64_t{1} << 31) - 1};
  static constexpr Param kRetraction{"retraction_policy", 0, 0, 1};
  // Thousandths: how much of the answers that run admission counts on (schedule_conservativeness).
  static constexpr Param kConservativeness{"conservativeness", 1000, 0, 1'000'000};
  // Steps of decodes after which it looks for new requests (scheduler_recv_interval); it also does
  // behind a step of prompts, and when nothing runs.
  static constexpr Param kRecvInterval{"recv_interval", 1, 1, 1'000'000};

  Sglang(const SchedulerConfig& config, SequenceTable& sequences, RequestLog& log);
  // Whether it runs such a group; SglangOutline runs all.
  static bool runs(const SchedulerConfig& config);

  void add(RequestId request) override;
  bool has_requests() const override;
  void schedule(Ps now, Batch& batch) override;
  void update(const Batch& batch, std::vector<RequestId>& finished) override;
  void abort(RequestId request) override;
  void stop() override;
  Gauges gauges() const override;
  const SchedulerCounters& counters() const override { return counters_; }
  // It has not looked for who arrived, another micro-batch has its turn, or the last pass found
  // something new: as when it preempted for somebody who then found no room.
  bool asks_again() const override {
    if (!arrived_.empty() || releases_later()) return true;
    if (takeover_) return staged() ? turns_go_on() : looks_again_;
    return finds_more_ || others_run();
  }
  // Micro-batches take turns, whether there is something to run or not.
  bool queues_empty_batches() const override { return staged(); }
  std::int32_t max_depth() const override {
    return staged() ? most_flights() : Scheduler::max_depth();
  }
  Limits limits() const override;
  // SGLang cuts answers short of the end of the cache; such requests are rejected, as with other
  // schedulers.
  std::int64_t most_blocks(std::int64_t slots) const override;
  bool pool_consistent() const override;
  PrefixEvents* prefix_events() override { return this; }
  HostCopying* host_copying() override { return memory_.host(); }
  // Of a prefill group: its requests bootstrap, and keep their memory until their KV has been sent.
  // Of a decode group: its requests take memory before their KV comes.
  KvConnector* kv_connector() override { return produces() || takeover_ ? this : nullptr; }
  void take_reserved(std::vector<Reserved>& out) override {
    if (takeover_) takeover_->take_reserved(out);
  }
  bool transferred(RequestId request) override;
  bool hears_at_output() const override { return true; }
  bool drains() const override { return true; }
  bool awaits_drain(RequestId request) const override {
    return takeover_ && takeover_->is_transferring(request);
  }
  std::int32_t unsent() const override;
  // With data-parallel attention ranks idle along, and are idle only when all are.
  RoundCounting* round_counting() override { return this; }
  void set_round(std::int64_t round, Ps now) override;
  bool idles_along() const override { return true; }
  // With drafts no rank decodes beside another one's prompts (get_next_batch_to_run).
  bool withholds() const override { return turn_state_ == TurnState::kWithholds; }
  void release() override { turn_state_ = TurnState::kReleased; }
  void forgo() override { turn_state_ = TurnState::kNew; }
  void log_keys(KeyLog* log) override { memory_.tree().log_keys(log); }

 private:
  enum class Policy : std::uint8_t {
    kFcfs,
    kLongestPrefix,
    kLongestOutput,
    kDepthFirst,
    kHighestResponseRatio,
    kShortestPrefill
  };
  // What the next call must know of a batch: who computes a prompt, and who decodes.
  struct Planned {
    std::vector<RequestId> requests;
    RequestId cut = -1;  // its last prompt goes on in the next step
    bool prompts = false;
    std::int64_t tokens = 0;  // of a step of prompts
  };
  // What one answer still takes, and what is free when it has ended.
  struct End {
    std::int64_t left, tokens;
  };
  // What a call formed, which says when the next one looks for new requests.
  enum class Ran : std::uint8_t { kNothing, kPrompts, kDecodes };
  // With pipeline stages, one of as many batches that take turns; else the only one. A request
  // decodes in the batch that computed the end of its prompt.
  struct MicroBatch {
    std::vector<RequestId> running;
    Planned last;
    bool full = false, some_ended = false;
    Ran ran = Ran::kNothing;
    std::int64_t first_tokens = 0;  // of the step of prompts whose requests were its first
    std::vector<RequestId> sent;    // whose KV its last turn has seen to be sent
  };
  struct Flight {
    std::int32_t number;
    std::size_t prompts;  // its leading items; the others decode
  };

  // Of a rank with drafts, whose pass has found no prompts: whether it is to decode is not known.
  enum class TurnState : std::uint8_t { kNew, kWithholds, kReleased };

  std::vector<RequestId>& running() { return micro_batches_[turn_].running; }
  const std::vector<RequestId>& running() const { return micro_batches_[turn_].running; }
  Planned& last() { return micro_batches_[turn_].last; }
  // Nobody else is admitted before somebody leaves.
  bool& full() { return micro_batches_[turn_].full; }
  // Another micro-batch, whose turn comes, has requests.
  bool others_run() const {
    return staged() && std::ranges::any_of(micro_batches_, [](const MicroBatch& micro) {
             return !micro.running.empty() || !micro.last.requests.empty();
           });
  }
  std::int32_t most_flights() const {
    return staged() ? static_cast<std::int32_t>(micro_batches_.size()) : kMostFlights;
  }
  bool staged() const { return micro_batches_.size() > 1; }
  std::int64_t places() const { return most_running_ - std::ssize(running()); }

  bool produces() const { return config_.kv_producer; }
  std::int32_t draining() const { return takeover_ ? takeover_->num_draining() : 0; }
  // Requests of a prefill group join the queue as far as there are buffers for what they send.
  void bootstrap();
  // The prompt has been computed, and its KV is on its way.
  void hand_over(RequestId request, std::vector<RequestId>& finished);
  // Their KV has been sent, and their memory is free.
  void release_sent(std::vector<RequestId>& requests);
  bool releases_later() const {
    return !sent_.empty() ||
           std::ranges::any_of(micro_batches_, [](const auto& one) { return !one.sent.empty(); });
  }
  // Of a decode group.
  // Looks at its queues, and lets who has its KV here join the running ones; whether `batch` brings
  // first tokens, which end before anything else happens.
  bool take_over(Batch& batch);
  void pass_queues();
  void join(Batch& batch);
  // With stages: the round of turns is not over, or the next one finds something.
  bool turns_go_on() const {
    const auto turns = std::ssize(micro_batches_);
    return turn_ + 1 < micro_batches_.size() || round_changed_ ||
           takeover_->expects(batches_ - turns + 1);
  }
  void bring_first_tokens(Batch& batch);
  void receive_first_token(RequestId request, std::vector<RequestId>& finished);
  void merge_joined();
  void abort_taken_over(RequestId request);
  // Since when nothing is left to do, where `idle_` says so.
  Ps idle_from();
  // Whether this call looks for new requests and for clients that gave up (recv_skipper.py).
  bool receives();
  void receive();
  void enter(RequestId request);
  // Requests whose clients gave up since the last step.
  void hear_aborts();
  // Whether the request was waiting; then it no longer is.
  bool leave_queue(RequestId request);
  bool gone(RequestId request) const {
    return sequences_[request].status == static_cast<std::uint8_t>(Status::kCancelled);
  }
  // What it lost and has not computed again is not counted as computed again.
  void settle(RequestId request);
  // Requests of the last step of prompts join those that decode.
  void merge_last();
  bool drop_ended(std::vector<RequestId>& requests, RequestId also = -1);
  // Steps of prompts.
  bool schedule_prompts(Ps now, Batch& batch);
  void admit_waiting(PromptBudget& budget);
  PromptBudget::State admit(RequestId request, PromptBudget& budget);
  // How many tokens of a prompt behind so many cached ones join the step; 0: none, for lack of
  // what `refused` says.
  struct Admission {
    std::int32_t tokens = 0;
    bool cut = false;
    PromptBudget::State refused = PromptBudget::State::kNoMemory;
  };
  // Leading tokens that it has, and of layers with a window those that are loaded first.
  struct Cached {
    std::int32_t tokens, loaded_windows;
  };
  Admission select(RequestId request, const Cached& cached, std::int64_t needed,
                   const PromptBudget& budget) const;
  Admission load_back(RequestId request, Admission admission, std::int64_t needed,
                      const PromptBudget& budget);
  bool fits_to_their_ends(RequestId request, const PromptBudget& budget);
  PromptBudget::State admit_unshared(RequestId request, PromptBudget& budget);
  void go_on(PromptBudget& budget);
  PromptBudget::State take(RequestId request, std::int32_t tokens, std::int64_t answer,
                           PromptBudget& budget);
  void form_prompts(Ps now, Batch& batch);
  void slide_windows_of_prompts();
  void mix_decodes(Batch& batch);
  double promised() const;
  double promised_to(RequestId request) const;
  // Of running requests: whether enough of them went for this one.
  bool preempt_for(RequestId request, PromptBudget& budget);
  std::vector<RequestId> victims_for(RequestId request, double tokens) const;
  // A lower number is served first.
  std::int64_t rank(RequestId request) const {
    const std::int64_t priority = sequences_[request].priority;
    return low_first_ ? priority : -priority;
  }
  double rate_of_answers() const { return config_.output_length_known ? 1.0 : ratio_; }
  // The waiting queue.
  void order_waiting();
  bool orders_by_prefix() const;
  void order_by_prefix();
  // What the queue is ordered by, the least first; who is deferred comes behind all others.
  struct Rank {
    bool deferred;
    double first;
    std::int64_t then;
  };
  Rank rank_by_prefix(RequestId request, bool deferred) const;
  std::int64_t tokens_to_compute(RequestId request) const;
  // Tokens of the prompt that goes on which leave room for shorter ones that wait.
  std::int64_t most_beside_shorter(std::int64_t left, std::int64_t chunk) const;
  void count_launched(const Batch& batch);
  void order_depth_first();
  // With `retracted`, all that it found in storage before is forgotten.
  void enter_queue(RequestId request, bool retracted = false);
  // Storage behind the host cache (prefetches.cpp). Looks there for what the cache lacks of a
  // prompt.
  void prefetch(RequestId request, std::int32_t stored_end);
  void prefetch_again(RequestId request, std::int32_t stored_end);
  // Whether a request of the queue may start now: what storage holds of it has come, or no longer
  // counts, and nothing else has left the cache since it looked there.
  bool has_prefetched(RequestId request);
  bool looks_again_for_lost(RequestId request);
  void retry_prefetches();
  // Passes of the scheduler while it had nothing to do (idle.cpp); and whether a pass that formed
  // no batch leaves something to the next one, though nothing happens until then.
  struct Before {
    std::int64_t preempted = 0, touches = 0;
  };
  void pass_idle(Ps now);
  void pass_alone(Ps at);
  bool finds_more(Ps now);
  bool touches_later(Ps now);
  void begin_turn();
  // Whether the pass is to go on with steps; false: it has formed its batch.
  bool begin_pass(Ps now, Batch& batch);
  bool withholds_decodes() const {
    return in_rounds_ && drafts_.on() && !takeover_ && !produces() && !running().empty();
  }
  void touch_waiting();
  // Steps of decodes.
  // Nobody holds memory, and nobody will in this step.
  bool starved() const { return chosen_.empty() && memory_.taken_rows() == 0; }
  void schedule_decodes(Batch& batch);
  bool leave_out_ending();
  bool decodes_fit(const std::vector<RequestId>& requests);
  void retract();
  // Its memory is free, and so many leaves of the tree as `left` running requests soon need.
  void give_up(RequestId request, std::int64_t left);
  enum class Decode : std::uint8_t { kVerifies, kPlain };
  void form_decodes(Batch& batch, Decode kind);
  void slide_windows_of_decodes();
  void prepare_states_of_verifications(Decode kind);
  void launch_states_of_decodes(Decode kind);
  void make_room_for_decodes();
  // Slots that it has after its next decode.
  std::int64_t slots_to_decode(const SglangHeld& held) const;

  void run(const Item& item, Batch& batch);
  void decode(RequestId request, Batch& batch);
  void verify(RequestId request, Batch& batch);
  void receive(const Item& item, bool decodes, std::vector<RequestId>& finished);
  void receive_decodes(std::span<const Item> items, std::vector<RequestId>& finished);
  void note_saved_states(std::span<const Item> items);
  // Outputs of one token of its decodes, which end nothing until its last one.
  void note_plain_outputs(RequestId request);
  // The drafts that held, the token behind them, and those of both that the answer takes.
  void receive_tokens(const Item& item);
  void discard_rejected(const Item& item);
  std::int32_t accepted(const Item& item) const;
  std::int32_t answer_limit(RequestId request) const;
  void finish(RequestId request, std::vector<RequestId>& finished);
  // Its memory is free, and what it computed stays in the tree.
  void leave(RequestId request);
  std::int64_t clipped(std::int64_t tokens) const { return std::min(tokens, new_tokens_); }
  std::int64_t answer_left(RequestId request) const;
  std::int32_t known(RequestId request) const { return sequences_[request].num_tokens; }
  std::int32_t max_request_tokens() const;
  bool ends_with_output_in_flight(RequestId request) const;

  static constexpr std::int32_t kMostFlights = 2;  // without stages
  static constexpr double kFirstRatio = 0.7, kLeastShare = 0.14;
  static constexpr std::int64_t kRetractDecodeSteps = 20, kDecaySteps = 600;
  static constexpr std::int64_t kBuffersPerRequest = 2;
  // Tokens that a window of decodes leaves until they are free (SGLANG_SWA_EVICTION_INTERVAL).
  static constexpr std::int64_t kSlideInterval = 128;
  // Steps of prompts from one refreshing of the prefixes of waiting requests to the next.
  static constexpr std::int64_t kTouchInterval = 32;
  static constexpr std::int64_t kWeightOfPrompts = 1000;  // of a step, beside 1 of decodes

  SchedulerConfig config_;
  SequenceTable& sequences_;
  RequestLog& log_;
  SglangDrafts drafts_;
  SglangMemory memory_;
  std::vector<SglangHeld> held_;            // by request
  std::optional<SglangTakeover> takeover_;  // of a decode group
  // Of a decode group: who joins the running ones in this step; and whether this step changed what
  // the next one looks at, though it ran nothing.
  std::vector<RequestId> joined_;
  bool looks_again_ = false;
  bool round_changed_ = false;  // likewise any turn of this round, with stages
  std::vector<MicroBatch> micro_batches_;
  std::size_t turn_ = 0;            // whose micro-batch is formed
  std::vector<RequestId> arrived_;  // and not received yet
  std::int64_t recv_interval_, since_received_ = 0;
  std::vector<RequestId> waiting_, chosen_;
  std::deque<RequestId> bootstrapping_;  // of a prefill group, in front of the queue
  PendingReleases sending_;
  std::vector<RequestId> sent_;       // whose KV has been sent, which no turn has seen
  std::int64_t buffers_ = 0;          // that are taken, one by each request behind `bootstrapping_`
  std::vector<RequestId> victims_;    // of this step's admission, which join the queue behind it
  std::vector<RequestId> preempted_;  // since the last step
  bool waits_for_copies_ = false;     // since then nobody has found room beside them
  bool finds_more_ = false;           // the last pass formed no batch, and the next one may
  Ps quiet_at_ = -1;                  // when a pass last found nothing
  Before before_;                     // the last pass, or with stages the last round of passes
  std::vector<RequestId> aborts_;     // likewise
  std::vector<End> ends_;             // of this step's admission, the soonest first
  std::deque<Flight> flights_;
  RequestId cut_ = -1;  // the prompt that goes on in the next step
  std::int64_t chunk_;  // whole pages
  bool mixes_, overlaps_, priorities_, low_first_, preempts_, retracts_by_priority_;
  Policy policy_;
  std::int64_t most_running_, new_tokens_, max_prefill_tokens_, threshold_;
  double first_ratio_, ratio_, least_ratio_, decay_;
  std::int64_t touches_ = 0, entries_ = 0;
  std::int64_t launched_ = 0;  // tokens, as SGLang counts them for `hrrn`
  std::int32_t batches_ = 0;
  bool idle_ = true, in_rounds_ = false;
  TurnState turn_state_ = TurnState::kNew;
  Ps last_output_ = -1;
  SchedulerCounters counters_;
};

}  // namespace llmsim
