#include "scheduler/impl/sglang/sglang.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "scheduler/bookkeeping.h"
#include "scheduler/impl/sglang/outline.h"

namespace llmsim {

namespace {

// Everything that the outline is known by, with the parameters of both.
SchedulerKind kind() {
  static constexpr Param kParams[] = {Sglang::kNewTokens,     SglangOutline::kReservedTokens,
                                      Sglang::kPrefillTokens, Sglang::kMixedChunk,
                                      Sglang::kPolicy,        Sglang::kOverlap,
                                      Sglang::kPriorities,    Sglang::kLowFirst,
                                      Sglang::kPreemption,    Sglang::kThreshold,
                                      Sglang::kRetraction};
  SchedulerKind kind = kind_of<SglangOutline>("sglang");
  kind.params = kParams;
  kind.make = [](const SchedulerConfig& config, SequenceTable& sequences,
                 RequestLog& log) -> std::unique_ptr<Scheduler> {
    if (Sglang::runs(config)) return std::make_unique<Sglang>(config, sequences, log);
    return std::make_unique<SglangOutline>(config, sequences, log);
  };
  return kind;
}

const RegisterScheduler kSglang(kind());

}  // namespace

bool Sglang::runs(const SchedulerConfig& config) {
  const bool plays_role = config.kv_producer || config.kv_consumer || config.decode_only;
  const bool ordered = config.queue.order != QueueOrder::kFcfs || config.ranking != nullptr;
  const bool other_cache = !config.kv.tables.plain() || config.kv.eviction != nullptr;
  const bool whole_pages = config.max_num_scheduled_tokens >= config.kv.block_size;
  return whole_pages && !plays_role && !ordered && !other_cache && !config.victim &&
         !config.tiered && config.stages == 1;
}

Sglang::Sglang(const SchedulerConfig& config, SequenceTable& sequences, RequestLog& log)
    : config_(config),
      sequences_(sequences),
      log_(log),
      memory_(config.kv.num_blocks - 1, config.kv.block_size, config.max_num_seqs,
              config.kv.prefix_caching, sequences),
      held_(sequences.size()),
      chunk_(config.chunked_prefill
                 ? config.max_num_scheduled_tokens / config.kv.block_size * config.kv.block_size
                 : PromptBudget::kNoChunk),
      mixes_(value_of(kMixedChunk, config.parameters) != 0),
      priorities_(value_of(kPriorities, config.parameters) != 0),
      low_first_(value_of(kLowFirst, config.parameters) != 0),
      preempts_(priorities_ && value_of(kPreemption, config.parameters) != 0),
      retracts_by_priority_(priorities_ && value_of(kRetraction, config.parameters) != 0),
      policy_(static_cast<Policy>(value_of(kPolicy, config.parameters))),
      new_tokens_(value_of(kNewTokens, config.parameters)),
      max_prefill_tokens_(value_of(kPrefillTokens, config.parameters)),
      threshold_(value_of(kThreshold, config.parameters)),
      ratio_(kFirstRatio),
      least_ratio_(kFirstRatio * kLeastShare),
      decay_((kFirstRatio - least_ratio_) / static_cast<double>(kDecaySteps)) {}

// Tokens of a prompt and its answer, as SGLang bounds them.
std::int32_t Sglang::max_request_tokens() const {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(config_.kv.max_model_len, memory_.capacity()) - 1);
}

void Sglang::add(RequestId request) {
  Sequence& s = sequences_[request];
  s.status = static_cast<std::uint8_t>(Status::kWaiting);
  const std::int64_t page = memory_.page_size();
  const std::int64_t by_length = max_request_tokens() - s.prompt_tokens - 1;
  const std::int64_t by_memory = memory_.capacity() - memory_.ceil(s.prompt_tokens) - page - 1;
  std::int64_t limit = std::max<std::int64_t>(0, std::min(by_length, by_memory));
  if (config_.output_length_known)
    limit = std::min<std::int64_t>(limit, sequences_.max_tokens(request));
  held_[at(request)].limit = static_cast<std::int32_t>(limit);
  enter_queue(request);
}

void Sglang::enter_queue(RequestId request) {
  held_[at(request)].entry = entries_++;
  waiting_.push_back(request);
}

bool Sglang::has_requests() const {
  return !waiting_.empty() || memory_.rows() < config_.max_num_seqs;
}

