#include "group/group.h"

#include <algorithm>
#include <stdexcept>

#include "group/lockstep_group.h"
#include "group/observer.h"
#include "kv/offloading/copies.h"
#include "kv/tiers/kv_tiers.h"

namespace llmsim {

namespace {

// Stores `value` for the newest step; the column stays unallocated until the first non-zero value.
void note(std::vector<Ps>& column, std::size_t steps, Ps value) {
  if (value == 0 && column.empty()) return;
  column.resize(steps, 0);
  column.back() = value;
}

}  // namespace

Group::Group(GroupConfig config, std::unique_ptr<Scheduler> scheduler, GroupCosts costs,
             SequenceTable& sequences, RequestLog& log)
    : config_(config),
      scheduler_(std::move(scheduler)),
      connector_(scheduler_->kv_connector()),
      rounds_(scheduler_->round_counting()),
      copies_(scheduler_->host_copying()),
      costs_(std::move(costs)),
      sequences_(sequences),
      log_(log),
      slots_(static_cast<std::size_t>(config.depth)),
      most_futile_preemptions_(kCircles * scheduler_->limits().max_model_len + kMoreCircles) {
  if (!config.api_server.works()) return;
  if (config.role != Role::kBoth)
    throw std::invalid_argument("an API server's work is for groups that give whole answers");
  if (config.api_server.processes < 1)
    throw std::invalid_argument("an API server has at least one process");
  log_.use_api_servers();
  streamed_.resize(at(config.api_server.processes));
  for (std::size_t process = 0; process < streamed_.size(); ++process)
    api_servers_.push_back(std::make_unique<ApiServer>(config.api_server, process, *this));
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
  if (api_servers_.empty())
    return note_arrival(inbox_, {seen, request});  // a long prompt is overtaken
  if (is_new) log_.queued[request] = kNever;
  api_servers_[process_of(request)]->tokenize(request, sequences_[request].prompt_tokens, now);
}

// A request that another group had before keeps the time when the first engine saw it, and is not
// tokenised anew for those who ask what its first step waited for.
void Group::tokenized(RequestId request, Ps now) {
  const Ps seen = now + latency_of(request);
  if (log_.scheduled[request] == kNever) log_.tokenized[request] = now;
  if (log_.queued[request] == kNever) log_.queued[request] = seen;
  note_arrival(inbox_, {seen, request});
  const auto gone = std::ranges::find(left_early_, request);
  if (gone != left_early_.end()) {
    left_early_.erase(gone);
    note_arrival(aborts_, {seen, request});
  }
  wake_if_idle(now);
}

// Each process sends the chunks of its own requests.
void Group::answer_clients(Ps now) {
  const std::size_t step = output_times_.size() - 1;
  std::vector<StepAnswers> answers(api_servers_.size(), StepAnswers{step, {}, {}});
  for (const Item& item : slots_[last_].batch.items)
    if (item.emits) answers[process_of(item.request)].items.push_back(item);
  for (const RequestId request : finished_)
    answers[process_of(request)].finished.push_back(request);
  for (std::size_t process = 0; process < answers.size(); ++process) {
    streamed_[process].push_back(now);
    StepAnswers& mine = answers[process];
    if (!mine.items.empty() || !mine.finished.empty())
      api_servers_[process]->stream(std::move(mine), now);
  }
}

void Group::streamed(std::size_t process, const StepAnswers& answers, Ps now) {
  streamed_[process][answers.step] = now;
  for (const Item& item : answers.items) {
    const RequestId request = item.request;
    if (log_.emitted_tokens[request] > 0 && log_.first_streamed[request] == kNever)
      log_.first_streamed[request] = now;
  }
  for (const RequestId request : answers.finished) log_.last_streamed[request] = now;
  completion_->step_done(answers.finished, answers.items, now);
  if (step_ends_ != nullptr) step_ends_->step_ended(now);
}

bool Group::streams() const {
  return std::ranges::any_of(api_servers_, [](const auto& server) { return server->streams(); });
}

void Group::close_api_servers(Ps now) {
  for (const auto& server : api_servers_)
    for (const RequestId request : server->close(now)) scheduler_->add(request);
  for (const RequestId request : left_early_) {
    if (log_.queued[request] == kNever) log_.queued[request] = now;
    note_arrival(aborts_, {now, request});
  }
  left_early_.clear();
}

void Group::stir() {
  if (lockstep_ != nullptr) lockstep_->stir(place_);
}

void Group::insert_by_time(std::deque<Arrival>& queue, const Arrival& arrival) {
  auto place = queue.end();
  while (place != queue.begin() && std::prev(place)->seen > arrival.seen) --place;
  queue.insert(place, arrival);
}

void Group::note_arrival(std::deque<Arrival>& queue, const Arrival& arrival) {
  stir();
  insert_by_time(queue, arrival);
}

void Group::transferred(RequestId request, Ps at) { insert_by_time(moved_, {at, request}); }

void Group::drain_inbox(Ps now) {
  if (answers_when_sent()) order_by_sight(now);
  while (!inbox_.empty() && inbox_.front().seen <= now) {
    const RequestId request = inbox_.front().request;
    inbox_.pop_front();
    futile_preemptions_ = 0;
    scheduler_->add(request);
  }
  if (!aborts_.empty()) drop_aborted(now);
  tell_load(now);
}

// SGLang's engine has them from the start, and those whose KV may be sent enter its queue in that
// order (pop_bootstrapped).
void Group::order_by_sight(Ps now) {
  const auto later = std::ranges::upper_bound(inbox_, now, {}, &Arrival::seen);
  std::stable_sort(inbox_.begin(), later, [this](const Arrival& one, const Arrival& other) {
    return sequences_[one.request].arrival + latency_of(one.request) <
           sequences_[other.request].arrival + latency_of(other.request);
  });
}

void Group::tell_load(Ps now) {
  if (!load_) return;
  const Gauges gauges = scheduler_->gauges();
  if (gauges.running == load_->running && gauges.waiting == load_->waiting) return;
  const auto blocks = static_cast<double>(gauges.pool.total - 1);
  const double usage = 1.0 - static_cast<double>(gauges.pool.free) / blocks;
  *load_ = {gauges.running, gauges.waiting, usage, now};
}

Ps Group::latency_of(RequestId request) const {
  return config_.api_latency + config_.api_latency_per_token * sequences_[request].prompt_tokens;
}

// A short message may overtake a long prompt, but is nothing to an engine that has not seen the
// request.
void Group::mark_referred(std::vector<bool>& requests) const {
  for (std::size_t i = 0; i < num_in_flight_ + num_built(); ++i)
    for (const Item& item : slots_[(oldest_ + i) % slots_.size()].batch.items)
      requests[at(item.request)] = true;
  for (const std::deque<Arrival>* queue : {&inbox_, &aborts_, &moved_})
    for (const Arrival& arrival : *queue) requests[at(arrival.request)] = true;
  for (const auto& server : api_servers_) server->mark_referred(requests);
}

void Group::abort(RequestId request, Ps now) {
  const bool reads = !api_servers_.empty() && api_servers_[process_of(request)]->tokenizes(request);
  if (reads) return left_early_.push_back(request);
  const Ps seen = now + config_.api_latency + config_.abort_latency;
  note_arrival(aborts_, {std::max(seen, log_.queued[request]), request});
}

// One that the engine has not seen yet waits for the next batch, before which it is added and
// dropped.
void Group::drop_aborted(Ps now) {
  std::size_t kept = 0;
  for (; !aborts_.empty() && aborts_.size() > kept && aborts_[kept].seen <= now;) {
    const RequestId request = aborts_[kept].request;
    const auto same = [request](const Arrival& arrival) { return arrival.request == request; };
    if (std::any_of(inbox_.begin(), inbox_.end(), same)) {
      ++kept;
      continue;
    }
    aborts_.erase(aborts_.begin() + static_cast<std::ptrdiff_t>(kept));
    drop(request, now);
  }
}

void Group::drop(RequestId request, Ps now) {
  const auto status = static_cast<Status>(sequences_[request].status);
  const bool is_here =
      status == Status::kWaiting || status == Status::kRunning || status == Status::kParked;
  auto what = GroupObserver::Dropped::kRequest;
  if (is_here) {
    if (connector_ != nullptr && connector_->awaits_drain(request)) {
      what = GroupObserver::Dropped::kKv;
      std::erase_if(moved_, [request](const Arrival& one) { return one.request == request; });
    }
    scheduler_->abort(request);
    note_left(request, now);
  } else if (!answers_when_sent()) {
    return;  // it has finished meanwhile
  } else if (status == Status::kPending) {  // its engine has it, and may not compute it yet
    sequences_[request].status = static_cast<std::uint8_t>(Status::kCancelled);
    log_.cancelled[request] = now;
  }
  if (observer_ != nullptr) observer_->dropped(request, config_.index, what, now);
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
  if (!engine_is_held() && unseen_ == 0) return take_output(now);
  ++unseen_;
  moves_->step_ended(now);
  expect(now);
}

void Group::take_output(Ps now) {
  finished_.clear();
  complete_oldest(now, finished_);
  if (api_servers_.empty()) {
    completion_->step_done(finished_, slots_[last_].batch.items, now);
  } else {
    answer_clients(now);
  }
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
  if (idle()) {
    wake(now);
    return;
  }
  if (!hears_posted_ && unseen_ > 0 && !engine_is_held()) {
    hears_posted_ = true;
    post(now, Phase::kStepDone, kHears);
  }
  if (!step_done_posted_ && num_timed_ > unseen_) {
    step_done_posted_ = true;
    post(slots_[(oldest_ + unseen_) % slots_.size()].times.end, Phase::kStepDone);
  }
}

// An idle group acts when its engine next sees a request: not before its step, where that waits for
// other members. A paused one is asked when it goes on.
void Group::wake(Ps now) {
  if (paused_) return;
  const bool agrees = lockstep_ != nullptr && lockstep_->about_to_agree();
  const bool waits = num_offers_ > 0 || joins_idle_ || withholds() || agrees;
  const Ps seen = waits ? kEndOfTime : next_inbox();
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
  for (Arrival& gone : aborts_) gone.seen = std::min(gone.seen, now);
  drop_aborted(now);
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
  unsent_ = 0;
}

// Batches complete without any of their requests, which frees what was kept for them.
void Group::cut_steps(Ps now) {
  stir();
  Ps free = output_times_.empty() ? 0 : output_times_.back();
  finished_.clear();
  for (; num_in_flight_ > 0; --num_in_flight_) {
    const Slot& slot = slots_[oldest_];
    if (num_timed_ > 0) {
      --num_timed_;
      const Ps from = std::max({slot.times.start, free, now});
      busy_ -= std::max<Ps>(0, slot.times.end - from);
      free = slot.times.end;
    }
    if (!slot.batch.empty()) scheduler_->update(slot.batch, finished_);
    oldest_ = (oldest_ + 1) % slots_.size();
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
    const Batch& batch = slots_[(oldest_ + place) % slots_.size()].batch;
    return std::ranges::any_of(batch.items, &Item::emits);
  };
  if (config_.stages_wait) return num_in_flight_ > 0 && gives_tokens(num_in_flight_ - 1) ? 1 : 0;
  if (stages == 1 || calls_.size() < stages) return 0;
  const auto taken = calls_.begin() + static_cast<std::ptrdiff_t>(calls_.size() - stages + 1);
  auto place = static_cast<std::size_t>(
      std::count_if(calls_.begin(), taken, [](const Call& call) { return call.has_batch; }));
  while (place > 0 && !gives_tokens(place - 1)) --place;
  return place == 0 ? 0 : static_cast<std::int32_t>(num_in_flight_ - (place - 1));
}

// Steps on shared links may still run without a known end.
StepStart Group::start_of(Ps now) const {
  const std::int32_t before = tokens_from();
  const Ps ready = std::max(now, copied(next_slot().batch));
  if (before == 0) return {now, ready};
  const std::size_t place = num_in_flight_ - at(before);
  if (place >= num_timed_) return {now, ready, before};
  return {now, std::max(ready, slots_[(oldest_ + place) % slots_.size()].times.end)};
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
  Slot& slot = slots_[(oldest_ + num_in_flight_ - 1) % slots_.size()];
  slot.opened = std::max(slot.opened, copied(slot.batch));
  slot.launched = ready;
}

void Group::run_next(Ps now) {
  const Batch& batch = next_slot().batch;
  const StepStart start = start_of(now);
  if (executor_ != nullptr) announce(now);
  Slot& slot = next_slot();
  launch(now);
  if (num_in_flight_ < depth()) tell_load(now);  // else it waits for the oldest batch first
  if (copies_ != nullptr) slot.opened = slot.launched = std::max(now, copied(batch));
  if (executor_ == nullptr) return note_times(chain_.run(costs_, batch, start), now);
  const Batch* one = &batch;
  executor_->begin({&one, 1}, start, *this);
}

// Whether the batch just built has to wait for what it moves between tiers.
bool Group::gate(Ps now) {
  next_slot().opened = now;
  return gated_ = moves_ != nullptr && !moves_->open();
}

bool Group::open_gate(Ps now) {
  if (!gated_ || !moves_->open()) return false;
  gated_ = false;
  next_slot().opened = now;
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
  while (!moved_.empty() && moved_.front().seen <= launched) {
    const RequestId request = moved_.front().request;
    moved_.pop_front();
    hear_of_moved_kv(request, now);
  }
}

void Group::hear_of_moved_kv(RequestId request, Ps now) {
  if (answers_when_sent()) --unsent_;
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
    const bool hears = idle() && !others_run() && !moved_.empty() && moved_.front().seen <= now;
    if (!hears) return false;
    hear_of_moved(now, now);
  }
  return true;
}

