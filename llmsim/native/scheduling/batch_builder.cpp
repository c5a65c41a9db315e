#include "scheduling/batch_builder.h"

#include <algorithm>

#include "scheduling/phase.h"

namespace llmsim {

BatchBuilder::BatchBuilder(const BatchingConfig& config, SequenceTable& sequences, RequestLog& log)
    : config_(config), sequences_(sequences), log_(log), kv_(config.kv, sequences), waiting_(config.queue, sequences) {}

void BatchBuilder::add(RequestId request) {
  sequences_[request].status = static_cast<std::uint8_t>(Status::kWaiting);
  waiting_.push_back(request);
}

void BatchBuilder::build(Ps now, Batch& batch) {
  batch.clear();
  form(now, batch);
  for (const Item& item : batch.items) batch.features.add(item.tokens, item.computed_before);
  const std::int32_t used = kv_.usable_blocks() - kv_.pool().num_free();
  counters_.peak_blocks_used = std::max(counters_.peak_blocks_used, used);
}

std::int32_t BatchBuilder::find_cached(RequestId request) {
  kv_.find_hits(request, hits_);
  const std::int32_t hit = static_cast<std::int32_t>(hits_.size()) * config_.kv.block_size;
  recalled_ = kv_.find_below(request, hit);
  return std::max(hit + recalled_, tokens_brought(sequences_[request], config_.decode_only));
}

bool BatchBuilder::start(Ps now, RequestId request, std::int32_t cached, std::int32_t tokens, const Room& room,
                         Batch& batch) {
  Sequence& s = sequences_[request];
  if (!kv_.fits(s, room.tokens, hits_, room.spare)) return false;
  const std::int32_t hit = static_cast<std::int32_t>(hits_.size()) * config_.kv.block_size;
  kv_.recall(request, hit, recalled_);
  kv_.allocate(request, room.tokens, hits_);
  s.status = static_cast<std::uint8_t>(Status::kRunning);
  s.num_computed = cached;
  if (config_.kv.prefix_caching) {
    counters_.prefix_queried_tokens += s.num_tokens;
    counters_.prefix_hit_tokens += hit;
  }
  if (log_.scheduled[request] == kNever) {
    log_.first_scheduled(request, now, cached);
    counters_.prompt_tokens += s.prompt_tokens;
  }
  if (s.epoch > 0) counters_.recomputed_tokens -= cached;
  schedule(request, tokens, batch);
  return true;
}

void BatchBuilder::schedule(RequestId request, std::int32_t tokens, Batch& batch) {
  Sequence& s = sequences_[request];
  const std::int32_t before = s.num_computed;
  s.num_computed += tokens;
  kv_.register_full(request, s.num_computed);
  batch.items.push_back({request, tokens, before, s.epoch, 0, s.num_computed == s.num_tokens});
}

void BatchBuilder::drop(RequestId request, Batch& batch) {
  Sequence& s = sequences_[request];
  kv_.release(request, /*preempted=*/true);
  counters_.recomputed_tokens += s.num_computed;
  s.lost_to = std::max(s.lost_to, s.num_computed);
  ++counters_.preemptions;
  log_.preempted(request);
  s.num_computed = 0;
  ++s.epoch;
  s.status = static_cast<std::uint8_t>(Status::kWaiting);
  batch.preempted.push_back(request);
}

void BatchBuilder::preempt_youngest(Batch& batch) {
  const RequestId victim = running_.back();
  running_.pop_back();
  drop(victim, batch);
  waiting_.push_front(victim);
}

void BatchBuilder::abort(RequestId request) {
  Sequence& s = sequences_[request];
  const auto place = std::find(running_.begin(), running_.end(), request);
  if (place != running_.end()) {
    running_.erase(place);
    leave(request);
  } else {
    leave_queue(request);
  }
  counters_.recomputed_tokens -= std::max(0, s.lost_to - s.num_computed);  // never computed again
  s.status = static_cast<std::uint8_t>(Status::kCancelled);
  ++counters_.cancelled;
  completed();
}

void BatchBuilder::complete(const Batch& batch, std::vector<RequestId>& finished) {
  const std::size_t before = finished.size();
  for (const Item& item : batch.items) receive(item, finished);
  if (finished.size() > before) {
    std::erase_if(running_, [this](RequestId request) {
      return sequences_[request].status == static_cast<std::uint8_t>(Status::kFinished);
    });
  }
  completed();
}

void BatchBuilder::receive(const Item& item, std::vector<RequestId>& finished) {
  Sequence& s = sequences_[item.request];
  if (s.status == static_cast<std::uint8_t>(Status::kCancelled)) return;
  kv_.computed(item.request, item.computed_before, item.computed_before + item.tokens);
  if (item.emits) {
    ++s.num_tokens;
    log_.emit(item.request, 1);
    ++counters_.generation_tokens;
  }
  const bool stops = s.emitted() >= sequences_.max_tokens(item.request) || s.num_tokens >= config_.kv.max_model_len;
  if (!item.emits || !stops) return served(item);
  s.status = static_cast<std::uint8_t>(Status::kFinished);
  leave(item.request);
  ++counters_.finished;
  log_.finished(item.request);
  finished.push_back(item.request);
}

}  // namespace llmsim
