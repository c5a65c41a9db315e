#include "loop/simulation.h"

#include <algorithm>

#include "base/wall_clock.h"

namespace llmsim {

bool Simulation::run(std::int64_t max_events, std::int64_t max_wall_ms) {
  const std::int64_t begin_ms = wall_ms();
  const std::size_t most_rows = series_.time_ps.size() + kSeriesRows;
  for (; max_events > 0 && !events_.empty(); --max_events) {
    const Event event = events_.top();
    const bool pointless = stale(event);
    if (!pointless && event.time > horizon_) return stop_at_horizon(most_rows);
    if (!pointless && !sampled_until(event.time - 1, most_rows)) return false;
    if (event.phase == Phase::kStepDone && groups_[event.entity]->circles() && outside_ == 0)
      check_circles();
    events_.pop();
    outside_ -= from_outside(event.phase);
    if (pointless) continue;
    if (router_->next_sample() < event.time) router_->sample(event.time);
    if (kv_transfers_ && kv_transfers_->router().next_sample() < event.time)
      kv_transfers_->router().sample(event.time);
    if (event.time < now_) throw std::logic_error("invariant 3: the clock went back");
    if (event.time > kHorizon)
      throw std::overflow_error("the simulated time passes its horizon of 2^62 ps (53 days)");
    now_ = event.time;
    handle(event);
    if (checks_ && (event.phase == Phase::kStepDone || event.phase == Phase::kSchedule))
      check_blocks(*groups_[event.entity]);
    if (wall_ms() - begin_ms >= max_wall_ms) max_events = 1;
  }
  if (!events_.empty()) return false;
  check_finished();
  if (series_interval_ > 0 && last_sample_ < now_) {
    next_sample_ = now_;  // the last, shorter interval
    record_series();
  }
  return true;
}

bool Simulation::stop_at_horizon(std::size_t most_rows) {
  if (!sampled_until(horizon_, most_rows)) return false;
  now_ = horizon_;
  at_horizon_ = true;
  return true;
}

void Simulation::handle(const Event& event) {
  switch (event.phase) {
    case Phase::kStepDone:
      return on_outputs(event.entity);
    case Phase::kTransferDone:
      return on_landing();
    case Phase::kGiveUp:
      return give_up(event.entity);
    case Phase::kClientIdle:
      return on_free_client();
    case Phase::kArrival:
      return on_arrival(event.entity);
    case Phase::kSchedule:
      return on_pump(event.entity);
    case Phase::kRebalance:
      return on_settle();
  }
}

bool Simulation::stale(const Event& event) const {
  switch (event.phase) {
    case Phase::kTransferDone:
      return landing_at_ !=
             event.time;  // what was expected then has come earlier, or will come later
    case Phase::kGiveUp:
      return !awaited(event.entity);
    case Phase::kClientIdle:
      return next_timed_ == timed_.size();  // there is nothing left to ask
    case Phase::kSchedule:
      return pump_at_[event.entity] != event.time;  // it was woken earlier
    default:
      return false;
  }
}

bool Simulation::awaited(RequestId request) const {
  if (clients_.gave_up(request)) return false;
  switch (static_cast<Status>(sequences_[request].status)) {
    case Status::kWaiting:
    case Status::kRunning:
    case Status::kParked:
      return true;
    case Status::kPending:  // its prompt is computed
      return kv_transfers_ && kv_transfers_->under_way(request);
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
      kv_transfers_->prefilled(request, now_);
    }
    finished_.clear();
  }
  num_finished_ += static_cast<std::int64_t>(finished_.size());
  for (const RequestId request : finished_) {
    if (clients_.gave_up(request))
      continue;  // finished before its engine heard of it; nobody waits for the answer
    if (groups_[index]->config().role == Role::kDecode) {
      kv_transfers_->finished(request);
    } else {
      router_->finished(request);
    }
    const std::int32_t next = source_->next_call[request];
    if (next < 0) {
      end_session(request, Status::kPending);
      continue;
    }
    sequences_[next].arrival = now_ + source_->tool_delay_ps[request];
    if (prompts_) prompts_->sequences[next].arrival = sequences_[next].arrival;
    post(sequences_[next].arrival, Phase::kArrival, next);
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
    post(now_, Phase::kSchedule, index);
  } else {
    on_pump(index);
  }
}