Limits Sglang::limits() const {
  return {.max_model_len = config_.kv.max_model_len - 2,
          .block_size = static_cast<std::int32_t>(memory_.page_size()),
          .usable_blocks = config_.kv.num_blocks - 1,
          .longest_prompt = max_request_tokens() - 6};
}

Gauges Sglang::gauges() const {
  const std::int64_t page = memory_.page_size();
  const auto free = static_cast<std::int32_t>(memory_.available() / page);
  const auto cached = static_cast<std::int32_t>(memory_.evictable() / page);
  return {.running = static_cast<std::int32_t>(config_.max_num_seqs - memory_.rows()),
          .waiting = static_cast<std::int32_t>(waiting_.size()),
          .pool = {config_.kv.num_blocks, free + cached, cached}};
}

bool Sglang::pool_consistent() const {
  std::int64_t own = 0;
  for (const SglangHeld& held : held_)
    if (held.row) own += (memory_.ceil(held.slots) - held.kept) / memory_.page_size();
  return memory_.consistent(own);
}

void Sglang::schedule(Ps now, Batch& batch) {
  batch.clear();
  if (flights_.size() == kMostFlights) return;
  ++batches_;
  if (idle_ && now > last_output_) ratio_ = kFirstRatio;
  idle_ = false;
  merge_last();
  last_.prompts = schedule_prompts(now, batch);
  if (!last_.prompts && !running_.empty()) schedule_decodes(batch);
  for (const Item& item : batch.items) batch.features.add(item.tokens, item.computed_before);
  if (!batch.empty()) {
    flights_.push_back({batches_, last_.prompts ? chosen_.size() : 0});
    batch.preempted.swap(preempted_);
  }
  const Gauges now_held = gauges();
  counters_.peak_blocks_used =
      std::max(counters_.peak_blocks_used, config_.kv.num_blocks - 1 - now_held.pool.free);
}

bool Sglang::drop_ended(std::vector<RequestId>& requests, RequestId also) {
  const std::size_t dropped = std::erase_if(requests, [this, also](RequestId request) {
    return request == also || request == cut_ || !held_[at(request)].row;
  });
  return dropped > 0;
}

void Sglang::merge_last() {
  if (cut_ >= 0) {
    SglangHeld& held = held_[at(cut_)];
    if (held.end > held.prefix) memory_.checkpoint(cut_, held, held.end);
    held.prefix = held.end;
  }
  if (last_.prompts) {
    if (drop_ended(last_.requests, last_.cut)) full_ = false;
    if (running_.empty() && !last_.requests.empty()) {
      running_.swap(last_.requests);
      full_ = false;
    } else {
      running_.insert(running_.end(), last_.requests.begin(), last_.requests.end());
    }
    last_.requests.clear();
  }
  if (some_ended_ && drop_ended(running_)) full_ = false;
  some_ended_ = false;
}

void Sglang::run(RequestId request, std::int32_t before, std::int32_t tokens, bool emits,
                 Batch& batch) {
  Sequence& s = sequences_[request];
  ++s.num_in_flight;
  s.num_computed = before + tokens;
  held_[at(request)].flight = batches_;
  batch.items.push_back({request, tokens, before, s.epoch, 0, emits});
}

void Sglang::update(const Batch& batch, std::vector<RequestId>& finished) {
  const std::size_t prompts = flights_.front().prompts;
  flights_.pop_front();
  for (std::size_t i = 0; i < batch.items.size(); ++i)
    receive(batch.items[i], i >= prompts, finished);
  idle_ = flights_.empty() && !has_requests();
  last_output_ = log_.output_time();
}

void Sglang::receive(const Item& item, bool decodes, std::vector<RequestId>& finished) {
  Sequence& s = sequences_[item.request];
  if (s.status == static_cast<std::uint8_t>(Status::kCancelled) || s.epoch != item.epoch) return;
  if (s.status == static_cast<std::uint8_t>(Status::kFinished)) {
    counters_.discarded_tokens += item.tokens;
    return;
  }
  --s.num_in_flight;
  if (!item.emits) return;
  ++s.num_tokens;
  ++counters_.generation_tokens;
  log_.emit(item.request, 1);
  SglangHeld& held = held_[at(item.request)];
  const std::int32_t most = std::max(1, held.limit);
  if (s.emitted() >= std::min(most, sequences_.max_tokens(item.request)))
    return finish(item.request, finished);
  if (decodes) return;
  memory_.checkpoint(item.request, held, held.end);
  held.prefix = held.end;
}

