// The order of a ranking, and requests that take turns in it.
#include <algorithm>

#include "scheduler/bookkeeping.h"
#include "scheduler/impl/vllm_v1/vllm_v1.h"

namespace llmsim {

void VllmV1::rank(Ps now) {
  ranker_->begin();
  const auto candidates = [this](const auto& list, Standing standing) {
    std::int32_t position = 0;
    list.each([&](RequestId request) { ranker_->add(standing, request, position++); });
  };
  candidates(waiting_, Standing::kWaiting);
  candidates(parked_, Standing::kParked);
  for (std::size_t i = 0; i < running_.size(); ++i)
    ranker_->add(Standing::kRunning, running_[i], static_cast<std::int32_t>(i));
  ranker_->rank(now);
  const auto before = [this](RequestId a, RequestId b) { return ranker_->before(a, b); };
  if (ranker_->lists().waiting) {
    waiting_.rank();
    parked_.order_by(before);
  }
  if (ranker_->lists().running) std::sort(running_.begin(), running_.end(), before);
}

void VllmV1::schedule_turns(Ps now, Batch& batch, StepBudget& budget) {
  land_arrived();
  reserve_in_order(now);
  std::ranges::sort(turn_ended_);
  const auto ended = [this](RequestId request) {
    return std::ranges::binary_search(turn_ended_, request);
  };
  std::erase_if(in_turn_, ended);
  turn_ended_.clear();
  const std::vector<RequestId>& order = ranker_->order();
  for (std::size_t place = 0; place < order.size(); ++place) {
    const std::size_t taken = in_turn_.size() + batch.items.size();
    const bool full = static_cast<std::int32_t>(taken) >= most_running_;
    if (full || budget.left() <= 0 || !take_turn(now, place, batch, budget)) break;
  }
  for (const Item& item : batch.items) in_turn_.push_back(item.request);
}

bool VllmV1::take_turn(Ps now, std::size_t place, Batch& batch, StepBudget& budget) {
  switch (static_cast<Status>(sequences_[ranker_->order()[place]].status)) {
    case Status::kParked:
      return true;  // its KV has not come
    case Status::kRunning:
      return continue_turn(now, place, batch, budget);
    default:
      return start_turn(now, place, batch, budget);
  }
}

bool VllmV1::continue_turn(Ps now, std::size_t place, Batch& batch, StepBudget& budget) {
  const RequestId request = ranker_->order()[place];
  Sequence& s = sequences_[request];
  const std::int32_t tokens = tokens_of_turn(request, budget.left());
  if (tokens <= 0) return true;  // all that is known of it is in flight
  const std::int32_t slots =
      std::min(s.num_computed + tokens + config_.speculation.lookahead, config_.kv.max_model_len);
  const std::int32_t blocks = kv_.blocks_for(slots) - static_cast<std::int32_t>(s.blocks.size());
  if (!kv_.grow(request, s, slots) &&
      (!drop_behind(place, blocks, batch) || !kv_.grow(request, s, slots)))
    return false;
  const auto landed = landed_.find(request);
  if (landed != landed_.end()) {
    note_start(request, s, now, landed->second.cached, landed->second.remote, log_, counters_);
    landed_.erase(landed);
  }
  run(request, tokens, batch);
  budget.take(tokens);
  return true;
}

bool VllmV1::start_turn(Ps now, std::size_t place, Batch& batch, StepBudget& budget) {
  const RequestId request = ranker_->order()[place];
  const Sequence& s = sequences_[request];
  if (s.remote_kv) return true;  // it found no blocks for its KV
  if (first_tokens(s, cached_tokens(request), budget.left()) == 0) return false;
  Admission admission = admit(now, request, budget.left(), batch, /*alone=*/false);
  const std::int32_t slots =
      std::min(s.num_tokens + config_.speculation.lookahead, config_.kv.max_model_len);
  if (admission == Admission::kNoRoom && drop_behind(place, kv_.blocks_for(slots), batch))
    admission = admit(now, request, budget.left(), batch, /*alone=*/false);
  if (admission == Admission::kScheduled) budget.take(batch.items.back().tokens);
  return admission != Admission::kNoRoom;
}

bool VllmV1::drop_behind(std::size_t place, std::int32_t blocks, Batch& batch) {
  const std::vector<RequestId>& order = ranker_->order();
  const auto holds = [this](RequestId request) {
    return sequences_[request].status == static_cast<std::uint8_t>(Status::kRunning);
  };
  std::int64_t reachable = kv_.pool().num_free();
  for (std::size_t i = order.size() - 1; i > place && reachable < blocks; --i)
    if (holds(order[i])) reachable += static_cast<std::int64_t>(sequences_[order[i]].blocks.size());
  if (reachable < blocks) return false;
  // Blocks that requests share are free only when the last of them is dropped, so this may go
  // further than counted.
  for (std::size_t i = order.size() - 1; i > place && kv_.pool().num_free() < blocks; --i) {
    if (!holds(order[i])) continue;
    std::erase(running_, order[i]);
    landed_.erase(order[i]);
    preempt(order[i]);
    batch.preempted.push_back(order[i]);
  }
  return kv_.pool().num_free() >= blocks;
}

// Nobody overtakes, and nobody's blocks are taken for KV that has not come.
void VllmV1::reserve_in_order(Ps now) {
  if (!config_.kv_consumer) return;
  for (const RequestId request : ranker_->order()) {
    const Sequence& s = sequences_[request];
    const bool waits = s.status == static_cast<std::uint8_t>(Status::kWaiting);
    if (waits && (!s.remote_kv || reserve(now, request) == Admission::kNoRoom)) return;
  }
}

void VllmV1::land_arrived() {
  parked_.rewind();
  for (RequestId request = parked_.next(); request >= 0; request = parked_.next()) {
    Sequence& s = sequences_[request];
    kv_.register_full(request, parked_.loaded());
    if (parked_.remote()) kv_.below().computed(request, parked_.cached(), parked_.loaded());
    start(request, std::min(parked_.loaded(), s.num_tokens - 1));
    landed_[request] = {parked_.cached(), parked_.remote()};
    parked_.take();
  }
}

void VllmV1::leave_ranking(RequestId request) {
  if (rank_events_ != nullptr) rank_events_->left(request);
  std::erase(in_turn_, request);
  landed_.erase(request);
}

}  // namespace llmsim
