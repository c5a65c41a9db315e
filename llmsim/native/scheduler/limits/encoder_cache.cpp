#include "scheduler/limits/encoder_cache.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace llmsim {

EncoderCache::EncoderCache(const EncoderConfig& config) : config_(config) {
  std::int32_t largest = 0;
  if (on())
    for (const EncoderInput& one : config.inputs->inputs) largest = std::max(largest, one.tokens);
  if (config.pair_tokens > 0 && largest > config.pair_tokens)
    throw std::invalid_argument("an encoder input has " + std::to_string(largest) +
                                " tokens, but the encoder's times reach to " +
                                std::to_string(config.pair_tokens));
  config_.step_tokens = std::max(config.step_tokens, largest);
  config_.cache_tokens = std::max(config.cache_tokens, largest);
  num_free_ = num_freeable_ = config_.cache_tokens;
}

std::int32_t EncoderCache::cut(RequestId request, std::int32_t computed, std::int32_t tokens,
                               std::int32_t ahead) {
  planned_.clear();
  repeated_.clear();
  planned_tokens_ = 0;
  planned_pairs_ = 0;
  left_as_planned_ = left_;
  if (tokens <= 0) return tokens;
  const EncoderRules& rules = config_.rules;
  const std::span<const EncoderInput> inputs = config_.inputs->of(request);
  const std::int32_t end = computed + tokens + ahead;
  for (std::int32_t i = 0; at(i) < inputs.size() && inputs[at(i)].offset < end; ++i) {
    const EncoderInput& one = inputs[at(i)];
    if (one.offset + one.tokens <= computed) continue;
    const bool would_split = splits(one, computed, tokens);
    const std::int32_t before_drafter = std::max(0, one.offset - computed - ahead);
    if (rules.counts_repeated && would_split) return before_drafter;
    const bool repeats = std::ranges::any_of(
        planned_, [&](std::int32_t other) { return inputs[at(other)].content == one.content; });
    if (repeats) {
      if (rules.counts_repeated) repeated_.push_back(i);
      continue;
    }
    if (hold_cached(request, i)) continue;
    if (would_split) return before_drafter;
    if (!fits(one.tokens))
      return rules.frees_at_once ? std::min(tokens, std::max(0, one.offset - computed))
                                 : before_drafter;
    if (!rules.encodes_ahead && one.offset == computed + tokens) continue;  // 0.24 reads one ahead
    planned_.push_back(i);
    planned_tokens_ += one.tokens;
    planned_pairs_ += std::int64_t{one.tokens} * one.tokens;
    left_as_planned_ -= one.tokens;
  }
  return tokens;
}

bool EncoderCache::splits(const EncoderInput& one, std::int32_t computed,
                          std::int32_t tokens) const {
  const bool begins =
      config_.rules.keeps_first_whole ? computed <= one.offset : computed < one.offset;
  return config_.whole_inputs && begins && computed + tokens < one.offset + one.tokens;
}

bool EncoderCache::hold_cached(RequestId request, std::int32_t index) {
  const auto found = outputs_.find(input(request, index).content);
  if (found == outputs_.end()) return false;
  Output& output = found->second;
  if (output.holders.empty()) {
    freeable_.erase(output.free_since);
    num_freeable_ -= output.tokens;
  }
  output.holders.insert(request);
  if (held_[request].insert(index).second) ++counters_.hits;
  return true;
}

bool EncoderCache::fits(std::int32_t tokens) {
  if (tokens > left_as_planned_) return false;
  const std::int32_t needed = planned_tokens_ + tokens;
  if (needed <= num_free_) return true;
  if (needed > num_freeable_) return false;
  while (needed > num_free_) {
    const auto oldest = freeable_.begin();
    const auto output = outputs_.find(oldest->second);
    num_free_ += output->second.tokens;
    outputs_.erase(output);
    freeable_.erase(oldest);
  }
  return true;
}

void EncoderCache::encode_planned(RequestId request) {
  if (!planned_.empty()) {
    left_ = left_as_planned_;  // also where somebody left the step meanwhile, as in vLLM
    in_step_[request] = {planned_tokens_, planned_pairs_};
  }
  for (const std::int32_t index : planned_) {
    const EncoderInput& one = input(request, index);
    outputs_.insert_or_assign(one.content, Output{one.tokens, {request}});
    held_[request].insert(index);
    num_free_ -= one.tokens;
    num_freeable_ -= one.tokens;
    ++counters_.inputs;
    counters_.tokens += one.tokens;
  }
  for (const std::int32_t index : repeated_) hold_cached(request, index);
}

void EncoderCache::unschedule(RequestId request) {
  const auto found = in_step_.find(request);
  if (found == in_step_.end()) return;
  left_ += found->second.tokens;
  in_step_.erase(found);
}

EncoderUse EncoderCache::use() const {
  if (config_.pair_tokens == 0) return {};
  EncoderUse use;
  std::int64_t pairs = 0;
  for (const auto& [request, encoded] : in_step_) {
    use.tokens += encoded.tokens;
    pairs += encoded.pairs;
  }
  use.pairs = static_cast<std::int32_t>(ceil_div(pairs, config_.pair_tokens));
  return use;
}

void EncoderCache::processed(RequestId request, std::int32_t tokens, std::int32_t ahead) {
  const auto found = held_.find(request);
  if (found == held_.end()) return;
  const std::int32_t behind = config_.rules.frees_at_once ? 0 : ahead;
  const std::set<std::int32_t> indices = found->second;
  for (const std::int32_t index : indices) {
    const EncoderInput& one = input(request, index);
    if (one.offset + one.tokens + behind <= tokens) let_go(request, index);
  }
}

void EncoderCache::release(RequestId request) {
  const auto found = held_.find(request);
  if (found == held_.end()) return;
  const std::set<std::int32_t> indices = found->second;
  for (const std::int32_t index : indices) let_go(request, index);
}

void EncoderCache::let_go(RequestId request, std::int32_t index) {
  const std::int64_t content = input(request, index).content;
  std::set<std::int32_t>& indices = held_.at(request);
  indices.erase(index);
  const bool again =
      config_.rules.holds_repeated && std::ranges::any_of(indices, [&](std::int32_t other) {
        return input(request, other).content == content;
      });
  if (indices.empty()) held_.erase(request);
  const auto found = outputs_.find(content);
  if (again || found == outputs_.end() || found->second.holders.erase(request) == 0) return;
  if (!found->second.holders.empty()) return;
  found->second.free_since = times_freed_++;
  freeable_.emplace(found->second.free_since, content);
  num_freeable_ += found->second.tokens;
}

}  // namespace llmsim