void Sglang::finish(RequestId request, std::vector<RequestId>& finished) {
  Sequence& s = sequences_[request];
  SglangHeld& held = held_[at(request)];
  memory_.checkpoint(request, held, std::min(held.slots, s.num_tokens));
  memory_.release(held);
  s.status = static_cast<std::uint8_t>(Status::kFinished);
  some_ended_ = true;
  ++counters_.finished;
  log_.finished(request);
  finished.push_back(request);
}

void Sglang::abort(RequestId request) {
  std::erase(waiting_, request);
  std::erase(running_, request);
  std::erase(last_.requests, request);
  if (cut_ == request) cut_ = -1;
  if (held_[at(request)].row) memory_.release(held_[at(request)]);
  note_cancellation(sequences_[request], counters_);
}

// ---- Steps of decodes.

bool Sglang::ends_with_output_in_flight(RequestId request) const {
  const SglangHeld& held = held_[at(request)];
  return held.flight == flights_.front().number && sequences_[request].emitted() + 1 >= held.limit;
}

// Those whose last token is on its way decode no more.
bool Sglang::leave_out_ending() {
  if (flights_.empty()) return false;
  return std::erase_if(running_, [this](RequestId request) {
           return ends_with_output_in_flight(request);
         }) > 0;
}

void Sglang::schedule_decodes(Batch& batch) {
  const bool some_end = leave_out_ending();
  if (some_end) full_ = false;
  if (running_.empty()) {
    full_ = false;
    return;
  }
  if (decodes_fit(running_)) {
    ratio_ = std::max(ratio_ - decay_, least_ratio_);
  } else if (some_end) {
    return;  // what they hold is free in a moment
  } else {
    retract();
    full_ = false;
  }
  if (!running_.empty()) form_decodes(batch);
}

bool Sglang::decodes_fit(const std::vector<RequestId>& requests) {
  const std::int64_t page = memory_.page_size();
  std::int64_t pages = 0;
  for (const RequestId request : requests) pages += held_[at(request)].slots % page == 0;
  return memory_.make_room(pages * page);
}

// Whom to keep comes first: long answers, then short prompts.
void Sglang::retract() {
  std::vector<RequestId> kept = running_, retracted;
  const auto before = [this](RequestId a, RequestId b) {
    const Sequence &x = sequences_[a], &y = sequences_[b];
    if (retracts_by_priority_ && rank(a) != rank(b)) return rank(a) < rank(b);
    return std::pair(-x.emitted(), x.prompt_tokens) < std::pair(-y.emitted(), y.prompt_tokens);
  };
  std::ranges::stable_sort(kept, before);
  do {
    if (kept.size() == 1) break;
    const RequestId request = kept.back();
    kept.pop_back();
    give_up(request, std::ssize(kept));
    retracted.push_back(request);
  } while (!decodes_fit(kept));
  if (kept.size() == 1 && !decodes_fit(kept))
    throw std::runtime_error("the KV cache does not hold request " + std::to_string(kept[0]) +
                             " alone");
  running_ = std::move(kept);
  std::int64_t written = 0, limits = 0;
  for (const RequestId request : running_) {
    written += sequences_[request].emitted();
    limits += held_[at(request)].limit;
  }
  const std::int64_t soon = written + kRetractDecodeSteps * std::ssize(running_);
  ratio_ = std::min(1.0, static_cast<double>(soon) / static_cast<double>(limits + 1));
  for (const RequestId request : retracted) enter_queue(request);
}

void Sglang::give_up(RequestId request, std::int64_t left) {
  memory_.release(held_[at(request)]);
  memory_.make_room(left * kRetractDecodeSteps);
  Sequence& s = sequences_[request];
  note_preemption(request, s, log_, counters_);
  s.num_in_flight = 0;
  preempted_.push_back(request);
}

void Sglang::form_decodes(Batch& batch) {
  memory_.make_room(std::ssize(running_) * memory_.page_size());
  for (const RequestId request : running_) {
    SglangHeld& held = held_[at(request)];
    const std::int32_t before = held.slots;
    memory_.grow(held, before + 1);
    run(request, before, 1, /*emits=*/true, batch);
  }
}

}  // namespace llmsim
