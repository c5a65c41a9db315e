#include "simulation.h"

#include <algorithm>

namespace llmsim {

namespace {

// Where nobody chose a router.
class OnlyGroup final : public Router {
 public:
  std::size_t route(RequestId, Ps, std::span<Group* const>) override {
    throw std::invalid_argument("several groups serve a model, so a router is needed");
  }
};

}  // namespace

Simulation::Simulation(Arrivals arrivals, std::vector<std::int32_t> output_tokens, ContentKeys content,
                       Ps series_interval)
    : arrivals_(std::move(arrivals)),
      sequences_(output_tokens, std::make_shared<const ContentKeys>(std::move(content))),
      log_(output_tokens.size()),
      series_interval_(series_interval),
      next_sample_(series_interval) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& s = sequences_[static_cast<RequestId>(i)];
    s.prompt_tokens = s.num_tokens = arrivals_.input_tokens[i];
    s.arrival = arrivals_.arrival_ps[i];
    if (!arrivals_.priority.empty()) s.priority = arrivals_.priority[i];
    if (s.arrival >= 0) timed_.push_back(static_cast<RequestId>(i));
  }
}

void Simulation::add_group(std::unique_ptr<Group> group) {
  const auto model = static_cast<std::size_t>(group->config().model);
  if (groups_of_model_.size() <= model) groups_of_model_.resize(model + 1);
  if (group->config().role != Role::kDecode) groups_of_model_[model].push_back(group.get());
  groups_.push_back(std::move(group));
  pump_at_.push_back(kEndOfTime);
  output_pending_.push_back(false);
  sampled_.emplace_back();
}

void Simulation::set_fabric(const FabricConfig& config) {
  fabric_ = std::make_unique<Fabric>(config);
  fabric_->on_start([this](Ps now) {
    if (!settle_posted_) post(now, Phase::kSettle, 0);
    settle_posted_ = true;
  });
}

void Simulation::set_kv_tiers(const KvTiersConfig& config) {
  if (!fabric_) throw std::invalid_argument("KV tiers need the fabric");
  if (config.groups.size() != groups_.size()) throw std::invalid_argument("KV tiers need an entry for every group");
  KvTiers::Callbacks callbacks;
  callbacks.opened = [this](std::int32_t index) {
    if (pump_at_[index] <= now_) return;
    pump_at_[index] = now_;
    post(now_, Phase::kPump, index);
  };
  callbacks.loaded = [this](std::int32_t index, RequestId request) {
    groups_[index]->transferred(request, now_);
    if (groups_[index]->idle()) wake(index);
  };
  kv_tiers_ = std::make_unique<KvTiers>(config, *fabric_, std::move(callbacks));
  for (const auto& group : groups_) {
    GroupTiers* tiers = kv_tiers_->of(group->config().index);
    if (tiers == nullptr) continue;
    if (config.parks && !group->builder().may_park())
      throw std::invalid_argument("this scheduler does not park who recalls KV");
    group->use_tiers(tiers);
  }
}

void Simulation::add_wave(std::unique_ptr<Wave> wave) {
  for (Group* member : wave->members()) {
    if (member->wave() != nullptr) throw std::invalid_argument("a group is a member of two waves");
    member->join(wave.get());
  }
  waves_.push_back(std::move(wave));
}

void Simulation::share_links(std::span<const std::size_t> indices, SharedLinks links) {
  if (!fabric_) throw std::invalid_argument("shared links need the fabric");
  std::vector<Group*> members;
  std::vector<Evaluator*> evaluators;
  for (const std::size_t index : indices) {
    members.push_back(groups_.at(index).get());
    evaluators.push_back(&members.back()->evaluator());
  }
  if (members.empty()) throw std::invalid_argument("shared links need groups");
  Wave* wave = members.front()->wave();
  if (wave == nullptr ? members.size() != 1 : !std::ranges::equal(wave->members(), members))
    throw std::invalid_argument("links are shared by one group, or by all members of a wave in their order");
  auto shared = std::make_unique<SharedJoint>(std::move(evaluators), std::move(links), *fabric_,
                                              [this, members](std::size_t m, const StepTimes& times) {
                                                members[m]->timed(times, now_);
                                                expect(*members[m]);
                                              });
  if (wave != nullptr) {
    wave->share_links(std::move(shared));
  } else {
    members.front()->share_links(std::move(shared));
  }
}

