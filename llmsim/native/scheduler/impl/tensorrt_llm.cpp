#include "scheduler/impl/tensorrt_llm.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "scheduler/reservation.h"

namespace llmsim {

static const RegisterScheduler kTensorRtLlm(kind_of<TensorRtLlm>("tensorrt_llm"));

TensorRtLlm::TensorRtLlm(const SchedulerConfig& config, SequenceTable& sequences, RequestLog& log)
    : BatchScheduler(config, sequences, log),
      capacity_(static_cast<Capacity>(value_of(kCapacity, config.parameters))),
      chunking_(static_cast<Chunking>(value_of(kChunking, config.parameters))) {
  if (config.chunked_prefill && config.max_num_scheduled_tokens < config.kv.block_size)
    throw std::invalid_argument("tensorrt_llm cuts prompts to whole blocks, but a step of " +
                                std::to_string(config.max_num_scheduled_tokens) +
                                " tokens holds none of " + std::to_string(config.kv.block_size));
  keys_when_scheduled_ = false;
}

Gauges TensorRtLlm::gauges() const {
  Gauges gauges = BatchScheduler::gauges();
  gauges.waiting += static_cast<std::int32_t>(active_.size()) - num_running();
  return gauges;
}

void TensorRtLlm::form(Ps now, Batch& batch) {
  const auto most = static_cast<std::size_t>(config_.max_num_seqs);
  while (active_.size() < most && !waiting_.empty()) {
    active_.push_back(waiting_.front(now));
    waiting_.pop_front();
  }
  std::size_t paused = 0;
  do {  // who paused the last one may have to wait for the blocks, and then nobody runs
    paused = batch.preempted.size();
    form_once(now, batch);
  } while (batch.items.empty() && batch.preempted.size() > paused);
}

void TensorRtLlm::form_once(Ps now, Batch& batch) {
  under_way_.clear();
  if (config_.kv.prefix_caching) note_prefixes_under_way();
  const std::vector<RequestId> fitting =
      capacity_ == Capacity::kGuaranteedNoEvict ? fit_to_the_end() : fit_one_step(batch);
  std::vector<RequestId> generate;
  for (const Prompt& prompt : fill(fitting, generate)) run_prompt(now, prompt, batch);
  for (const RequestId request : generate)
    if (kv_.grow(request, sequences_[request].num_tokens)) run(request, 1, batch);
}

bool TensorRtLlm::generates(RequestId request) const {
  return started(request) && sequences_[request].num_computed >= sequences_[request].started_with;
}

std::vector<RequestId> TensorRtLlm::fit_to_the_end() {
  std::vector<RequestId> fitting, prompts;
  std::int32_t free = kv_.pool().num_free();
  for (const RequestId request : active_) {
    if (!generates(request)) {
      prompts.push_back(request);
      continue;
    }
    fitting.push_back(request);
    free -= blocks_needed(request, most_tokens(request));
  }
  for (const RequestId request : prompts) {
    if (waits_for_prefix(request)) continue;
    const std::int32_t needed = blocks_needed(request, most_tokens(request));
    if (needed > free) break;
    fitting.push_back(request);
    free -= needed;
  }
  if (fitting.empty())
    std::ranges::copy_if(prompts, std::back_inserter(fitting),
                         [this](RequestId request) { return started(request); });
  return fitting;
}

std::vector<RequestId> TensorRtLlm::fit_one_step(Batch& batch) {
  std::vector<RequestId> fitting;
  std::int32_t taken = 0;
  std::size_t end = active_.size();
  for (std::size_t i = 0; i < end;) {
    const RequestId request = active_[i];
    if (waits_for_prefix(request)) {
      ++i;
      continue;
    }
    const std::int32_t needed = blocks_needed(request, sequences_[request].num_tokens);
    if (taken + needed <= kv_.pool().num_free()) {
      taken += needed;
      fitting.push_back(request);
      ++i;
      continue;
    }
    std::size_t behind = end;
    while (behind > i && !started(active_[behind - 1])) --behind;
    if (behind == i) break;
    end = behind - 1;
    pause(active_[end], batch);
  }
  return fitting;
}

void TensorRtLlm::pause(RequestId request, Batch& batch) {
  kv_.register_full(request, sequences_[request].num_computed);
  std::erase(running_, request);
  drop(request, batch);
}

std::int32_t TensorRtLlm::blocks_needed(RequestId request, std::int32_t tokens) {
  const std::int32_t blocks = kv_.blocks_for(tokens);
  if (started(request)) {
    const auto held = static_cast<std::int32_t>(sequences_[request].blocks.size());
    return std::max(0, blocks - held);
  }
  find_cached(request);
  const auto shared =
      std::ranges::count_if(hits_, [this](BlockId block) { return !kv_.pool().is_free(block); });
  return blocks - static_cast<std::int32_t>(shared);
}

// An answer whose end only the model knows may fill the context, or the cache if that is smaller.
std::int32_t TensorRtLlm::most_tokens(RequestId request) const {
  const std::int32_t most = reserved_tokens(kv_);
  if (!config_.output_length_known) return most;
  return std::min(most, sequences_[request].prompt_tokens + sequences_.max_tokens(request));
}

void TensorRtLlm::note_prefixes_under_way() {
  for (const RequestId request : active_)
    if (started(request) && !generates(request)) note_first_new_block(request);
}

void TensorRtLlm::note_first_new_block(RequestId request) {
  kv_.find_hits(request, hits_);
  const auto block = static_cast<std::int32_t>(hits_.size());
  if ((block + 1) * config_.kv.block_size < sequences_[request].num_tokens)
    under_way_.insert(kv_.key_of(request, block));
}

bool TensorRtLlm::waits_for_prefix(RequestId request) {
  if (!config_.kv.prefix_caching || started(request)) return false;
  const std::size_t before = under_way_.size();
  note_first_new_block(request);
  const auto block = static_cast<std::int32_t>(hits_.size());
  const bool is_new = under_way_.size() > before;
  return !is_new && (block + 1) * config_.kv.block_size < sequences_[request].num_tokens;
}

std::vector<TensorRtLlm::Prompt> TensorRtLlm::fill(const std::vector<RequestId>& fitting,
                                                   std::vector<RequestId>& generate) {
  std::vector<Prompt> prompts;
  std::int32_t budget = config_.max_num_scheduled_tokens;
  for (const RequestId request : fitting) {
    if (generates(request)) {
      if (budget == 0) break;
      generate.push_back(request);
      --budget;
    } else {
      const Sequence& s = sequences_[request];
      const std::int32_t cached = started(request) ? 0 : find_cached(request);
      const std::int32_t left = s.num_tokens - (started(request) ? s.num_computed : 0);
      if (!config_.chunked_prefill) {
        if (left - cached > budget) break;
        budget -= left - cached;
      }
      prompts.push_back({request, left, cached, left});
    }
  }
  if (config_.chunked_prefill) cut(prompts, budget);
  return prompts;
}

void TensorRtLlm::cut(std::vector<Prompt>& prompts, std::int32_t budget) const {
  std::int64_t tokens = 0;
  for (const Prompt& prompt : prompts) tokens += prompt.left - prompt.cached;
  if (tokens <= budget) return;
  if (chunking_ == Chunking::kFirstComeFirstServed) {
    cut_in_order(prompts, budget);
  } else {
    cut_equally(prompts, budget);
  }
  std::erase_if(prompts, [](const Prompt& prompt) { return prompt.chunk == 0; });
  std::ranges::stable_partition(prompts,
                                [](const Prompt& prompt) { return prompt.chunk < prompt.left; });
}

void TensorRtLlm::cut_in_order(std::vector<Prompt>& prompts, std::int32_t budget) const {
  const std::int32_t unit = config_.kv.block_size;
  for (Prompt& prompt : prompts) {
    if (prompt.left - prompt.cached > budget) prompt.chunk = budget / unit * unit;
    budget -= prompt.chunk > 0 ? prompt.computed(prompt.chunk) : 0;
  }
}

// All advance by one block after the other, as far as the budget goes.
void TensorRtLlm::cut_equally(std::vector<Prompt>& prompts, std::int32_t budget) const {
  const std::int32_t unit = config_.kv.block_size;
  std::int32_t tokens = 0, advanced = 1;
  for (Prompt& prompt : prompts) prompt.chunk = 0;
  while (tokens < budget && advanced > 0) {
    advanced = 0;
    for (Prompt& prompt : prompts) {
      const std::int32_t longer = std::min(prompt.chunk + unit, prompt.left);
      const std::int32_t more =
          prompt.computed(longer) - (prompt.chunk > 0 ? prompt.computed(prompt.chunk) : 0);
      if (tokens + more > budget || longer > config_.max_num_scheduled_tokens) continue;
      tokens += more;
      advanced += longer - prompt.chunk;
      prompt.chunk = longer;
    }
  }
}

// A prompt that starts takes the blocks of all of it.
void TensorRtLlm::run_prompt(Ps now, const Prompt& prompt, Batch& batch) {
  const RequestId request = prompt.request;
  const std::int32_t tokens = prompt.computed(prompt.chunk);
  if (started(request)) return run(request, tokens, batch);
  sequences_[request].started_with = sequences_[request].num_tokens;
  const std::int32_t cached = find_cached(request);
  if (start(now, request, cached, tokens, {sequences_[request].num_tokens}, batch))
    running_.push_back(request);
}

void TensorRtLlm::served(const Item& item) {
  const Sequence& s = sequences_[item.request];
  if (item.emits) kv_.register_full(item.request, s.started_with);
}

void TensorRtLlm::leave_queue(RequestId request) {
  if (std::erase(active_, request) == 0) waiting_.remove(request);
}

void TensorRtLlm::leave(RequestId request) {
  std::erase(active_, request);
  kv_.register_full(request, sequences_[request].num_computed);
  BatchScheduler::leave(request);
}

}  // namespace llmsim
