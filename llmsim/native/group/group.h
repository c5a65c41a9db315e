// A model serving group: its scheduler, its program, and the batches in flight.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "events/entity.h"
#include "group/api/api_servers.h"
#include "group/arrivals.h"
#include "group/batch_ring.h"
#include "group/call_queue.h"
#include "group/circling.h"
#include "group/completed_steps.h"
#include "group/completion.h"
#include "group/group_config.h"
#include "group/load_listener.h"
#include "group/observers.h"
#include "group/posted_reads.h"
#include "kv/tiers/group_moves.h"
#include "kv/tiers/key_log.h"
#include "request/request_log.h"
#include "scheduler/scheduler.h"
#include "step/executors/executor.h"

namespace llmsim {

class LockstepGroup;
class GroupObserver;

// Hears of the end of every step of some groups, when the clients have its tokens.
class StepEnds {
 public:
  virtual ~StepEnds() = default;
  virtual void step_ended(Ps now) = 0;
};

// The argument of kStepDone where the engine hears late that its oldest batch has ended.
inline constexpr std::uint32_t kHears = 1;

// Calls of a scheduler at one time that may schedule nothing although it asks to be called again.
inline constexpr std::int64_t kMostEmptyBuilds = 100'000;

// Acts at two events. kSchedule drains its inbox, builds batches while it has free slots and starts
// them; kStepDone completes the oldest batch in flight.
class Group final : public Entity, public StepSink {
 public:
  Group(GroupConfig config, std::unique_ptr<Scheduler> scheduler, GroupCosts costs,
        SequenceTable& sequences, RequestLog& log);

