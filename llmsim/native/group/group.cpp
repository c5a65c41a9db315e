#include "group/group.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "group/lockstep/lockstep_group.h"
#include "group/observer.h"
#include "kv/offloading/copies.h"
#include "kv/tiers/kv_tiers.h"

namespace llmsim {

Group::Group(GroupConfig config, std::unique_ptr<Scheduler> scheduler, GroupCosts costs,
             SequenceTable& sequences, RequestLog& log)
    : config_(config),
      scheduler_(std::move(scheduler)),
      connector_(scheduler_->kv_connector()),
      rounds_(scheduler_->round_counting()),
      copies_(scheduler_->host_copying()),
      loop_(scheduler_->engine_loop()),
      costs_(std::move(costs)),
      sequences_(sequences),
      log_(log),
      api_servers_(config_, *this),
      batches_(depth()),
      calls_(depth()),
      circling_(scheduler_->limits().max_model_len) {
  if (api_servers_.work()) log_.use_api_servers();
}

bool Group::may_queue(RequestId request) const {
  if (config_.max_queued_requests > 0 && num_waiting() >= config_.max_queued_requests) return false;
  const std::int64_t queued = received_tokens_ - scheduler_->counters().prompt_tokens;
  return config_.max_queued_tokens == 0 ||
         queued + sequences_[request].prompt_tokens <= config_.max_queued_tokens;
}

bool Group::can_ever_run(RequestId request) const {
  const Sequence& sequence = sequences_[request];
  const std::int32_t max_tokens = sequences_.max_tokens(request);
  const Limits limits = scheduler_->limits();
  if (sequence.prompt_tokens >= limits.max_model_len ||
      sequence.prompt_tokens > limits.longest_prompt)
    return false;
  // The last token that is sampled needs no slot of its own.
  const std::int64_t most = std::min<std::int64_t>(
      std::int64_t{sequence.prompt_tokens} + max_tokens, limits.max_model_len);
  const std::int64_t slots =
      std::min<std::int64_t>(most - 1 + limits.slots_ahead, limits.max_model_len);
  return scheduler_->most_blocks(slots) <= limits.usable_blocks;
}

void Group::receive(RequestId request, Ps now) {
  log_.group[request] = static_cast<std::int16_t>(config_.index);
  const bool is_new = log_.queued[request] == kNever;
  if (is_new) log_.queued[request] = now + latency_of(request);
  const Ps seen = std::max(now, log_.queued[request]);
  if (!can_ever_run(request)) {
    sequences_[request].status = static_cast<std::uint8_t>(Status::kRejected);
    rejected_.push_back(request);
    return;
  }
  sequences_[request].status = static_cast<std::uint8_t>(Status::kWaiting);
  received_tokens_ += sequences_[request].prompt_tokens;
  ++outstanding_;
  if (!api_servers_.work())
    return note_arrival(inbox_, seen, request);  // a long prompt is overtaken
  if (is_new) log_.queued[request] = kNever;
  api_servers_.tokenize(request, sequences_[request].prompt_tokens, now);
}

// A request that another group had before keeps the time when the first engine saw it, and is not
// tokenised anew for those who ask what its first step waited for.
void Group::tokenized(RequestId request, Ps now) {
  const Ps seen = now + latency_of(request);
  if (log_.scheduled[request] == kNever) log_.tokenized[request] = now;
  if (log_.queued[request] == kNever) log_.queued[request] = seen;
  note_arrival(inbox_, seen, request);
  if (api_servers_.left_early(request)) note_arrival(aborts_, seen, request);
  wake_if_idle(now);
}

void Group::streamed(std::size_t process, const StepAnswers& answers, Ps now) {
  api_servers_.sent(process, answers.step, now);
  for (const Item& item : answers.items) {
    const RequestId request = item.request;
    if (log_.emitted_tokens[request] > 0 && log_.first_streamed[request] == kNever)
      log_.first_streamed[request] = now;
  }
  for (const RequestId request : answers.finished) log_.last_streamed[request] = now;
  completion_->step_done(answers.finished, answers.items, now);
  if (step_ends_ != nullptr) step_ends_->step_ended(now);
}

void Group::close_api_servers(Ps now) {
  const ApiServers::Unseen unseen = api_servers_.close(now);
  for (const RequestId request : unseen.prompts) scheduler_->add(request);
  for (const RequestId request : unseen.left) {
    if (log_.queued[request] == kNever) log_.queued[request] = now;
    note_arrival(aborts_, now, request);
  }
}

void Group::stir() {
  if (lockstep_ != nullptr) lockstep_->stir(place_);
}

void Group::note_arrival(Arrivals& queue, Ps seen, RequestId request) {
  stir();
  queue.add(seen, request);
}

void Group::transferred(RequestId request, Ps at) { moved_.add(at, request); }

void Group::drain_inbox(Ps now) {
  if (answers_when_sent()) order_by_sight(now);
  while (const std::optional<RequestId> request = inbox_.take(now)) {
    circling_.arrived();
    scheduler_->add(*request);
  }
  if (!aborts_.empty()) drop_aborted(now);
  tell_load(now, 1);
}

// SGLang's engine has them from the start, and those whose KV may be sent enter its queue in that
// order (pop_bootstrapped).
void Group::order_by_sight(Ps now) {
  inbox_.sort_seen(now, [this](RequestId request) { return seen_at(request); });
}

// Requests that its engine took when it looked, and that decode groups have memory for by now.
void Group::take_told(Ps now) {
  order_by_sight(now);
  const auto has_been_seen = [this](RequestId request) { return seen_at(request) <= looked_; };
  while (const std::optional<RequestId> request = inbox_.take_if(now, has_been_seen)) {
    circling_.arrived();
    scheduler_->add(*request);
  }
}

void Group::tell_load(Ps now, std::int64_t ahead) {
  if (load_listener_ == nullptr) return;
  const Gauges gauges = scheduler_->gauges();
  if (gauges.running == load_.running && gauges.waiting == load_.waiting) return;
  const auto blocks = static_cast<double>(gauges.pool.total - 1);
  const double usage = 1.0 - static_cast<double>(gauges.pool.free) / blocks;
  load_ = {gauges.running, gauges.waiting, usage};
  Iteration at = iteration();
  at.number += ahead;
  load_listener_->load_changed(config_.index, load_, at, now);
}

// The last one for which it has called for a batch or a dummy.
Iteration Group::iteration() const {
  if (lockstep_ == nullptr) return {};
  const bool calls_dummy = joins_idle_ || (runs_loop() && loop_->turn() == EngineTurn::kDummy);
  const auto called =
      static_cast<std::int64_t>(num_offers_) + (calls_dummy && !dummy_runs_ ? 1 : 0);
  return {lockstep_->waves(), lockstep_->rounds() + called - 1};
}

Ps Group::latency_of(RequestId request) const {
  return config_.api_latency + config_.api_latency_per_token * sequences_[request].prompt_tokens;
}

// A short message may overtake a long prompt, but is nothing to an engine that has not seen the
// request.
void Group::mark_referred(std::vector<bool>& requests) const {
  for (std::size_t i = 0; i < batches_.num_in_flight() + num_built(); ++i)
    for (const Item& item : batches_[i].batch.items) requests[at(item.request)] = true;
  for (const Arrivals* queue : {&inbox_, &aborts_, &moved_})
    for (const Arrival& arrival : *queue) requests[at(arrival.request)] = true;
  api_servers_.mark_referred(requests);
}

void Group::abort(RequestId request, Ps now) {
  if (api_servers_.leaves_early(request)) return;
  abort_read(request, now + config_.api_latency);
}

void Group::abort_read(RequestId request, Ps now) {
  note_arrival(aborts_, std::max(now + config_.abort_latency, log_.queued[request]), request);
}

// One that the engine has not seen yet waits for the next batch, before which it is added and
// dropped.
void Group::drop_aborted(Ps now) {
  const auto has_been_added = [this](RequestId request) { return !inbox_.has(request); };
  while (const std::optional<RequestId> request = aborts_.take_if(now, has_been_added))
    drop(*request, now);
}

void Group::drop(RequestId request, Ps now) {
  const auto status = static_cast<Status>(sequences_[request].status);
  const bool is_here =
      status == Status::kWaiting || status == Status::kRunning || status == Status::kParked;
  auto what = GroupObserver::Dropped::kRequest;
  if (is_here) {
    if (connector_ != nullptr && connector_->awaits_drain(request)) {
      what = GroupObserver::Dropped::kKv;
      moved_.remove(request);
    }
    scheduler_->abort(request);
    note_left(request, now);
    dropped_.push_back(request);
  } else if (!answers_when_sent()) {
    return;                                 // it has finished meanwhile
  } else if (status == Status::kPending) {  // its engine has it, and may not compute it yet
    sequences_[request].status = static_cast<std::uint8_t>(Status::kCancelled);
    log_.cancelled[request] = now;
  }
  if (observer_ != nullptr) observer_->dropped(request, config_.index, what, now);
}

void Group::tell_left() {
  if (dropped_.empty()) return;
  completion_->left(dropped_);
  dropped_.clear();
}

void Group::note_left(RequestId request, Ps now) {
  log_.cancelled[request] = now;
  if (log_.scheduled[request] == kNever) received_tokens_ -= sequences_[request].prompt_tokens;
  --outstanding_;
}

void Group::on_event(Ps now, Phase phase, std::uint32_t argument) {
  if (phase != Phase::kStepDone) return on_schedule(now);
  if (argument != kHears) return on_step_done(now);
  hears_posted_ = false;
  take_output(now);
}

void Group::on_step_done(Ps now) {
  step_done_posted_ = false;
  if (takes_output() && batches_.num_unseen() == 0) return take_output(now);
  batches_.end_unseen();
  if (moves_ != nullptr) moves_->step_ended(now);
  expect(now);
}

void Group::take_output(Ps now) {
  finished_.clear();
  complete_oldest(now, finished_);
  if (api_servers_.work()) {
    api_servers_.answer(batches_.last(), finished_, completed_.size() - 1, now);
  } else {
    completion_->step_done(finished_, batches_.last().items, now);
  }
  tell_left();
  if (step_ends_ != nullptr) step_ends_->step_ended(now);
  // Whatever else happens at this very time happens before the group schedules.
  if (events().anything_now()) {
    post_schedule(now);
  } else {
    on_schedule(now);
  }
}

// Members of a lock-step group build their batches together, whoever of them was woken.
void Group::on_schedule(Ps now) {
  schedule_at_ = kEndOfTime;
  if (lockstep_ == nullptr) {
    fill_slots(now);
    return expect(now);
  }
  lockstep_->pump(place_, now);
}

void Group::expect(Ps now) {
  if (listens()) wake(now);
  if (idle()) return;
  const std::size_t unseen = batches_.num_unseen();
  if (!hears_posted_ && unseen > 0 && takes_output()) {
    hears_posted_ = true;
    post(now, Phase::kStepDone, kHears);
  }
  if (!step_done_posted_ && batches_.num_timed() > unseen) {
    step_done_posted_ = true;
    post(batches_[unseen].times.end, Phase::kStepDone);
  }
}

bool Group::listens() const {
  if (idle()) return true;
  const bool only_dummies = batches_.num_in_flight() == batches_.num_dummies();
  return only_dummies && lockstep_ != nullptr && lockstep_->rests(*this);
}

// An idle group acts when its engine next sees a request: not before its step, where that waits for
// other members. A paused one is asked when it goes on.
void Group::wake(Ps now) {
  if (paused_) return;
  const bool agrees = lockstep_ != nullptr && lockstep_->about_to_agree();
  const bool waits = num_offers_ > 0 || joins_idle_ || withholds() || agrees || looked_ != kNever;
  const Ps seen = waits || !looks() ? kEndOfTime : next_inbox();
  const Ps next = std::max(now, std::min(seen, next_copy()));
  if (next < schedule_at_) post_schedule(next);
}

void Group::check(Ps now) const {
  const std::string when = " at " + std::to_string(now) + " ps";
  if (!scheduler_->pool_consistent())
    throw Violated("invariant 4: the KV blocks of group " + std::to_string(config_.index) +
                   " do not add up" + when);
  if (moves_ != nullptr && !moves_->consistent())
    throw Violated(
        "invariant 4: the chunks of the KV tiers, and what is on its way to and from "
        "them, do not add up" +
        when);
}

std::string Group::unfinished() const {
  const Gauges held = scheduler_->gauges();
  if (!has_requests() && held.bound == 0) return {};
  return " group " + std::to_string(config_.index) + " has " + std::to_string(held.running) +
         " running and " + std::to_string(num_waiting()) + " waiting requests (" +
         std::to_string(held.bound) + " whose KV another group fills or reads) with " +
         std::to_string(held.pool.free) + " free KV blocks;";
}

// What its engine has not seen is added first, so that one way leads out for all.
void Group::hand_back(std::span<const RequestId> requests, Ps now, bool keep_answers) {
  close_api_servers(now);
  for (const Arrival& arrival : inbox_) scheduler_->add(arrival.request);
  inbox_.clear();
  aborts_.hasten(now);
  drop_aborted(now);
  tell_left();
  for (const RequestId request : requests) {
    scheduler_->abort(request);
    const Sequence& s = sequences_[request];
    ++handed_back_.requests;
    handed_back_.computed_tokens += std::max(s.lost_to, s.num_computed);
    if (!keep_answers) handed_back_.emitted_tokens += log_.emitted_tokens[request];
    --outstanding_;
  }
  hear_of_moved(now, now);
  cut_steps(now);
  scheduler_->stop();
  moved_.clear();
}

// Batches complete without any of their requests, which frees what was kept for them.
void Group::cut_steps(Ps now) {
  stir();
  looked_ = kNever;
  passes_ = false;
  Ps free = completed_.last_end();
  finished_.clear();
  for (; !batches_.empty(); batches_.pop_oldest()) {
    const Slot& slot = batches_.oldest();
    if (batches_.num_timed() > 0) {
      const Ps from = std::max({slot.times.start, free, now});
      add_busy(slot.batch, -std::max<Ps>(0, slot.times.end - from));
      free = slot.times.end;
    }
    batches_.see_oldest();
    if (!slot.batch.empty()) scheduler_->update(slot.batch, finished_);
  }
  calls_.clear();
  if (!finished_.empty())
    throw std::logic_error("a request finished in a group that had handed it back");
}

void Group::fill_slots(Ps now) {
  drain_inbox(now);
  if (open_gate(now)) run_next(now);
  while (!gated_ && build_next(now)) {
    if (!gate(now)) run_next(now);
  }
  if (num_queued() == 0) tell_left();
  if (idle() && !gated_ && !paused_ && scheduler_->has_requests() &&
      scheduler_->gauges().bound == 0 && next_copy() == kEndOfTime)
    ++idle_with_work_;
}

// The first of several stages computes on tokens that the last one has sampled. The workers of
// vLLM's Model Runner V1 wait for those of the batch before, whoever is in it. Those of V2 take, in
// each call, the tokens of the call that was as many before it as there are stages; calls without a
// batch count (vllm/v1/worker/gpu/pp_utils.py: PPHandler). Unfinished prompts give no tokens.
std::int32_t Group::tokens_from() const {
  const auto stages = static_cast<std::size_t>(costs_.program().num_stages());
  const auto gives_tokens = [this](std::size_t place) {
    return std::ranges::any_of(batches_[place].batch.items, &Item::emits);
  };
  const std::size_t in_flight = batches_.num_in_flight();
  if (config_.stages_wait) return in_flight > 0 && gives_tokens(in_flight - 1) ? 1 : 0;
  const std::optional<std::size_t> before = calls_.batches_before(stages - 1);
  if (stages == 1 || !before) return 0;
  std::size_t place = *before;
  while (place > 0 && !gives_tokens(place - 1)) --place;
  return place == 0 ? 0 : static_cast<std::int32_t>(in_flight - (place - 1));
}

// Steps on shared links may still run without a known end.
StepStart Group::start_of(Ps now) const {
  const std::int32_t before = tokens_from();
  const Ps ready = std::max(now, copied(batches_.next().batch));
  if (before == 0) return {now, ready};
  const std::size_t place = batches_.num_in_flight() - at(before);
  if (place >= batches_.num_timed()) return {now, ready, before};
  return {now, std::max(ready, batches_[place].times.end)};
}

// The earliest start with which the first layer and the last one have their KV in time, of the
// first of several stages, behind which the others run.
Ps Group::copied(const Batch& batch) const {
  const HostLoad& load = batch.load;
  if (load.layers == 0) return batch.not_before;
  const Ps first = load.start + (load.end - load.start) / load.layers;
  Program::Usage uncounted = costs_.program().new_usage();
  const Ps step = costs_.program().evaluate(batch, uncounted).ps / costs_.program().num_stages();
  const Ps last = load.end - step / load.layers * (load.layers - 1);
  return std::max({batch.not_before, first, last});
}

void Group::hold_until(Ps ready) {
  if (copies_ == nullptr) return;
  Slot& slot = batches_.newest();
  slot.opened = std::max(slot.opened, copied(slot.batch));
  slot.launched = ready;
}

void Group::run_next(Ps now) {
  const Batch& batch = batches_.next().batch;
  const StepStart start = start_of(now);
  if (executor_ != nullptr) announce(now);
  Slot& slot = batches_.next();
  launch(now);
  if (batches_.num_in_flight() < depth())
    tell_load(now);  // else it waits for the oldest batch first
  if (copies_ != nullptr) slot.opened = slot.launched = std::max(now, copied(batch));
  if (executor_ == nullptr) return note_times(chain_.run(costs_, batch, start), now);
  const Batch* one = &batch;
  executor_->begin({&one, 1}, start, *this);
}

// Whether the batch just built has to wait for what it moves between tiers.
bool Group::gate(Ps now) {
  batches_.next().opened = now;
  return gated_ = moves_ != nullptr && !moves_->open();
}

bool Group::open_gate(Ps now) {
  if (!gated_ || !moves_->open()) return false;
  gated_ = false;
  batches_.next().opened = now;
  return true;
}

void Group::log_keys(KeyLog* log) {
  key_log_ = log;
  if (PrefixEvents* events = scheduler_->prefix_events()) events->log_keys(log);
}

void Group::use_tiers(GroupTiers& tiers, bool parks) {
  TieredKv* tiered = scheduler_->tiered_kv();
  if (tiered == nullptr) throw std::invalid_argument("this scheduler has no KV tiers");
  if (parks && !tiered->may_park())
    throw std::invalid_argument("this scheduler does not park who recalls KV");
  moves_ = &tiers;
  tiered->use_tiers(&tiers);
}

void Group::use_copies(GroupCopies& copies) {
  OffloadedKv* offloaded = scheduler_->offloaded_kv();
  if (offloaded == nullptr) throw std::invalid_argument("this scheduler offloads no KV");
  moves_ = &copies;
  engine_waits_ = copies.num_ranks() == 1 && !overlaps();
  offloaded->use_copies(copies);
}

void Group::hear_of_moved(Ps launched, Ps now) {
  while (const std::optional<RequestId> request = moved_.take(launched))
    hear_of_moved_kv(*request, now);
}

void Group::hear_of_moved_kv(RequestId request, Ps now) {
  if (connector_->transferred(request)) return;
  note_left(request, now);
  completion_->failed(request, now);
}

Ps Group::hears_until(const Slot& slot, Ps now) const {
  if (connector_ != nullptr && connector_->hears_at_output()) return now;
  return slot.launched + slot.batch.posting;
}

void Group::report_reserved(Ps now) {
  reserved_.clear();
  connector_->take_reserved(reserved_);
  for (const Reserved& reserved : reserved_)
    posted_reads_.add(observer_->reserved(reserved.request, reserved.cached, now), now);
}

// Its lock-step group runs rounds: what lands at the end of one is heard of with the next one.
bool Group::others_run() const { return passes_together() && lockstep_->runs_rounds(); }

// Builds the batch of the next free slot; false when there is no slot or nothing to run.
bool Group::build_next(Ps now) {
  if (paused_) return false;
  while (!build_batch(now)) {
    const bool runs_dummies = hears_by_calls() && lockstep_->runs_dummies();
    const bool hears = !runs_dummies && listens() && !others_run();
    if (!hears || !hear_at_once(now)) return false;
  }
  return true;
}

// A call without a batch ends as soon as it is the oldest; it is looked at when the queue is full.
bool Group::has_place(Ps now) {
  if (calls_.full()) take_empty_call(now);
  return !calls_.full();
}

void Group::note_empty_call(Ps now) {
  if (scheduler_->queues_empty_batches()) calls_.push_empty(now);
}

// The engine takes what its worker gave to the oldest call, if that had no batch: what had moved
// then (vLLM: kv_connector_no_forward).
bool Group::take_empty_call(Ps now) {
  const std::optional<Ps> made = calls_.take_empty();
  if (made) hear_of_moved(*made, now);
  return made.has_value();
}

void Group::update(const Batch& batch, std::vector<RequestId>& finished) {
  if (step_tokens) step_tokens->ends(batch, log_);
  scheduler_->update(batch, finished);
  if (step_tokens) step_tokens->ended(batch, log_, sequences_);
}

void Group::complete_at_once(const Batch& batch, Ps now) {
  const auto step = static_cast<std::int32_t>(completed_.size());
  log_.begin_build(step);
  log_.begin_output(step, now);
  completed_.add(now, {.start = now, .end = now}, {now, now, now});
  finished_.clear();
  update(batch, finished_);
  outstanding_ -= static_cast<std::int32_t>(finished_.size());
  if (key_log_ != nullptr) key_log_->publish(now);
  if (schedule) schedule->completed_last(now, *scheduler_, finished_);
  completion_->step_done(finished_, batch.items, now);
}

Batch& Group::form_batch(Ps now) {
  Slot& slot = free_slot();
  log_.begin_build(
      static_cast<std::int32_t>(completed_.size() + batches_.num_in_flight() + num_offers_));
  building_ = true;
  scheduler_->schedule(now, slot.batch);
  building_ = false;
  if (!slot.batch.preempted.empty()) circling_.preempted(scheduler_->counters());
  if (moves_ != nullptr)
    moves_->formed(now, static_cast<std::int32_t>(batches_.num_in_flight()), !slot.batch.empty());
  if (schedule) schedule->built(now, *scheduler_, slot.batch);
  slot.scheduled = now;
  if (observer_ != nullptr && connector_ != nullptr) report_reserved(now);
  if (!slot.batch.empty() && !slot.batch.takes_no_time)
    slot.batch.posting = posted_reads_.take(now);
  return slot.batch;
}

bool Group::build_batch(Ps now) {
  std::int64_t empty_builds = 0;
  while (has_place(now) && !nothing_to_build_ && scheduler_->has_requests()) {
    const Batch& batch = form_batch(now);
    if (batch.takes_no_time) {
      complete_at_once(batch, now);
      continue;
    }
    if (!batch.empty()) return true;
    // Its own victim, to be admitted again, or a turn that nobody takes; vLLM hears of transfers in
    // such a step, too.
    if (idle() && !passes_together() && (!batch.preempted.empty() || scheduler_->asks_again())) {
      if (++empty_builds > kMostEmptyBuilds)
        throw Stalled("the scheduler of group " + std::to_string(config_.index) + " was asked " +
                      std::to_string(empty_builds) + " times at " + std::to_string(now) + " ps");
      hear_of_moved(now, now);
      note_empty_call(now);
      continue;
    }
    if (num_queued() > 0 && scheduler_->queues_empty_batches()) {
      note_empty_call(now);
      owes_dummy_ = lockstep_ != nullptr && !idles_along();
      continue;
    }
    nothing_to_build_ = num_queued() > 0;
    break;
  }
  return false;
}

void Group::launch(Ps now) {
  Slot& slot = batches_.launch();
  slot.launched = now;
  scheduled_tokens_ += slot.batch.scheduled_tokens();
  if (lockstep_ == nullptr || (slot.batch.empty() && idles_along())) calls_.push_batch(now);
  if (num_offers_ > 0) --num_offers_;
  joins_idle_ = false;
  looked_ = kNever;
  if (steps) slot.row = steps->record(config_.index, slot.scheduled, slot.batch, *scheduler_);
}

void Group::timed(std::size_t, const StepTimes& times, Ps now) {
  note_times(times, now);
  expect(now);
}

void Group::passed(const Progress& progress, Ps now) {
  if (observer_ != nullptr) observer_->passed(*this, progress, now);
}

void Group::attended(std::size_t, std::int32_t behind, std::int32_t layer, Ps at, Ps now) {
  if (observer_ != nullptr) observer_->attended(*this, behind, layer, at, now);
}

void Group::announce(Ps now) {
  const bool hears = reports_layers_ || (executor_ != nullptr && executor_->reports_progress());
  if (observer_ != nullptr && hears)
    observer_->begins(*this, batches_.next().batch, costs_.usage().steps + 1, now);
}

bool Group::report_layers() {
  if (lockstep_ != nullptr) {
    reports_layers_ = lockstep_->report_layers();
  } else {
    reports_layers_ = executor_ != nullptr && executor_->report_layers();
  }
  return reports_layers_;
}

void Group::add_busy(const Batch& batch, Ps time) {
  busy_ += time;
  if (batch.empty()) dummies_busy_ += time;
}

void Group::note_times(const StepTimes& times, Ps now) {
  const Slot& slot = batches_.set_times(times);
  add_busy(slot.batch, times.end - std::max(times.start, last_end_));
  last_end_ = times.end;
  if (copies_ != nullptr) copies_->device_runs_until(times.end);
  if (observer_ != nullptr) observer_->launched(*this, slot.batch, times, now);
  if (steps) steps->timed(slot.row, times);
}

// An engine looks at its inbox between two of its own steps, not while it runs one or waits for
// other members to join it: nor while it waits for them to agree.
void Group::offer(Ps now, std::int64_t round, std::int64_t rounds_ahead) {
  const bool at_agreement = num_offers_ >= static_cast<std::size_t>(rounds_ahead);
  if (idles_along()) {
    if (answers_when_sent()) {
      take_told(now);
    } else if (connector_ != nullptr) {
      hear_of_moved(now - 1, now);  // what moves at this very time is heard of with the next pass
    }
    tell_load(now);
  } else if (!joins_idle_ && !at_agreement && looks_at_inbox(now)) {
    drain_inbox(now);
  }
  open_gate(now);
  const bool one_by_one = idles_along() || moves_ != nullptr;  // who waits for KV holds up others
  const std::size_t most = one_by_one ? 1 : static_cast<std::size_t>(rounds_ahead);
  const bool engine_waits = joins_idle_ || (!idles_along() && full());
  while (!engine_waits && !gated_ && !withholds() && num_offers_ < most) {
    if (rounds_ != nullptr && !(passes_together() && full()))
      rounds_->set_round(round + static_cast<std::int64_t>(num_offers_), now);
    if (!build_next(now)) break;
    note_offer(now);
    if (num_queued() < depth()) tell_load(now);  // else it waits for the oldest batch first
  }
  if (!at_agreement) await_last_output(now);
  if (num_queued() == 0) tell_left();
  const bool has_work = scheduler_->has_requests() && !scheduler_->asks_again() && !withholds();
  if (idle() && num_offers_ == 0 && !joins_idle_ && !paused_ && has_work &&
      scheduler_->gauges().bound == 0 && next_copy() == kEndOfTime)
    ++idle_with_work_;
}

bool Group::looks_at_inbox(Ps now) { return !full() && !nothing_to_build_ && has_place(now); }

// Where nobody is left and batches are in flight, vLLM's engine takes the output of the oldest one,
// and then runs a dummy, whatever has come meanwhile (step_with_batch_queue).
void Group::await_last_output(Ps now) {
  if (idles_along() || joins_idle_ || scheduler_->has_requests()) return;
  if (num_queued() > 0 && looks_at_inbox(now)) nothing_to_build_ = owes_dummy_ = true;
}

bool Group::look(Ps now) {
  if (looked_ != kNever) return true;
  if (full() || passes_) return false;
  drain_inbox(now);
  looked_ = now;
  return true;
}

void Group::note_offer(Ps now) {
  free_slot().opened = now;
  calls_.push_batch(now);
  if (++num_offers_ == 1) gate(now);
  // With its queue full, vLLM's engine takes the output of the oldest call in the same step.
  if (hears_by_calls() && calls_.full()) take_empty_call(now);
}

void Group::offer_withheld(Ps now) {
  if (!withholds()) return;
  rounds_->release();
  nothing_to_build_ = false;
  if (build_next(now)) note_offer(now);
}

bool Group::run_loop(Ps now) {
  open_gate(now);
  bool has_run = false;
  while (take_turn(now)) has_run = true;
  if (num_queued() == 0) tell_left();
  return has_run;
}

bool Group::take_turn(Ps now) {
  switch (loop_->turn()) {
    case EngineTurn::kLooks:
      return step_engine(now);
    case EngineTurn::kDummy:
      return run_dummy();
    case EngineTurn::kAwaits:
    case EngineTurn::kTakes:
    case EngineTurn::kAgrees:
      return false;
  }
  return false;
}

// An engine that goes round without work until KV has been read hears at once of KV that has moved:
// it takes the output of the call that it makes now. One whose batches wait for KV forms one at a
// time.
bool Group::step_engine(Ps now) {
  drain_inbox(now);
  const bool waits_for_kv = gated_ || (moves_ != nullptr && num_offers_ > 0);
  if (paused_ || waits_for_kv) return false;
  if (!loop_->has_work()) return false;
  const bool found_work = !form_batch(now).empty();
  if (found_work) note_offer(now);
  const bool hears = loop_->turn() == EngineTurn::kTakes && take_call(now);
  if (loop_->turn() != EngineTurn::kAwaits) tell_load(now);
  return found_work || hears || !looks() || moved_.first() <= now;
}

bool Group::take_call(Ps now) {
  const bool hears = moved_.first() <= loop_->taken_from();
  hear_of_moved(loop_->taken_from(), now);
  loop_->go_on();
  return hears;
}

bool Group::hear_at_once(Ps now) {
  if (moved_.first() > now) return false;
  hear_of_moved(now, now);
  return true;
}

// Dummies do not fill the engine's queue, but it is no further ahead of its devices with them than
// with batches.
bool Group::run_dummy() {
  if (!dummy_runs_) {
    free_slot().batch.make_dummy();
    ++num_offers_;
    dummy_runs_ = true;
    return false;
  }
  if (num_offers_ > 0 || batches_.num_in_flight() >= depth()) return false;
  dummy_runs_ = false;
  loop_->go_on();
  return true;
}

// vLLM's scheduler is called where requests are left, or have ended and their KV is not read.
void Group::join_idle(Ps now) {
  if (std::exchange(joins_idle_, true) || !hears_by_calls()) return;
  if (!scheduler_->has_requests() && scheduler_->gauges().bound == 0) return;
  calls_.push_empty(now);
  if (calls_.full()) take_empty_call(now);
}

const Batch& Group::offered_or_dummy(Ps now) {
  Slot& slot = batches_.next();
  if (num_offers_ == 0 && !joins_idle_) join_idle(now);
  if (num_offers_ == 0) {
    slot.batch.make_dummy();
    if (scheduler_->has_requests()) circling_.waited(scheduler_->counters());
  }
  if (slot.batch.empty()) slot.scheduled = slot.opened = now;
  return slot.batch;
}

void Group::complete_oldest(Ps now, std::vector<RequestId>& finished) {
  stir();
  const Slot& slot = batches_.oldest();
  log_.begin_output(static_cast<std::int32_t>(completed_.size()), now);
  completed_.add(now, slot.times, {slot.scheduled, slot.opened, slot.launched});
  completed_.note_encoder(costs_.program().encoder_ps(slot.batch.features.encoder));
  if (shares) shares->record(slot.batch, now - slot.times.start, log_.share_place);
  // First, as in vLLM: their tokens are dropped. SGLang's loop hears of them with its next pass.
  if (!aborts_.empty() && !answers_when_sent()) drop_aborted(now);
  const bool is_dummy = slot.batch.empty();
  const std::size_t before = finished.size();
  if (!is_dummy) update(slot.batch, finished);
  const std::span<const RequestId> ended = std::span(finished).subspan(before);
  const bool was_seen = !batches_.see_oldest();
  if (moves_ != nullptr && was_seen) moves_->step_ended(now);
  outstanding_ -= static_cast<std::int32_t>(ended.size());
  if (!is_dummy || !hears_by_calls()) hear_of_moved(hears_until(slot, now), now);
  if (!is_dummy) {
    if (key_log_ != nullptr) key_log_->publish(now);
    if (schedule) schedule->completed(slot.times.end, *scheduler_, ended);
  }
  batches_.pop_oldest();
  if (!is_dummy || idles_along()) {
    while (take_empty_call(now)) {
    }
    calls_.pop_batch();
  }
  // Where vLLM's engine has found nothing to run, it runs a dummy behind the output that it waited
  // for, whatever has come meanwhile (DPEngineCoreProc.run_busy_loop): unless the wave has ended.
  if (!is_dummy && owes_dummy_)
    joins_idle_ = lockstep_->runs_rounds() || scheduler_->has_requests();
  if (!is_dummy) owes_dummy_ = false;
  nothing_to_build_ = passes_ = false;
  tell_load(now);
}

}  // namespace llmsim