void Simulation::record_shares() {
  log_.share_place.assign(sequences_.size(), 0);
  if (prompts_) prompts_->log.share_place.assign(sequences_.size(), 0);
  for (const auto& group : groups_) group->shares = std::make_unique<DeviceShares>();
}

Simulation::Prompts& Simulation::prompts() {
  if (prompts_) return *prompts_;
  const std::size_t n = sequences_.size();
  prompts_ = std::make_unique<Prompts>(SequenceTable(std::vector<std::int32_t>(n, 1), sequences_.shared_content()),
                                       RequestLog(n));
  for (std::size_t i = 0; i < n; ++i) {
    const auto request = static_cast<RequestId>(i);
    prompts_->sequences[request] = sequences_[request];
  }
  return *prompts_;
}

void Simulation::set_handovers(const HandoverConfig& config) {
  if (!fabric_) throw std::invalid_argument("a hand-over needs the fabric");
  if (!decode_router_) decode_router_ = std::make_unique<OnlyGroup>();
  handovers_ = std::make_unique<Handovers>(config, *fabric_, groups_, std::move(decode_router_), sequences_, log_,
                                           prompts().log, [this](std::int32_t index) {
                                             if (groups_[index]->idle()) wake(index);
                                           });
}

RouterContext Simulation::router_context() const {
  RouterContext context;
  context.input_tokens = arrivals_.input_tokens;
  context.content = &sequences_.content();
  return context;
}

void Simulation::start() {
  started_ = true;
  if (!router_) router_ = std::make_unique<OnlyGroup>();
  router_->start(groups_);
  if (handovers_) handovers_->router().start(groups_);
  share_fabric();
  post_next_arrival();
}

// Steps that meet other transfers end when these allow it.
void Simulation::share_fabric() {
  const auto heard = [this](Group& group, const StepTimes& times) {
    group.timed(times, now_);
    expect(group);
  };
  const auto need_fabric = [this] {
    if (!fabric_) throw std::invalid_argument("steps that meet other transfers need the fabric");
  };
  for (const auto& group : groups_) {
    if (group->wave() != nullptr || !group->evaluator().meets_others()) continue;
    need_fabric();
    Group* one = group.get();
    one->evaluator().use_fabric(*fabric_, [heard, one](const StepTimes& times) { heard(*one, times); });
  }
  for (const auto& wave : waves_) {
    if (!wave->evaluator().meets_others()) continue;
    need_fabric();
    wave->evaluator().use_fabric(*fabric_, [heard, &members = *wave](std::size_t member, const StepTimes& times) {
      heard(*members.members()[member], times);
    });
  }
}

bool Simulation::run(std::int64_t max_events) {
  if (!started_) start();
  for (; max_events > 0 && !events_.empty(); --max_events) {
    const Event event = events_.top();
    if (event.time > horizon_) return stop_at_horizon();
    events_.pop();
    if (stale(event)) continue;
    while (series_interval_ > 0 && next_sample_ < event.time) record_series();
    if (router_->next_sample() < event.time) router_->sample(event.time);
    if (handovers_ && handovers_->router().next_sample() < event.time) handovers_->router().sample(event.time);
    if (event.time < now_) throw std::logic_error("invariant 3: the clock went back");
    if (event.time > kHorizon) throw std::overflow_error("the simulated time passes its horizon of 2^62 ps");
    now_ = event.time;
    handle(event);
    if (checks_ && (event.phase == Phase::kOutputs || event.phase == Phase::kPump))
      check_blocks(*groups_[event.entity]);
  }
  if (!events_.empty()) return false;
  check_finished();
  if (series_interval_ > 0 && (series_.time_ps.empty() || series_.time_ps.back() < now_)) {
    next_sample_ = now_;  // the last, shorter interval
    record_series();
  }
  return true;
}

bool Simulation::stop_at_horizon() {
  while (series_interval_ > 0 && next_sample_ <= horizon_) record_series();
  now_ = horizon_;
  at_horizon_ = true;
  return true;
}

void Simulation::handle(const Event& event) {
  switch (event.phase) {
    case Phase::kOutputs:
      return on_outputs(event.entity);
    case Phase::kLanding:
      return on_landing();
    case Phase::kGiveUp:
      return give_up(event.entity);
    case Phase::kFreeClient:
      return on_free_client();
    case Phase::kArrival:
      return on_arrival(event.entity);
    case Phase::kPump:
      if (pump_at_[event.entity] == event.time) on_pump(event.entity);  // else it was woken earlier
      return;
    case Phase::kSettle:
      return on_settle();
  }
}