  const GroupConfig& config() const { return config_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  const GroupCosts& costs() const { return costs_; }
  GroupCosts& costs() { return costs_; }
  // Whether a step may start before the one before it has ended.
  bool overlaps() const { return costs_.program().num_stages() > 1; }
  // Whether its operators run one after the other, as the program prices them.
  bool follows_program() const { return lockstep_ == nullptr && !config_.offload && !overlaps(); }
  // Runs the steps from now on; before the first one. Without it the group follows its program.
  void use_executor(std::unique_ptr<StepExecutor> executor) { executor_ = std::move(executor); }
  // Before the first step; the network may be null.
  void start(SharedNetwork* network, Ps now) {
    if (executor_ && lockstep_ == nullptr) executor_->start(network, now);
  }

  // A request is on its way from the API server; the engine sees it api_latency later. One that
  // another engine has seen before is seen at once.
  void receive(RequestId request, Ps now);
  // From its arrival, or from when its API server passes it on, until the engine sees it.
  Ps latency_of(RequestId request) const;
  // An API server in front of several groups has read the request's prompt: its engine gets the
  // request as soon as it is chosen.
  void sees(RequestId request, Ps now) { log_.queued[request] = now; }
  bool has_seen(RequestId request) const { return log_.queued[request] != kNever; }
  // Its API server has the tokens of the prompt, and the engine sees them api_latency later.
  void tokenized(RequestId request, Ps now);
  // A process of its API server has sent what a step gave to the clients.
  void streamed(std::size_t process, const StepAnswers& answers, Ps now);
  const ApiServers& api_servers() const { return api_servers_; }
  // The client of a request that was received has gone; the engine learns it api_latency and
  // abort_latency later, and acts on it before the next outputs or the next batch.
  void abort(RequestId request, Ps now);
  // The same of a request that the API server has just read, whose client has gone meanwhile.
  void abort_read(RequestId request, Ps now);

  Outlook outlook(const Event& event) const override {
    if (event.phase() == Phase::kSchedule)  // it may have been woken earlier
      return schedule_at_ == event.time ? Outlook::kDue : Outlook::kStale;
    return circles() ? Outlook::kCircling : Outlook::kDue;
  }
  void on_event(Ps now, Phase phase, std::uint32_t argument) override;
  void check(Ps now) const override;
  std::string unfinished() const override;
  // It acts when its engine next sees something, if that waits for nothing else; else at the end of
  // a step.
  void wake_if_idle(Ps now) {
    if (listens()) wake(now);
  }
  // It schedules at `now`, whether it is idle or not.
  void schedule_now(Ps now) {
    if (schedule_at_ > now) post_schedule(now);
  }
  // It has acted: posts the end of its oldest batch in flight, or acts when its engine next sees
  // something.
  void expect(Ps now);

  // No further step begins; those in flight end.
  void pause() { paused_ = true; }
  // Steps begin again.
  void go_on(Ps now) {
    paused_ = false;
    schedule_now(now);
  }
  bool paused() const { return paused_; }
  // Whether no step is in flight, nor built and waiting to begin, and clients have all tokens.
  bool quiet() const { return idle() && num_offers_ == 0 && !gated_ && !api_servers_.stream(); }
  // Tokens whose KV it holds for the request.
  std::int32_t kv_tokens(RequestId request) const { return sequences_[request].num_computed; }
  // Who hears of the ends of its steps, and of its API server's answers; null: nobody.
  void report_steps_to(StepEnds* listener) { step_ends_ = listener; }

  // What a group that stopped at once had done for nothing; counted among its counters until then.
  struct HandedBack {
    std::int64_t requests = 0, prompts = 0, computed_tokens = 0, emitted_tokens = 0;
  };
  // It has been removed from the loop, and stops: steps in flight are cut, and nothing is left in
  // its queues. `requests` are all that it has received and whose clients wait for them.
  // With `keep_answers` clients keep the tokens that they have.
  void hand_back(std::span<const RequestId> requests, Ps now, bool keep_answers = false);
  const HandedBack& handed_back() const { return handed_back_; }
  // A prompt that it had computed for another group is computed again elsewhere, or not needed.
  void writes_off_prompt(const Sequence& prompt) {
    ++handed_back_.prompts;
    handed_back_.computed_tokens += prompt.num_tokens - 1;
  }

  // Whether its API server still takes the request, as vLLM's max_num_queued_reqs and
  // max_num_queued_tokens say.
  bool may_queue(RequestId request) const;
  // Whether its model length and KV cache hold the whole request.
  bool can_ever_run(RequestId request) const;
  void reject(RequestId request) { rejected_.push_back(request); }
  // Who gets its answers, and, or null, who hears of what it does before; before the first event.
  void answer_to(Completion& completion) { completion_ = &completion; }
  void observe(GroupObserver* observer) { observer_ = observer; }
  // A request's KV has been moved, or will have been `at` a time to come. The worker looks for that
  // when it launches a step, behind the reads that it posts, and its scheduler hears of it with
  // that step's output; an idle engine hears of it at once (vLLM: KVConnectorModelRunnerMixin,
  // EngineCore).
  void transferred(RequestId request, Ps at);
  // Nothing moves of a prompt whose step has just ended, which its scheduler hears at once.
  void sends_nothing(RequestId request, Ps now) { hear_of_moved_kv(request, now); }
  // Whether its engine hears on its own of clients that go, and drains KV (`KvConnector::drains`).
  bool drains_kv() const { return connector_ != nullptr && connector_->drains(); }
  // The same of KV that the tiers below hold.
  void loaded(RequestId request, Ps now) {
    log_.end_load(request, now);
    transferred(request, now);
  }

  // From now on the changes of what its cache holds go to `log`, at the end of each step. A
  // scheduler without a prefix cache of its own has none to note.
  void log_keys(KeyLog* log);
  // Pools of KV below the group's own: a batch waits for what it recalls, or, where recalling
  // requests are to be parked (`parks`), goes without them. Throws std::invalid_argument for a
  // scheduler that cannot do that.
  void use_tiers(GroupTiers& tiers, bool parks);
  // The same for a pool in host memory under vLLM's own rules.
  void use_copies(GroupCopies& copies);

  // Null: nothing is below it.
  const GroupMoves* moves() const { return moves_; }
  bool idle() const { return batches_.empty(); }
  // kEndOfTime: nobody knows yet when the oldest batch in flight ends.
  Ps next_output() const {
    return batches_.num_timed() > 0 ? batches_.oldest().times.end : kEndOfTime;
  }

  // For the lock-step group that it is a member of. `offer` builds batches for at most so many
  // rounds behind `round`, if there is a place for them and work; a member without work joins a
  // round with a dummy.
  void join(LockstepGroup* lockstep, std::size_t place, bool idles_along) {
    lockstep_ = lockstep;
    place_ = place;
    idles_along_ = idles_along;
    batches_.resize(2 * depth());
  }
  LockstepGroup* lockstep() const { return lockstep_; }
  void offer(Ps now, std::int64_t round, std::int64_t rounds_ahead);
  // A member that idles along begins a pass: it takes the requests that are here, and offers a
  // batch when all members have looked (SGLang: the broadcast behind `_pull_raw_reqs`). False: it
  // waits for an output first.
  bool look(Ps now);
  // Nobody has found anything to run.
  void end_pass() {
    passes_ = !batches_.empty();
    looked_ = kNever;
  }
  // Nobody has prompts: the decodes that its scheduler withholds are its offer. Or others have
  // some, and it keeps its decodes back.
  void offer_withheld(Ps now);
  void keep_back() {
    if (withholds()) rounds_->forgo();
  }
  bool has_offer() const { return num_offers_ > 0 && !gated_; }
  // Whether it has as many batches in flight as it may have, or waits for its devices to be no
  // further behind its dummies than they may be behind batches. Dummies take no place in the queue
  // of batches of vLLM's engine.
  bool full() const {
    const std::size_t in_flight = batches_.num_in_flight();
    if (idles_along()) return in_flight == depth();
    if (in_flight - batches_.num_dummies() == depth()) return true;
    return in_flight >= depth() && batches_.newest().batch.empty();
  }
  // Whether another call of `offer` would do nothing, until the lock-step group is told otherwise.
  bool settled() const {
    if (!looks() && !gated_) return true;
    return full() || has_offer() || joins_idle_ || withholds() || looked_ != kNever;
  }
  bool may_join_idle() const {
    const std::size_t in_flight = batches_.num_in_flight();
    return in_flight < depth() && !gated_ && num_offers_ == 0 &&
           (idles_along() || in_flight == batches_.num_dummies());
  }
  // It has found nothing to run, and joins the next round with a dummy, whatever comes before that
  // round begins.
  void join_idle(Ps now);
  bool joins_idle() const { return joins_idle_; }
  // Whether it takes part in every round in which others have work, and in no other.
  bool idles_along() const {
    return idles_along_ || (rounds_ != nullptr && rounds_->idles_along());
  }
  const Batch& offered_or_dummy(Ps now);
  // Whether its engine's loop looks for what has arrived, or is ours, which always does.
  bool looks() const { return loop_ == nullptr || loop_->turn() == EngineTurn::kLooks; }
  // Its engine runs its own loop, which says when it runs a batch or a dummy.
  bool runs_loop() const { return loop_ != nullptr; }
  // The loop goes on until it waits for something; what it launches is offered. Whether it has gone
  // on.
  bool run_loop(Ps now);
  bool agrees() const { return loop_->turn() == EngineTurn::kAgrees; }
  void go_on_agreed() { loop_->go_on(); }
  bool offers_requests() const { return has_offer() && !batches_.next().batch.empty(); }
  // When the next slot's batch has what is copied for it; and the newest one begins only then.
  Ps copied() const { return copied(batches_.next().batch); }
  void hold_until(Ps ready);
  // Whether the call that found nothing to run may find something in the next one, for which it
  // waits until all members have found nothing.
  bool asks_again() const {
    return passes_together() && idle() && num_offers_ == 0 && !paused_ &&
           scheduler_->has_requests() && (scheduler_->asks_again() || !moved_.empty());
  }
  // The next slot's batch starts, now or when its devices are free; `timed` says when, at once or
  // later.
  void launch(Ps now);
  void timed(std::size_t member, const StepTimes& times, Ps now) override;
  void passed(const Progress& progress, Ps now) override;
  void attended(std::size_t member, std::int32_t behind, std::int32_t layer, Ps at,
                Ps now) override;
  // Its observer, if any, hears that the next batch begins, where it hears how far that is.
  void announce(Ps now);
  // From now on its observer hears when the attention of each layer has ended, if its executor
  // reports it.
  bool report_layers();
  // When the engine next sees a request, or that one is gone or that KV has moved, or kEndOfTime.
  Ps next_inbox() const {
    const bool hears = !gated_ && num_offers_ == 0 && !others_run();
    return std::min({hears ? moved_.first() : kEndOfTime, inbox_.first(), aborts_.first()});
  }
  std::int32_t num_waiting() const { return scheduler_->num_waiting() + num_unseen(); }
  std::int32_t num_running() const { return scheduler_->num_running(); }
  // The scheduler's, with the requests that its engine has not seen yet among the waiting ones.
  Gauges gauges() const {
    Gauges gauges = scheduler_->gauges();
    gauges.waiting += num_unseen();
    return gauges;
  }
  // Requests received and neither finished, dropped nor refused: waiting, running, or on their way
  // from the API server; and those that its proxy sees as such, which it promised to compute or
  // whose KV it has still to send.
  std::int32_t outstanding() const {
    const std::int32_t unsent = connector_ == nullptr ? 0 : connector_->unsent();
    return outstanding_ + promised_ + unsent;
  }
  // A prefill group whose KV is pushed gets so many requests more (or fewer), as soon as decode
  // groups have memory for them.
  void promise(std::int32_t requests) { promised_ += requests; }
  bool has_requests() const { return scheduler_->has_requests() || !inbox_.empty(); }

  // Of batches, in order.
  const CompletedSteps& completed() const { return completed_; }
  // When its steps' outputs were there, as the request's client sees it.
  const std::vector<Ps>& client_times(RequestId request) const {
    return api_servers_.work() ? api_servers_.times_of(request) : completed_.ends();
  }
  Ps busy() const { return busy_; }
  // What of it was steps without requests.
  Ps busy_with_dummies() const { return dummies_busy_; }
  std::int64_t scheduled_tokens() const { return scheduled_tokens_; }
  // Of the batch that was built and waits for its launch, or whose building an interrupt ended.
  std::int64_t unlaunched_tokens() const {
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < num_built() + (building_ ? 1 : 0); ++i)
      for (const Item& item : batches_[batches_.num_in_flight() + i].batch.items)
        tokens += item.tokens;
    return tokens;
  }
  // Whether its requests only take KV blocks from each other.
  bool circles() const { return circling_.found(); }
  bool waits_for_others() const { return circling_.waits(); }
  // How often it was left idle although its scheduler held requests (invariant 7: never).
  std::int64_t idle_with_work() const { return idle_with_work_; }
  const std::vector<RequestId>& rejected() const { return rejected_; }
  // Requests in its batches in flight, and those that its engine has still to hear of.
  void mark_referred(std::vector<bool>& requests) const;