// A token, an end, a cancellation, or a victim that was further than ever when it lost its blocks.
void Group::note_preempting_step() {
  const SchedulerCounters& c = scheduler_->counters();
  const std::int64_t progress = c.generation_tokens + c.finished + c.cancelled + c.furthered;
  futile_preemptions_ = progress == progress_ ? futile_preemptions_ + 1 : 0;
  progress_ = progress;
}

// A call without a batch ends as soon as it is the oldest; it is looked at when the queue is full.
bool Group::has_place(Ps now) {
  if (calls_.size() == depth() && !calls_.front().has_batch) take_empty_call(now);
  return calls_.size() < depth();
}

void Group::note_empty_call(Ps now) {
  if (scheduler_->queues_empty_batches()) calls_.push_back({false, now});
}

// The engine takes what its worker gave to the oldest call, which had no batch: what had moved then
// (vLLM: kv_connector_no_forward).
void Group::take_empty_call(Ps now) {
  hear_of_moved(calls_.front().at, now);
  calls_.pop_front();
}

void Group::forget_oldest_call(Ps now) {
  while (!calls_.front().has_batch) take_empty_call(now);
  calls_.pop_front();
}

void Group::record_output(Ps now, const StepTimes& times, const Held& held) {
  log_.begin_output(static_cast<std::int32_t>(output_times_.size()), now);
  output_gaps_.push_back(times.start - (output_times_.empty() ? 0 : output_times_.back()));
  output_times_.push_back(now);
  note(output_communication_, output_times_.size(), times.communication);
  note(output_waiting_, output_times_.size(), times.waiting);
  note(output_m2n_, output_times_.size(), times.m2n);
  if (held.launched > held.built || !output_held_.empty()) {
    output_held_.resize(output_times_.size());
    output_held_.back() = held;
  }
}