void Simulation::post_next_arrival() {
  arrival_pending_ = false;
  if (next_timed_ == timed_.size() || !clients_.take()) return;
  const RequestId request = timed_[next_timed_++];
  Ps& arrival = sequences_[request].arrival;
  if (clients_.closed_loop()) arrival = std::max(arrival, now_);  // all clients may have been busy
  arrival_pending_ = true;
  post(arrival, Phase::kArrival, request);
}

void Simulation::on_free_client() {
  clients_.release();
  if (!arrival_pending_) post_next_arrival();
}

void Simulation::give_up(RequestId request) {
  clients_.give_up(request);
  end_session(request, Status::kCancelled);
  if (kv_transfers_ && kv_transfers_->of(request).prefill_group >= 0) {
    const KvTransfer& kv_transfer = kv_transfers_->of(request);
    if (kv_transfer.prefilled == kNever) router_->finished(request);
    if (kv_transfer.decode_group >= 0) kv_transfers_->finished(request);
    kv_transfers_->give_up(request, now_);
    return;
  }
  router_->finished(request);
  Group& group = *groups_[static_cast<std::size_t>(log_.group[request])];
  group.abort(request, now_);
  if (group.idle()) wake(group.config().index);
}

void Simulation::on_arrival(RequestId request) {
  if (request == timed_[next_timed_ - 1]) post_next_arrival();
  const auto& candidates = groups_of_model_[static_cast<std::size_t>(source_->model[request])];
  Group* group = candidates[candidates.size() == 1 ? 0 : router_->route(request, now_, candidates)];
  if (!group->may_queue(request) || (admission_ && !admission_(request, now_, *group))) {
    sequences_[request].status = static_cast<std::uint8_t>(Status::kRefused);
    router_->finished(request);
    end_session(request, Status::kRefused);
    return;
  }
  if (group->config().role == Role::kPrefill) {
    kv_transfers_->arrive(request, *group, now_);
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
  if (group.lockstep() == nullptr) return expect(group);
  for (Group* member : group.lockstep()->members()) expect(*member);
}

// After a pump: the end of its oldest batch in flight, or the next request that its engine sees.
void Simulation::expect(Group& group) {
  const std::int32_t index = group.config().index;
  if (group.idle()) {
    wake(index);
  } else if (!output_pending_[index] && group.next_output() < kEndOfTime) {
    output_pending_[index] = true;
    post(group.next_output(), Phase::kStepDone, index);
  }
}

void Simulation::on_landing() {
  landing_at_ = kEndOfTime;
  network_->advance(now_);
  if (!settle_posted_) post(now_, Phase::kRebalance, 0);
  settle_posted_ = true;
}

void Simulation::on_settle() {
  settle_posted_ = false;
  network_->settle(now_);
  const Ps next = network_->next_event();
  if (next >= landing_at_)
    return;  // an event that comes too early finds nothing to do and settles again
  landing_at_ = next;
  post(next, Phase::kTransferDone, 0);
}

// An idle group acts when its engine next sees a request.
void Simulation::wake(std::int32_t index) {
  const Ps at = std::max(now_, groups_[index]->next_inbox());
  if (at >= pump_at_[index]) return;
  pump_at_[index] = at;
  post(at, Phase::kSchedule, index);
}

void Simulation::end_session(RequestId request, Status rest) {
  for (RequestId next = source_->next_call[request]; next >= 0; next = source_->next_call[next])
    sequences_[next].status = static_cast<std::uint8_t>(rest);
  if (clients_.closed_loop())
    post(now_ + clients_.think_time(request), Phase::kClientIdle, request);
}

}  // namespace llmsim