bool Simulation::stale(const Event& event) const {
  if (event.phase != Phase::kGiveUp) return false;
  return !awaited(event.entity);
}

bool Simulation::awaited(RequestId request) const {
  if (clients_.gave_up(request)) return false;
  switch (static_cast<Status>(sequences_[request].status)) {
    case Status::kWaiting:
    case Status::kRunning:
    case Status::kParked:
      return true;
    case Status::kPending:  // its prompt is computed
      return handovers_ && handovers_->under_way(request);
    default:
      return false;
  }
}

void Simulation::on_outputs(std::int32_t index) {
  finished_.clear();
  output_pending_[index] = false;
  groups_[index]->outputs(now_, finished_);
  if (groups_[index]->config().role == Role::kPrefill) {
    for (const RequestId request : finished_) {
      if (!clients_.gave_up(request)) router_->finished(request);
      handovers_->prefilled(request, now_);
    }
    finished_.clear();
  }
  num_finished_ += static_cast<std::int64_t>(finished_.size());
  for (const RequestId request : finished_) {
    if (clients_.gave_up(request)) continue;  // finished before its engine heard of it; nobody waits for the answer
    if (groups_[index]->config().role == Role::kDecode) {
      handovers_->finished(request);
    } else {
      router_->finished(request);
    }
    const std::int32_t next = arrivals_.next_call[request];
    if (next < 0) {
      end_session(request, Status::kPending);
      continue;
    }
    sequences_[next].arrival = arrivals_.arrival_ps[next] = now_ + arrivals_.tool_delay_ps[request];
    if (prompts_) prompts_->sequences[next].arrival = sequences_[next].arrival;
    post(arrivals_.arrival_ps[next], Phase::kArrival, next);
  }
  if (clients_.count_tokens()) {
    for (const Item& item : groups_[index]->last_items()) {
      if (awaited(item.request) && clients_.enough(item.request, log_.emitted_tokens[item.request]))
        give_up(item.request);
    }
  }
  // Whatever else happens at this very time happens before the group schedules.
  if (!events_.empty() && events_.top().time == now_) {
    pump_at_[index] = now_;
    post(now_, Phase::kPump, index);
  } else {
    on_pump(index);
  }
}

void Simulation::post_next_arrival() {
  arrival_pending_ = false;
  if (next_timed_ == timed_.size() || !clients_.take()) return;
  const RequestId request = timed_[next_timed_++];
  if (clients_.closed_loop()) {  // nobody may have been there to ask before
    sequences_[request].arrival = arrivals_.arrival_ps[request] = std::max(arrivals_.arrival_ps[request], now_);
  }
  arrival_pending_ = true;
  post(arrivals_.arrival_ps[request], Phase::kArrival, request);
}

void Simulation::on_free_client() {
  clients_.release();
  if (!arrival_pending_) post_next_arrival();
}

void Simulation::give_up(RequestId request) {
  clients_.give_up(request);
  end_session(request, Status::kCancelled);
  if (handovers_ && handovers_->of(request).prefill_group >= 0) {
    const Handover& handover = handovers_->of(request);
    if (handover.prefilled == kNever) router_->finished(request);
    if (handover.decode_group >= 0) handovers_->finished(request);
    handovers_->give_up(request, now_);
    return;
  }
  router_->finished(request);
  Group& group = *groups_[static_cast<std::size_t>(log_.group[request])];
  group.abort(request, now_);
  if (group.idle()) wake(group.config().index);
}

void Simulation::on_arrival(RequestId request) {
  if (request == timed_[next_timed_ - 1]) post_next_arrival();
  const auto& candidates = groups_of_model_[static_cast<std::size_t>(arrivals_.model[request])];
  Group* group = candidates[candidates.size() == 1 ? 0 : router_->route(request, now_, candidates)];
  if (!group->may_queue(request) || (admission_ && !admission_(request, now_, *group))) {
    sequences_[request].status = static_cast<std::uint8_t>(Status::kRefused);
    router_->finished(request);
    end_session(request, Status::kRefused);
    return;
  }
  if (group->config().role == Role::kPrefill) {
    handovers_->arrive(request, *group, now_);
  } else {
    group->receive(request, now_);
  }
  if (sequences_[request].status == static_cast<std::uint8_t>(Status::kRejected)) {
    router_->finished(request);
    end_session(request, Status::kRejected);
    return;
  }
  if (const Ps deadline = clients_.deadline(request, now_); deadline < kHorizon)
    post(deadline, Phase::kGiveUp, request);
  if (group->idle()) wake(group->config().index);
}