void Group::update(const Batch& batch, std::vector<RequestId>& finished) {
  if (step_tokens) step_tokens->ends(batch, log_);
  scheduler_->update(batch, finished);
  if (step_tokens) step_tokens->ended(batch, log_, sequences_);
}

void Group::complete_at_once(const Batch& batch, Ps now) {
  log_.begin_build(static_cast<std::int32_t>(output_times_.size()));
  record_output(now, {.start = now, .end = now}, {now, now, now});
  finished_.clear();
  update(batch, finished_);
  outstanding_ -= static_cast<std::int32_t>(finished_.size());
  if (key_log_ != nullptr) key_log_->publish(now);
  if (schedule) schedule->completed_last(now, *scheduler_, finished_);
  completion_->step_done(finished_, batch.items, now);
}

bool Group::build_batch(Ps now) {
  std::int64_t empty_builds = 0;
  while (has_place(now) && !nothing_to_build_ && scheduler_->has_requests()) {
    Slot& slot = free_slot();
    log_.begin_build(
        static_cast<std::int32_t>(output_times_.size() + num_in_flight_ + num_offers_));
    building_ = true;
    scheduler_->schedule(now, slot.batch);
    building_ = false;
    if (!slot.batch.preempted.empty()) note_preempting_step();
    if (moves_ != nullptr)
      moves_->formed(now, static_cast<std::int32_t>(num_in_flight_), !slot.batch.empty());
    if (schedule) schedule->built(now, *scheduler_, slot.batch);
    slot.scheduled = now;
    if (observer_ != nullptr && connector_ != nullptr) report_reserved(now);
    if (slot.batch.takes_no_time) {
      complete_at_once(slot.batch, now);
      continue;
    }
    if (!slot.batch.empty()) {
      slot.batch.posting = posted_reads_.take(now);
      return true;
    }
    // Its own victim, to be admitted again, or a turn that nobody takes; vLLM hears of transfers in
    // such a step, too.
    if (num_in_flight_ == 0 && !passes_together() &&
        (!slot.batch.preempted.empty() || scheduler_->asks_again())) {
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
  Slot& slot = next_slot();
  slot.launched = now;
  scheduled_tokens_ += slot.batch.scheduled_tokens();
  ++num_in_flight_;
  if (slot.batch.empty()) ++num_dummies_;
  if (lockstep_ == nullptr || (slot.batch.empty() && idles_along())) calls_.push_back({true, now});
  if (num_offers_ > 0) --num_offers_;
  joins_idle_ = false;
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
    observer_->begins(*this, next_slot().batch, costs_.usage().steps + 1, now);
}

bool Group::report_layers() {
  if (lockstep_ != nullptr) {
    reports_layers_ = lockstep_->report_layers();
  } else {
    reports_layers_ = executor_ != nullptr && executor_->report_layers();
  }
  return reports_layers_;
}

void Group::note_times(const StepTimes& times, Ps now) {
  Slot& slot = slots_[(oldest_ + num_timed_++) % slots_.size()];
  slot.times = times;
  busy_ += times.end - std::max(times.start, last_end_);
  last_end_ = times.end;
  if (copies_ != nullptr) copies_->device_runs_until(times.end);
  if (observer_ != nullptr) observer_->launched(*this, slot.batch, times, now);
  if (steps) steps->timed(slot.row, times);
}

// An engine looks at its inbox between two of its own steps, not while it runs one or waits for
// other members to join it.
void Group::offer(Ps now, std::int64_t round, std::int64_t rounds_ahead) {
  const bool has_offered = idles_along() ? num_offers_ > 0 || withholds() : !has_place(now);
  if (joins_idle_ || full() || has_offered) {
    tell_load(now);
  } else {
    drain_inbox(now);
  }
  open_gate(now);
  const bool one_by_one = idles_along() || moves_ != nullptr;  // who waits for KV holds up others
  const std::size_t most = one_by_one ? 1 : static_cast<std::size_t>(rounds_ahead);
  while (!joins_idle_ && !gated_ && !withholds() && num_offers_ < most) {
    if (rounds_ != nullptr && !(passes_together() && full()))
      rounds_->set_round(round + static_cast<std::int64_t>(num_offers_), now);
    if (!build_next(now)) break;
    note_offer(now);
  }
  const bool has_work = scheduler_->has_requests() && !scheduler_->asks_again() && !withholds();
  if (idle() && num_offers_ == 0 && !joins_idle_ && !paused_ && has_work &&
      scheduler_->gauges().bound == 0 && next_copy() == kEndOfTime)
    ++idle_with_work_;
}

void Group::note_offer(Ps now) {
  free_slot().opened = now;
  calls_.push_back({true, now});
  if (++num_offers_ == 1) gate(now);
}

void Group::offer_withheld(Ps now) {
  if (!withholds()) return;
  rounds_->release();
  nothing_to_build_ = false;
  if (build_next(now)) note_offer(now);
}

const Batch& Group::offered_or_dummy(Ps now) {
  Slot& slot = next_slot();
  if (num_offers_ == 0) {
    slot.batch.make_dummy();
    slot.scheduled = slot.opened = now;
  }
  return slot.batch;
}

void Group::complete_oldest(Ps now, std::vector<RequestId>& finished) {
  stir();
  Slot& slot = slots_[oldest_];
  record_output(now, slot.times, {slot.scheduled, slot.opened, slot.launched});
  note(output_encoder_, output_times_.size(),
       costs_.program().encoder_ps(slot.batch.features.encoder));
  if (shares) shares->record(slot.batch, now - slot.times.start, log_.share_place);
  // First, as in vLLM: their tokens are dropped. SGLang's loop hears of them with its next pass.
  if (!aborts_.empty() && !answers_when_sent()) drop_aborted(now);
  const std::size_t before = finished.size();
  if (!slot.batch.empty()) {
    update(slot.batch, finished);
    if (moves_ != nullptr && unseen_ == 0) moves_->step_ended(now);
    if (unseen_ > 0) --unseen_;
    const auto ended = static_cast<std::int32_t>(finished.size() - before);
    outstanding_ -= ended;
    if (answers_when_sent()) unsent_ += ended;
    hear_of_moved(hears_until(slot, now), now);
    if (key_log_ != nullptr) key_log_->publish(now);
    if (schedule)
      schedule->completed(slot.times.end, *scheduler_, std::span(finished).subspan(before));
  } else {
    if (moves_ != nullptr) moves_->step_ended(now);
    hear_of_moved(hears_until(slot, now), now);
  }
  last_ = oldest_;
  oldest_ = (oldest_ + 1) % slots_.size();
  const bool is_dummy = slot.batch.empty();
  if (is_dummy) --num_dummies_;
  if (!is_dummy || idles_along()) forget_oldest_call(now);
  // Where vLLM's engine has found nothing to run, it runs a dummy behind the output that it waited
  // for, whatever has come meanwhile (DPEngineCoreProc.run_busy_loop).
  if (!is_dummy && owes_dummy_) joins_idle_ = true;
  if (!is_dummy) owes_dummy_ = false;
  --num_in_flight_;
  --num_timed_;
  nothing_to_build_ = false;
  tell_load(now);
}

}  // namespace llmsim
