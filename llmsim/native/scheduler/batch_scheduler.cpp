#include "scheduler/batch_scheduler.h"

#include <algorithm>

#include "scheduler/bookkeeping.h"
#include "scheduler/phase.h"

namespace llmsim {

BatchScheduler::BatchScheduler(const SchedulerConfig& config, SequenceTable& sequences,
                               RequestLog& log)
    : config_(config),
      sequences_(sequences),
      log_(log),
      kv_(config.kv, sequences),
      waiting_(config.queue, sequences),
      parked_(config.queue.order == QueueOrder::kPriority ? ParkedOrder::kPriority
                                                          : ParkedOrder::kParking,
              sequences) {
  if (!config.kv.tables.plain())
    throw std::invalid_argument("several tables of blocks need the scheduler vllm_v1");
  if (config.victim)
    throw std::invalid_argument(
        "a preemption victim is chosen for the scheduler vllm_v1 only, not for " +
        config.scheduler);
  if (config.ranking == nullptr) return;
  ranker_ = std::make_unique<Ranker>(config.ranking, config.sessions, sequences);
  const RankedLists& lists = ranker_->lists();
  if (lists.running || lists.victims)
    throw std::invalid_argument(
        "the ranking orders more than the waiting queue, which the scheduler " + config.scheduler +
        " does not do");
  rank_events_ = ranker_->events();
  if (lists.waiting) waiting_.rank_by(ranker_.get());
}

void BatchScheduler::add(RequestId request) {
  sequences_[request].status = static_cast<std::uint8_t>(Status::kWaiting);
  waiting_.push_back(request);
  if (rank_events_ != nullptr)
    rank_events_->added(request, sequences_[request], log_.queued[request]);
}

Gauges BatchScheduler::gauges() const {
  const BlockPool& pool = kv_.pool();
  return {.running = num_running(),
          .waiting = static_cast<std::int32_t>(waiting_.size()) + parked_.size(),
          .parked = parked_.size(),
          .bound = parked_.size() + leaving_.size(),
          .pool = {pool.total(), pool.num_free(), pool.num_free_keyed()}};
}

void BatchScheduler::schedule(Ps now, Batch& batch) {
  batch.clear();
  now_ = now;
  if (ranker_ != nullptr) rank(now);
  form(now, batch);
  if (rank_events_ != nullptr) rank_events_->scheduled(now, batch);
  for (const Item& item : batch.items) batch.features.add(item.tokens, item.computed_before);
  const std::int32_t used = kv_.usable_blocks() - kv_.pool().num_free();
  counters_.peak_blocks_used = std::max(counters_.peak_blocks_used, used);
}

void BatchScheduler::rank(Ps now) {
  ranker_->begin();
  std::int32_t position = 0;
  waiting_.each([&](RequestId request) { ranker_->add(Standing::kWaiting, request, position++); });
  position = 0;
  parked_.each([&](RequestId request) { ranker_->add(Standing::kParked, request, position++); });
  for (std::size_t i = 0; i < running_.size(); ++i)
    ranker_->add(Standing::kRunning, running_[i], static_cast<std::int32_t>(i));
  ranker_->rank(now);
  if (ranker_->lists().waiting) waiting_.rank();
}

std::int32_t BatchScheduler::find_cached(RequestId request) {
  kv_.find_hits(request, hits_);
  const std::int32_t hit = static_cast<std::int32_t>(hits_.size()) * config_.kv.block_size;
  recalled_ = kv_.below().find(request, hit);
  return std::max(hit + recalled_, tokens_brought(sequences_[request], config_.decode_only));
}

bool BatchScheduler::start(Ps now, RequestId request, std::int32_t cached, std::int32_t tokens,
                           const Room& room, Batch& batch) {
  Sequence& s = sequences_[request];
  if (!kv_.fits(s, room.tokens, hits_, room.spare)) return false;
  const std::int32_t hit = static_cast<std::int32_t>(hits_.size()) * config_.kv.block_size;
  kv_.below().recall(request, hit, recalled_);
  kv_.allocate(request, room.tokens, hits_);
  s.status = static_cast<std::uint8_t>(Status::kRunning);
  s.num_computed = cached;
  if (config_.kv.prefix_caching) note_hit(s, hit, counters_);
  if (kv_.below().there()) note_external(request, s, hit, recalled_, log_, counters_);
  note_start(request, s, now, cached, /*prompt_elsewhere=*/false, log_, counters_);
  run(request, tokens, batch);
  return true;
}

void BatchScheduler::run(RequestId request, std::int32_t tokens, Batch& batch) {
  Sequence& s = sequences_[request];
  const std::int32_t before = s.num_computed;
  if (log_.scheduled[request] == kNever)
    log_.first_scheduled(request, now_, log_.cached_tokens[request]);
  s.num_in_flight = 1;
  s.num_computed += tokens;
  if (keys_when_scheduled_) kv_.register_full(request, s.num_computed);
  batch.items.push_back({request, tokens, before, s.epoch, 0, s.num_computed == s.num_tokens});
}

void BatchScheduler::drop(RequestId request, Batch& batch) {
  Sequence& s = sequences_[request];
  kv_.release(request, /*preempted=*/true);
  note_preemption(request, s, log_, counters_);
  batch.preempted.push_back(request);
}

RequestId BatchScheduler::preempt_youngest(Batch& batch) {
  auto place = std::prev(running_.end());
  while (in_flight(*place)) --place;
  const RequestId victim = *place;
  running_.erase(place);
  drop(victim, batch);
  waiting_.push_front(victim);
  return victim;
}

void BatchScheduler::take_over(Ps now, std::int32_t slots, std::int32_t spare) {
  while (!waiting_.empty()) {
    const RequestId request = waiting_.front(now);
    const Sequence& s = sequences_[request];
    if (!s.remote_kv) return;
    kv_.find_hits(request, hits_);
    const std::int32_t held = std::max(slots, s.num_tokens);
    if (!room_to_take_over(request) || !kv_.fits(s, held, hits_, spare)) return;
    park(request, held);
  }
}

void BatchScheduler::park(RequestId request, std::int32_t slots) {
  Sequence& s = sequences_[request];
  const std::int32_t hit = static_cast<std::int32_t>(hits_.size()) * config_.kv.block_size;
  kv_.allocate(request, slots, hits_);
  if (config_.kv.prefix_caching) note_hit(s, hit, counters_);
  waiting_.pop_front();
  parked_.park({request, hit, s.num_tokens, 1, true});
  s.status = static_cast<std::uint8_t>(Status::kParked);
  s.remote_kv = false;  // only once: after a preemption it is computed here
  log_.cached_tokens[request] = hit;
  reserved_.push_back({request, hit});
}

void BatchScheduler::admit_arrived() {
  parked_.rewind();
  while (num_running() < config_.max_num_seqs) {
    const RequestId request = parked_.next();
    if (request < 0) return;
    Sequence& s = sequences_[request];
    kv_.register_full(request, parked_.loaded());
    kv_.below().computed(request, parked_.cached(), parked_.loaded());
    parked_.take();
    running_.push_back(request);
    s.status = static_cast<std::uint8_t>(Status::kRunning);
    s.num_computed = s.num_tokens - 1;
    counters_.started_with_tokens += s.num_computed;
    log_.resumes(request, now_);
  }
}

void BatchScheduler::take_reserved(std::vector<Reserved>& out) {
  out.insert(out.end(), reserved_.begin(), reserved_.end());
  reserved_.clear();
}

bool BatchScheduler::transferred(RequestId request) {
  if (sequences_[request].status == static_cast<std::uint8_t>(Status::kParked))
    return parked_.arrived(request);
  if (leaving_.transferred(request)) kv_.release(request, /*preempted=*/false);
  return true;
}

void BatchScheduler::abort(RequestId request) {
  Sequence& s = sequences_[request];
  if (rank_events_ != nullptr) rank_events_->left(request);
  const auto place = std::find(running_.begin(), running_.end(), request);
  if (place != running_.end()) {
    running_.erase(place);
    leave(request);
  } else if (s.status == static_cast<std::uint8_t>(Status::kParked)) {
    // What is on its way into the blocks has to arrive first.
    if (leaving_.leave(request, parked_.remove(request))) kv_.release(request, /*preempted=*/false);
  } else {
    leave_queue(request);
  }
  note_cancellation(s, counters_);
  completed();
}

void BatchScheduler::update(const Batch& batch, std::vector<RequestId>& finished) {
  const std::size_t before = finished.size();
  for (const Item& item : batch.items) receive(item, finished);
  if (finished.size() > before) {
    std::erase_if(running_, [this](RequestId request) {
      return sequences_[request].status == static_cast<std::uint8_t>(Status::kFinished);
    });
  }
  completed();
  if (rank_events_ != nullptr) rank_events_->executed(batch);
}

void BatchScheduler::receive(const Item& item, std::vector<RequestId>& finished) {
  Sequence& s = sequences_[item.request];
  if (s.status == static_cast<std::uint8_t>(Status::kCancelled)) return;
  s.num_in_flight = 0;
  kv_.below().computed(item.request, item.computed_before, item.computed_before + item.tokens);
  if (item.emits) {
    ++s.num_tokens;
    log_.emit(item.request, 1);
    if (!config_.kv_producer) ++counters_.generation_tokens;  // the decode side computes it again
  }
  const bool stops = s.emitted() >= sequences_.max_tokens(item.request) ||
                     s.num_tokens >= config_.kv.max_model_len;
  if (!item.emits || !stops) return served(item);
  s.status = static_cast<std::uint8_t>(Status::kFinished);
  if (rank_events_ != nullptr) rank_events_->left(item.request);
  if (leaving_.leave(item.request, config_.kv_producer ? 1 : 0)) leave(item.request);
  ++counters_.finished;
  log_.finished(item.request);
  finished.push_back(item.request);
}

}  // namespace llmsim