void Simulation::on_pump(std::int32_t index) {
  Group& group = *groups_[index];
  pump_at_[index] = kEndOfTime;
  group.pump(now_);
  if (group.wave() == nullptr) return expect(group);
  for (Group* member : group.wave()->members()) expect(*member);
}

// After a pump: the end of its oldest batch in flight, or the next request that its engine sees.
void Simulation::expect(Group& group) {
  const std::int32_t index = group.config().index;
  if (group.idle()) {
    wake(index);
  } else if (!output_pending_[index] && group.next_output() < kEndOfTime) {
    output_pending_[index] = true;
    post(group.next_output(), Phase::kOutputs, index);
  }
}

void Simulation::on_landing() {
  landing_at_ = kEndOfTime;
  fabric_->advance(now_);
  if (!settle_posted_) post(now_, Phase::kSettle, 0);
  settle_posted_ = true;
}

void Simulation::on_settle() {
  settle_posted_ = false;
  fabric_->settle(now_);
  const Ps next = fabric_->next_event();
  if (next >= landing_at_) return;  // an event that comes too early finds nothing to do and settles again
  landing_at_ = next;
  post(next, Phase::kLanding, 0);
}

// An idle group acts when its engine next sees a request.
void Simulation::wake(std::int32_t index) {
  const Ps at = std::max(now_, groups_[index]->next_inbox());
  if (at >= pump_at_[index]) return;
  pump_at_[index] = at;
  post(at, Phase::kPump, index);
}

void Simulation::end_session(RequestId request, Status rest) {
  for (RequestId next = arrivals_.next_call[request]; next >= 0; next = arrivals_.next_call[next])
    sequences_[next].status = static_cast<std::uint8_t>(rest);
  if (clients_.closed_loop()) post(now_ + clients_.think_time(request), Phase::kFreeClient, request);
}

std::int64_t Simulation::num_rejected() const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < sequences_.size(); ++i)
    count += sequences_[static_cast<RequestId>(i)].status == static_cast<std::uint8_t>(Status::kRejected);
  return count;
}

void Simulation::check_finished() const {
  std::string stuck;
  for (const auto& group : groups_) {
    if (!group->unfinished() && group->builder().num_bound() == 0) continue;
    stuck += " group " + std::to_string(group->config().index) + " has " + std::to_string(group->num_running()) +
             " running and " + std::to_string(group->num_waiting()) + " waiting requests (" +
             std::to_string(group->builder().num_bound()) + " whose KV another group fills or reads) with " +
             std::to_string(group->builder().pool().free) + " free KV blocks;";
  }
  if (!stuck.empty()) throw Stalled("no event is left at " + std::to_string(now_) + " ps but" + stuck);
}

void Simulation::check_blocks(const Group& group) const {
  const std::string when = " at " + std::to_string(now_) + " ps";
  if (!group.builder().pool_consistent())
    throw Violated("invariant 4: the KV blocks of group " + std::to_string(group.config().index) + " do not add up" +
                   when);
  if (kv_tiers_ && !kv_tiers_->consistent())
    throw Violated("invariant 4: the chunks of the KV tiers, and what is on its way to and from them, do not add up" +
                   when);
}

void Simulation::record_series() {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Builder& builder = groups_[i]->builder();
    const BuilderCounters& c = builder.counters();
    const PoolState pool = builder.pool();
    Sampled& last = sampled_[i];
    series_.time_ps.push_back(next_sample_);
    series_.group.push_back(static_cast<std::int16_t>(i));
    series_.running.push_back(builder.num_running());
    series_.waiting.push_back(groups_[i]->num_waiting());
    series_.kv_blocks_used.push_back(pool.total - 1 - pool.free);
    series_.kv_blocks_cached.push_back(pool.cached);
    series_.preemptions.push_back(static_cast<std::int32_t>(c.preemptions - last.preemptions));
    series_.prompt_tokens.push_back(c.prompt_tokens - last.prompt);
    series_.generation_tokens.push_back(c.generation_tokens - last.generation);
    series_.hit_tokens.push_back(c.prefix_hit_tokens - last.hit);
    series_.queried_tokens.push_back(c.prefix_queried_tokens - last.queried);
    last = {c.prompt_tokens, c.generation_tokens, c.prefix_hit_tokens, c.prefix_queried_tokens, c.preemptions};
  }
  if (kv_tiers_) kv_tiers_->sample(next_sample_);
  next_sample_ += series_interval_;
}

}  // namespace llmsim