  // From now on its engine publishes its load.
  void publish_load(LoadListener& to) { load_listener_ = &to; }
  LoadListener* load_listener() const { return load_listener_; }

  std::unique_ptr<StepRecorder> steps;         // null: not recorded
  std::unique_ptr<ScheduleRecorder> schedule;  // null: not recorded
  std::unique_ptr<DeviceShares> shares;        // null: not recorded
  std::unique_ptr<StepTokens> step_tokens;     // null: not recorded

 private:
  // The scheduler hears of the end of a step.
  void update(const Batch& batch, std::vector<RequestId>& finished);
  // Requests that its engine has not seen.
  std::int32_t num_unseen() const {
    return static_cast<std::int32_t>(inbox_.size()) + api_servers_.num_prompts();
  }
  void close_api_servers(Ps now);
  void cut_steps(Ps now);
  void on_step_done(Ps now);
  // Completes the oldest batch in flight; finished requests are appended.
  void complete_oldest(Ps now, std::vector<RequestId>& finished);
  void on_schedule(Ps now);
  void fill_slots(Ps now);
  void wake(Ps now);
  // When a copy ends for which requests wait that nothing else would move; kEndOfTime: none.
  Ps next_copy() const {
    if (copies_ == nullptr || !scheduler_->has_requests()) return kEndOfTime;
    return std::min(kEndOfTime, copies_->next_copy());
  }
  void post_schedule(Ps at) {
    schedule_at_ = at;
    post(at, Phase::kSchedule);
  }
  // Something has changed for it.
  void stir();
  void note_arrival(Arrivals& queue, Ps seen, RequestId request);
  void drain_inbox(Ps now);
  // `ahead`: of the iteration of its engine that it has begun last; 1: with the requests that it
  // has taken in for the next one.
  void tell_load(Ps now, std::int64_t ahead = 0);
  Iteration iteration() const;
  void run_next(Ps now);
  void note_times(const StepTimes& times, Ps now);
  // The device runs the batch for so long, or (negative) does not after all.
  void add_busy(const Batch& batch, Ps time);
  // How many batches before the next one that one is whose tokens it waits for; 0: none.
  std::int32_t tokens_from() const;
  StepStart start_of(Ps now) const;
  Ps copied(const Batch& batch) const;
  bool passes_together() const {
    return lockstep_ != nullptr && rounds_ != nullptr && rounds_->idles_along();
  }
  bool withholds() const { return rounds_ != nullptr && rounds_->withholds(); }
  void note_offer(Ps now);
  bool has_place(Ps now);
  bool looks_at_inbox(Ps now);
  void await_last_output(Ps now);
  bool take_empty_call(Ps now);
  void note_empty_call(Ps now);
  bool gate(Ps now);
  // True when the batch that waited may start now.
  bool open_gate(Ps now);
  // Whether the engine hears of nothing until the next slot's batch has what it waits for.
  bool engine_is_held() const { return gated_ && engine_waits_; }
  void take_output(Ps now);
  bool build_next(Ps now);
  // A batch that takes no time ends at once, before those in flight.
  void complete_at_once(const Batch& batch, Ps now);
  bool build_batch(Ps now);
  // Its scheduler fills the next slot.
  Batch& form_batch(Ps now);
  // A turn of its engine's own loop; false: it waits.
  bool take_turn(Ps now);
  bool step_engine(Ps now);
  bool run_dummy();
  // The loop takes the output of a call that gave no batch; whether it hears of KV that has moved.
  bool take_call(Ps now);
  // Whether its engine waits for messages alone. Dummies of a wave that has ended may be in flight.
  bool listens() const;
  // The engine hears of KV that has moved until now; false: none has.
  bool hear_at_once(Ps now);
  // Whether its engine, in lock-step with others, takes what has moved from calls that gave no
  // batch, and runs a dummy behind each.
  bool hears_by_calls() const {
    return lockstep_ != nullptr && !idles_along() && scheduler_->queues_empty_batches();
  }
  // Whether its engine takes the output of the oldest batch, as soon as that has ended.
  bool takes_output() const {
    if (engine_is_held()) return false;
    const bool awaits = loop_ == nullptr || loop_->turn() == EngineTurn::kAwaits;
    return awaits || batches_.oldest().batch.empty();
  }
  void report_reserved(Ps now);
  std::size_t depth() const { return static_cast<std::size_t>(config_.depth); }
  // Batches that take a place in the engine's queue.
  std::size_t num_queued() const {
    return batches_.num_in_flight() + num_offers_ - (idles_along() ? 0 : batches_.num_dummies());
  }
  // Batches that have been built and not launched.
  std::size_t num_built() const { return gated_ ? 1 : num_offers_; }
  // The slot of the next batch that is built.
  Slot& free_slot() { return batches_[batches_.num_in_flight() + num_offers_]; }
  void drop_aborted(Ps now);
  void drop(RequestId request, Ps now);
  // Those that it has dropped are told with its next output, or, if it has nothing to run, at once.
  void tell_left();
  // The request has left its scheduler without an answer.
  void note_left(RequestId request, Ps now);
  // Those that are here by now enter its engine in the order in which that has seen them.
  void order_by_sight(Ps now);
  Ps seen_at(RequestId request) const { return sequences_[request].arrival + latency_of(request); }
  void take_told(Ps now);
  void hear_of_moved(Ps launched, Ps now);
  void hear_of_moved_kv(RequestId request, Ps now);
  // Whether it computes prompts and answers when their KV has been sent (SGLang:
  // process_disagg_prefill_inflight_queue).
  bool answers_when_sent() const {
    return config_.role == Role::kPrefill && connector_ != nullptr && connector_->hears_at_output();
  }
  bool others_run() const;
  // Until when a scheduler hears of what has moved, with the output of a step.
  Ps hears_until(const Slot& slot, Ps now) const;

