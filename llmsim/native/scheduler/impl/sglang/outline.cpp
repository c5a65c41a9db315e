#include "scheduler/impl/sglang/outline.h"

#include <algorithm>

#include "scheduler/phase.h"

namespace llmsim {

SglangOutline::SglangOutline(const SchedulerConfig& config, SequenceTable& sequences,
                             RequestLog& log)
    : BatchScheduler(config, sequences, log),
      new_tokens_(value_of(kNewTokens, config.parameters)),
      reserved_tokens_(value_of(SglangTakeover::kReservedTokens, config.parameters)) {}

void SglangOutline::form(Ps now, Batch& batch) {
  if (running_.empty()) ratio_ = kFirstRatio;
  if (config_.kv_consumer) {
    admit_arrived();
    take_over(now);
  }
  if (config_.decode_only) {  // who arrives with its KV joins the decodes
    schedule_decodes(batch);
    if (batch.preempted.empty()) schedule_prompts(now, batch);
    return;
  }
  schedule_prompts(now, batch);
  if (batch.empty()) schedule_decodes(batch);
}

bool SglangOutline::computes_prompt(const Sequence& s) const {
  return prefilling(s) && (!config_.kv_consumer || s.epoch > 0);
}

bool SglangOutline::room_to_take_over(RequestId candidate) const {
  const Sequence& s = sequences_[candidate];
  const std::int64_t held = num_running() + parked_.size();
  if (held == 0) return true;  // as it fits at all
  std::int64_t retractable = 0, longest = 0;
  for (const RequestId request : running_) retractable += sequences_[request].num_tokens;
  for (const RequestId request : running_) {
    const std::int64_t whole = sequences_[request].num_tokens + new_tokens_left(request);
    longest = std::max(longest, whole - retractable);
  }
  const std::int64_t reserved = reserved_tokens_ * held;
  const std::int64_t free =
      std::int64_t{kv_.pool().num_free()} * config_.kv.block_size - std::max(reserved, longest);
  const std::int64_t taken =
      s.num_tokens - static_cast<std::int64_t>(hits_.size()) * config_.kv.block_size;
  return std::max(taken + reserved_tokens_, taken + new_tokens_left(candidate) - retractable) <=
         free;
}

void SglangOutline::schedule_prompts(Ps now, Batch& batch) {
  std::int32_t budget =
      config_.max_num_scheduled_tokens - static_cast<std::int32_t>(batch.items.size());
  for (const RequestId request : running_) {
    if (in_flight(request) || !computes_prompt(sequences_[request])) continue;
    const std::int32_t tokens = std::min(tokens_left(request), budget);
    run(request, tokens, batch);
    budget -= tokens;
  }
  std::int64_t promised = tokens_promised();
  while (budget > 0 && !waiting_.empty() && num_running() < config_.max_num_seqs) {
    const RequestId request = waiting_.front(now);
    const Sequence& s = sequences_[request];
    if (s.remote_kv) return;
    const std::int32_t cached = find_cached(request);
    const std::int64_t needed =
        s.num_tokens - cached + new_tokens_left(request) + config_.kv.block_size;
    const std::int64_t free =
        std::int64_t{kv_.pool().num_free()} * config_.kv.block_size - promised;
    if (needed >= free && !running_.empty()) return;
    const std::int32_t tokens = std::min(s.num_tokens - cached, budget);
    if (!start(now, request, cached, tokens, {s.num_tokens}, batch)) return;
    waiting_.pop_front();
    running_.push_back(request);
    budget -= tokens;
    promised += new_tokens_left(request);
  }
}

void SglangOutline::schedule_decodes(Batch& batch) {
  const auto flies = [this](RequestId request) { return in_flight(request); };
  if (!running_.empty() && std::ranges::all_of(running_, flies)) return;
  const bool fits = blocks_for_decodes() <= kv_.pool().num_free();
  while (blocks_for_decodes() > kv_.pool().num_free()) retract(batch);
  if (fits) {
    ratio_ = std::max(kLeastRatio, ratio_ - kDecay);
  } else {
    raise_ratio();
  }
  for (const RequestId request : running_) {
    if (in_flight(request) || computes_prompt(sequences_[request])) continue;
    kv_.grow(request, sequences_[request].num_tokens);
    run(request, 1, batch);
  }
}

std::int32_t SglangOutline::blocks_for_decodes() const {
  std::int32_t count = 0;
  for (const RequestId request : running_) {
    const Sequence& s = sequences_[request];
    count += !in_flight(request) && !computes_prompt(s) &&
             kv_.blocks_for(s.num_tokens) > static_cast<std::int32_t>(s.blocks.size());
  }
  return count;
}

// The last of a list sorted by (answer, longest first; prompt, shortest first), the youngest of
// equals.
void SglangOutline::retract(Batch& batch) {
  const auto later = [this](RequestId a, RequestId b) {
    const Sequence &x = sequences_[a], &y = sequences_[b];
    return std::pair(-x.emitted(), x.prompt_tokens) <= std::pair(-y.emitted(), y.prompt_tokens);
  };
  auto victim = running_.end();
  for (auto other = running_.begin(); other != running_.end(); ++other) {
    if (in_flight(*other)) continue;
    if (victim == running_.end() || later(*victim, *other)) victim = other;
  }
  const RequestId request = *victim;
  running_.erase(victim);
  drop(request, batch);
  waiting_.push_back(request);
}

void SglangOutline::raise_ratio() {
  std::int64_t emitted = 0, possible = 1;
  for (const RequestId request : running_) {
    const Sequence& s = sequences_[request];
    emitted += s.emitted() + kRetractDecodeSteps;
    possible += s.emitted() + new_tokens_left(request);
  }
  ratio_ = std::min(kRatioUnit, emitted * kRatioUnit / possible);
}

// SGLang: min(max_new_tokens - len(output_ids), CLIP_MAX_NEW_TOKENS). Where answers end with a
// token that only the model knows, the trace holds no limit of the request, and the clip stands for
// it.
std::int64_t SglangOutline::new_tokens_left(RequestId request) const {
  const Sequence& s = sequences_[request];
  if (config_.kv_producer) return 1 - s.emitted();
  const std::int64_t pool = std::int64_t{kv_.usable_blocks()} * config_.kv.block_size;
  const std::int64_t longest =
      std::min<std::int64_t>(config_.kv.max_model_len, pool) - s.prompt_tokens;
  const std::int64_t clip = new_tokens_;
  if (!config_.output_length_known)
    return std::max<std::int64_t>(0, std::min(clip, longest) - s.emitted());
  const std::int64_t limit = std::min<std::int64_t>(sequences_.max_tokens(request), longest);
  return std::max<std::int64_t>(0, std::min(clip, limit - s.emitted()));
}

std::int64_t SglangOutline::tokens_promised() const {
  std::int64_t tokens = 0;
  for (const RequestId request : running_) tokens += new_tokens_left(request);
  return tokens * ratio_ / kRatioUnit;
}

}  // namespace llmsim