  GroupConfig config_;
  LoadListener* load_listener_ = nullptr;  // null: nobody asks for it
  PublishedLoad load_;                     // as it was last told
  std::int32_t outstanding_ = 0, promised_ = 0;
  KeyLog* key_log_ = nullptr;
  std::unique_ptr<Scheduler> scheduler_;
  KvConnector* connector_;  // of the scheduler; null: it has none
  RoundCounting* rounds_;   // of the scheduler; null: it does not count rounds
  HostCopying* copies_;     // of the scheduler; null: it copies nothing
  EngineLoop* loop_;        // of the scheduler; null: the loop of its engine is ours
  GroupCosts costs_;
  FoldedChain chain_;
  std::unique_ptr<StepExecutor> executor_;  // null: the chain, or the lock-step group's
  bool reports_layers_ = false;
  SequenceTable& sequences_;
  RequestLog& log_;
  Ps schedule_at_ = kEndOfTime;  // of the pending kSchedule
  Ps looked_ = kNever;           // when it began the pass in which it waits for other members
  bool passes_ = false;          // its pass has found nothing, and goes on to the next output
  bool step_done_posted_ = false;
  std::vector<RequestId> finished_;  // scratch
  std::vector<RequestId> dropped_;   // since its last output
  HandedBack handed_back_;
  Arrivals inbox_, aborts_;
  Arrivals moved_;  // KV that has been moved, and its scheduler does not know yet
  ApiServers api_servers_;
  Completion* completion_ = nullptr;
  GroupObserver* observer_ = nullptr;
  StepEnds* step_ends_ = nullptr;
  bool paused_ = false;
  std::vector<Reserved> reserved_;  // scratch
  PostedReads posted_reads_;
  BatchRing batches_;  // `depth` slots; of a member twice as many
  CallQueue calls_;
  bool nothing_to_build_ =
      false;  // until the next output: an empty schedule occupies its slot, as in vLLM
  LockstepGroup* lockstep_ = nullptr;
  std::size_t place_ = 0;       // among its members
  bool idles_along_ = false;    // as its lock-step group says
  std::size_t num_offers_ = 0;  // batches that wait for the other members' rounds
  bool joins_idle_ = false;
  bool owes_dummy_ = false;  // its engine found nothing to run, and waits for its oldest batch
  bool dummy_runs_ = false;  // the dummy for which its engine's loop waits has been offered
  bool building_ = false;
  GroupMoves* moves_ = nullptr;
  bool gated_ = false;  // the next slot's batch waits for KV from the tiers
  // Its engine does nothing else meanwhile, since its worker, which waits, is in its process.
  bool engine_waits_ = false;
  bool hears_posted_ = false;  // that it learns of the oldest batch that has ended meanwhile
  Ps last_end_ = 0, busy_ = 0, dummies_busy_ = 0;
  std::int64_t scheduled_tokens_ = 0, idle_with_work_ = 0;
  std::int64_t received_tokens_ = 0;  // of prompts, without those that were dropped before they ran
  Circling circling_;
  CompletedSteps completed_;
  std::vector<RequestId> rejected_;
};

}  // namespace llmsim
