#include "scheduler/impl/vllm_v1/vllm_v1.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "scheduler/bookkeeping.h"
#include "scheduler/phase.h"

namespace llmsim {

static const RegisterScheduler kVllmV1(kind_of<VllmV1>("vllm_v1"));

static QueueConfig queue_of(const SchedulerConfig& config) {
  QueueConfig queue = config.queue;
  queue.passed_over_first = config.rules.passed_over_first;
  return queue;
}

static ParkedOrder parked_order(const SchedulerConfig& config) {
  if (config.queue.order == QueueOrder::kPriority) return ParkedOrder::kPriority;
  return config.rules.holders_first ? ParkedOrder::kParking : ParkedOrder::kAside;
}

VllmV1::VllmV1(const SchedulerConfig& config, SequenceTable& sequences, RequestLog& log)
    : config_(config),
      sequences_(sequences),
      log_(log),
      kv_(config.kv, sequences),
      encoder_(config.encoder),
      lora_slots_(config.lora),
      waiting_(queue_of(config), sequences),
      parked_(parked_order(config), sequences),
      load_failures_(config.load_failures),
      pacing_(config.limits),
      most_running_(config.limits.max_num_active_seqs > 0 ? config.limits.max_num_active_seqs
                                                          : config.max_num_seqs) {
  if (!config.kv.tables.plain() && (config.kv_producer || config.kv_consumer || config.decode_only))
    throw std::invalid_argument(
        "several tables of blocks do not go with prompts that are computed elsewhere");
  // Else a sequence alone could need more blocks than it was let in for, and be preempted by itself
  // for ever.
  if (!config.kv.tables.plain() && config.kv.tables.step_tokens < config.max_num_scheduled_tokens)
    throw std::invalid_argument("steps of " + std::to_string(config.max_num_scheduled_tokens) +
                                " tokens, but windows are to hold those of " +
                                std::to_string(config.kv.tables.step_tokens));
  if (config.kv.tables.states.on && config.speculation.on())
    throw std::invalid_argument("cached states do not go with drafts");
  if (config.load_failures.on() && config.ranking != nullptr)
    throw std::invalid_argument("loads that fail do not go with rankings of requests");
  if (config.speculation.on()) log_.drafts.resize(sequences.size());
  if (counts_ahead()) ahead_.resize(sequences.size());
  if (config.ranking == nullptr) return;
  ranker_ = std::make_unique<Ranker>(config.ranking, config.sessions, sequences);
  rank_events_ = ranker_->events();
  takes_turns_ = ranker_->lists().pauses;
  // A paused request keeps its place in the steps in flight.
  if (takes_turns_) config_.rules.awaits_output = false;
  if (takes_turns_ && !config.kv.tables.plain())
    throw std::invalid_argument("requests that take turns need layers that keep the same tokens");
  if (takes_turns_ && encoder_.on())
    throw std::invalid_argument("requests that take turns have no encoder inputs");
  if (ranker_->lists().waiting) waiting_.rank_by(ranker_.get());
}

void VllmV1::add(RequestId request) {
  begun_beside_parked_.clear();
  sequences_[request].status = static_cast<std::uint8_t>(Status::kWaiting);
  waiting_.push_back(request);
  if (rank_events_ != nullptr)
    rank_events_->added(request, sequences_[request], log_.queued[request]);
}

Gauges VllmV1::gauges() const {
  const BlockPool& pool = kv_.pool();
  // Paused requests wait, although they hold blocks.
  const auto running = static_cast<std::int32_t>((takes_turns_ ? in_turn_ : running_).size());
  return {.running = running,
          .waiting = num_running() + num_waiting() - running,
          .parked = parked_.size(),
          .bound = parked_.size() + leaving_.size() + kv_.below().num_unawaited(),
          .pool = {pool.total(), pool.num_free(), pool.num_free_keyed()}};
}

std::int32_t VllmV1::num_deferred() const {
  std::int32_t deferred = parked_.size();
  waiting_.each([&](RequestId request) { deferred += sequences_[request].aside > 0; });
  return deferred;
}

Limits VllmV1::limits() const {
  const std::int32_t undecided = config_.async_scheduling ? 2 : 1;  // batches whose drafts may fail
  const std::int32_t ahead = config_.speculation.tokens * undecided + config_.speculation.lookahead;
  return {config_.kv.max_model_len, config_.kv.block_size, kv_.usable_blocks(), ahead};
}

void VllmV1::schedule(Ps now, Batch& batch) {
  batch.clear();
  ++calls_;
  kv_.begin_step();
  encoder_.begin_step();
  some_run_ = some_prompts_run_ = some_prompts_start_ = false;
  StepBudget budget(config_.max_num_scheduled_tokens, config_.limits);
  prompt_cap_ =
      prompt_cap(config_.limits, config_.max_num_scheduled_tokens, num_running() + num_waiting());
  defers_prompts_ = pacing_.on() && pacing_.defers(steps_, somebody_decodes());
  if (ranker_ != nullptr) rank(now);
  if (takes_turns_) {
    schedule_turns(now, batch, budget);
  } else if (config_.prefill_first) {
    build_prefill_first(now, batch, budget);
  } else {
    schedule_running(batch, budget);
    if (batch.preempted.empty()) {
      schedule_waiting(now, batch, budget);
      waiting_.return_passed_over();
      if (pacing_.on() && !defers_prompts_) pacing_.took(waiting_.somebody_in_turn());
    }
  }
  if (!partly_prefilled_.empty()) {  // a prompt that ends in this step counted until here
    for (const Item& item : batch.items)
      if (!sequences_[item.request].in_prompt) std::erase(partly_prefilled_, item.request);
  }
  steps_ = batch.empty() ? 0 : steps_ + 1;
  if (!batch.empty()) pacing_.ran(some_prompts_run_ || some_prompts_start_);
  batch.features.add(batch.items);
  if (kv_.below().there()) tell_below(batch);
  if (encoder_.on()) batch.features.encoder = encoder_.use();
  if (lora_slots_.on()) batch.features.lora = lora_slots_.begin_step(batch.items, sequences_);
  if (config_.decode_interval > 1) {
    for (const Item& item : batch.items)
      if (!sequences_[item.request].in_prompt)
        sequences_[item.request].next_decode_call = calls_ + config_.decode_interval;
  }
  if (config_.speculation.on()) leave_drafts(batch);
  if (rank_events_ != nullptr) rank_events_->scheduled(now, batch);
  if (defer_block_free()) late_.begun(batch);
  kv_.end_step();
  const std::int32_t used = kv_.usable_blocks() - kv_.pool().num_free();
  counters_.peak_blocks_used = std::max(counters_.peak_blocks_used, used);
  counters_.encoder = encoder_.counters();
}

void VllmV1::tell_below(const Batch& batch) {
  told_below_.clear();
  for (const Item& item : batch.items)
    told_below_.push_back({item.request, item.computed_before + item.tokens});
  kv_.below().scheduled(told_below_, batch.preempted);
  if (offloading_ != nullptr) counters_.offloading = offloading_->totals();
}

bool VllmV1::somebody_decodes() const {
  return std::any_of(running_.begin(), running_.end(),
                     [this](RequestId request) { return !sequences_[request].in_prompt; });
}

bool VllmV1::asks_again() const {
  return config_.decode_interval > 1 &&
         std::any_of(running_.begin(), running_.end(), [this](RequestId request) {
           return calls_ < sequences_[request].next_decode_call;
         });
}

// Prompts without room wait for the decodes and take nothing from them, else the two could take
// turns for ever.
void VllmV1::build_prefill_first(Ps now, Batch& batch, StepBudget& budget) {
  if (schedule_running(batch, budget, Only::kPrefills)) schedule_waiting(now, batch, budget);
  if (batch.empty()) schedule_running(batch, budget, Only::kDecodes);
  if (batch.empty())
    schedule_running(batch, budget);  // nothing but prompts, which stand in each other's way
}

inline std::int32_t VllmV1::tokens_wanted(RequestId request, const Sequence& s,
                                          std::int32_t budget) const {
  // A step in flight already samples the last token: with async scheduling a stop by length is
  // foreseen.
  if (config_.output_length_known && s.num_in_flight > 0 &&
      s.num_computed + 2 - s.num_in_flight >= s.prompt_tokens + sequences_.max_tokens(request))
    return 0;
  std::int32_t wanted = s.num_tokens + s.num_drafts + s.num_in_flight - s.num_computed;
  if (prompt_cap_ > 0) wanted = std::min(wanted, prompt_cap_);
  return std::min({wanted, budget, config_.kv.max_model_len - 1 - s.num_computed});
}

std::int32_t VllmV1::tokens_of_turn(RequestId request, std::int32_t budget) const {
  return tokens_wanted(request, sequences_[request], budget);
}

bool VllmV1::schedule_running(Batch& batch, StepBudget& budget, Only only) {
  const std::int32_t in_flight = config_.async_scheduling ? 1 : 0;  // that a token adds
  for (std::size_t i = 0; i < running_.size() && budget.left() > 0; ++i) {
    const RequestId request = running_[i];
    Sequence& s = sequences_[request];
    if (s.num_tokens < s.fast_until_tokens && s.num_computed < s.fast_computed &&
        only != Only::kPrefills && s.num_tokens + s.num_in_flight - s.num_computed == 1) {
      batch.items.push_back({request, 1, s.num_computed, s.epoch, 0, true});
      ++s.num_computed;
      s.num_in_flight += in_flight;
      budget.take(1);
      continue;
    }
    if (only != Only::kAll && prefilling(s) != (only == Only::kPrefills)) continue;
    if (config_.decode_interval > 1 && calls_ < s.next_decode_call) continue;
    if (defers_prompts_ && s.in_prompt) continue;
    const std::int32_t wanted = tokens_wanted(request, s, budget.left());
    const std::int32_t tokens = cut_prompt(
        request, s, s.num_computed, kv_.cut(request, s, s.num_computed, wanted, most_of_prompt()));
    if (tokens <= 0) continue;
    const std::int32_t slots = s.num_computed + tokens + config_.speculation.lookahead;
    if (!kv_.grow(request, s, slots) &&
        (only == Only::kPrefills || !make_room(request, slots, batch, budget, i))) {
      if (!passes_own_victim(s)) return false;
      --i;  // the next request stands in its place
      continue;
    }
    some_run_ = true;
    some_prompts_run_ |= s.in_prompt;
    if (encoder_.on()) encoder_.encode_planned(request);
    run(request, tokens, batch);
    budget.take(tokens);
  }
  return true;
}

// Computed tokens advance when scheduled, so that a chunk can go on before the model has answered.
void VllmV1::run(RequestId request, std::int32_t tokens, Batch& batch) {
  Sequence& s = sequences_[request];
  const std::int32_t before = s.num_computed;
  const std::int32_t drafts = std::max(0, before + tokens - s.num_tokens - s.num_in_flight);
  s.num_computed += tokens;
  kv_.register_full(request, std::min(s.num_computed, s.num_tokens));
  const bool ends = s.num_computed == s.num_tokens + s.num_in_flight + drafts;
  const bool padded = drafts > 0 && s.num_drafts == 0;
  s.num_drafts = 0;
  s.in_prompt = !ends;
  if (config_.async_scheduling && ends) s.num_in_flight += 1 + drafts;
  const bool early = !ends && samples_early(request);
  if (early) ++ahead_[at(request)].sampled;
  const bool emits = ends || early;
  batch.items.push_back({request, tokens, before, s.epoch, drafts, emits, padded});
  s.fast_until_tokens = 0;
  if (emits && may_take_fast_path() && !encoder_.holds(request)) calm(request, s, before);
}

bool VllmV1::samples_early(RequestId request) const {
  if (ahead_.empty() || ahead_[at(request)].tokens == 0) return false;
  const Sequence& s = sequences_[request];
  const Ahead& ahead = ahead_[at(request)];
  return s.num_computed + ahead.tokens >= s.num_tokens + ahead.sampled;
}

// Until then it neither ends, nor fills a block, nor needs another one or gives one back; `before`:
// what it had computed when this step began.
void VllmV1::calm(RequestId request, Sequence& s, std::int32_t before) const {
  const std::int32_t longest = config_.kv.max_model_len - 1;
  const KvCache::Kept kept = kv_.kept(request, s, before);
  s.fast_until_tokens = std::min(
      {s.prompt_tokens + sequences_.max_tokens(request) - 1, longest, kv_.next_key(s), kept.known});
  s.fast_computed = std::min({longest, kv_.slots(s), kept.computed});
}

// The proposer runs at the end of the step, for as many tokens as its table says for this many
// sequences. With async scheduling the next batch is formed before it has: then every sequence is
// taken to get all of them.
void VllmV1::leave_drafts(Batch& batch) {
  const SpeculationConfig& speculation = config_.speculation;
  const std::int32_t most = speculation.drafts_after(batch.items.size());
  std::int32_t deepest = batch.items.empty() ? most : 0;
  for (const Item& item : batch.items) {
    const std::int32_t drafts = speculation.drafts_of(item.request, most);
    deepest = std::max(deepest, drafts);
    if (config_.async_scheduling && !sequences_[item.request].in_prompt)
      leave_drafts(item.request, drafts);
  }
  batch.drafts_after = deepest;  // the proposer serves the deepest request
}

void VllmV1::leave_drafts(RequestId request, std::int32_t drafts) {
  sequences_[request].num_drafts = drafts;
  log_.drafts.drafted[request] += drafts;
}

// vLLM's finish_requests with FINISHED_ABORTED: blocks are free at once, even while a batch in
// flight writes them (unless `defer_block_free`), but not while a transfer does.
void VllmV1::abort(RequestId request) {
  drop(request);
  note_cancellation(sequences_[request], counters_);
}

void VllmV1::drop(RequestId request) {
  begun_beside_parked_.clear();
  const Sequence& s = sequences_[request];
  kv_.below().left(request, s.num_computed, KvBelow::Leave::kGaveUp);
  std::erase(partly_prefilled_, request);
  if (ranker_ != nullptr) leave_ranking(request);
  encoder_.release(request);
  if (s.status == static_cast<std::uint8_t>(Status::kWaiting)) {
    waiting_.remove(request);
  } else if (s.status == static_cast<std::uint8_t>(Status::kParked)) {
    // What is on its way into the blocks has to arrive first.
    if (leaving_.leave(request, parked_.remove(request))) release(request, /*preempted=*/false);
  } else {
    running_.erase(std::find(running_.begin(), running_.end(), request));
    release(request, /*preempted=*/false);
  }
}

void VllmV1::update(const Batch& batch, std::vector<RequestId>& finished) {
  some_running_finished_ = false;
  if (defer_block_free()) late_.ended(batch, kv_);
  const std::int32_t in_flight = config_.async_scheduling ? 1 : 0;  // that a token ends
  std::int64_t calm = 0;
  if (!begun_beside_parked_.empty() && std::ranges::any_of(batch.items, &Item::emits))
    begun_beside_parked_.clear();
  for (const Item& item : batch.items) {
    Sequence& s = sequences_[item.request];
    if (item.emits && s.num_tokens < s.fast_until_tokens && s.epoch == item.epoch &&
        s.status == static_cast<std::uint8_t>(Status::kRunning)) {
      ++s.num_tokens;
      s.num_in_flight -= in_flight;
      log_.emit(item.request, 1);
      ++calm;
    } else {
      receive(item, batch.drafts_after, finished);
    }
  }
  counters_.generation_tokens += calm;
  if (some_running_finished_) {
    std::erase_if(running_, [this](RequestId request) {
      return sequences_[request].status == static_cast<std::uint8_t>(Status::kFinished);
    });
  }
  if (rank_events_ != nullptr) rank_events_->executed(batch);
  if (takes_turns_)
    for (const Item& item : batch.items) turn_ended_.push_back(item.request);
}

void VllmV1::receive(const Item& item, std::int32_t drafts_after,
                     std::vector<RequestId>& finished) {
  Sequence& s = sequences_[item.request];
  const auto status = static_cast<Status>(s.status);
  const bool current = s.epoch == item.epoch;
  if (status == Status::kFinished && current) {
    const std::int32_t beyond = item.computed_before + item.tokens - (s.num_tokens - 1);
    counters_.discarded_tokens += std::clamp(beyond, 0, item.tokens);
  }
  if (status == Status::kFinished || status == Status::kCancelled || status == Status::kFailed)
    return;
  if (!current) s.stale -= item.tokens;
  if (drops_stale() && !current) return;
  const SpeculationConfig& speculation = config_.speculation;
  const std::int32_t accepted = item.drafts == 0 || item.padded
                                    ? 0
                                    : speculation.accepted(item.request, s.emitted(), item.drafts,
                                                           log_.drafts.verifications[item.request]);
  const std::int32_t rejected = item.drafts - accepted;  // these roll back
  counters_.discarded_tokens += rejected;
  const bool counts = current || !config_.rules.awaits_output;  // in what it computes now
  if (counts && s.num_computed > 0) {
    s.num_computed -= rejected;
    if (!current) {  // what it has computed since is rolled back, too, as in vLLM
      counters_.discarded_tokens += rejected;
      if (!ahead_.empty()) ahead_[at(item.request)].tokens += rejected;
    }
  }
  if (counts && s.num_in_flight > 0) s.num_in_flight -= rejected;
  if (encoder_.on())
    encoder_.processed(item.request, s.num_computed - s.num_in_flight,
                       config_.speculation.prompt_lookahead);
  if (current) s.prompt_processed = item.computed_before + item.tokens - rejected;
  if (current)
    kv_.below().computed(item.request, item.computed_before,
                         item.computed_before + item.tokens - rejected);
  if (!item.emits) return;
  std::int32_t count = 0;
  bool stopped = false;
  while (count < 1 + accepted && !stopped) {  // a stop cuts off the drafts behind it
    ++s.num_tokens;
    ++count;
    stopped = stops(item.request, s);
  }
  // Nobody has counted on a token that was sampled early, and vLLM takes it off all the same.
  const bool early = current && !ahead_.empty() && ahead_[at(item.request)].sampled > 0;
  if (early) --ahead_[at(item.request)].sampled;
  if (config_.async_scheduling && counts) s.num_in_flight -= count;
  if (early) s.num_in_flight = std::max(0, s.num_in_flight);
  counters_.discarded_tokens += 1 + accepted - count;
  if (!current)
    counters_.recomputed_tokens -= rejected + 1 + accepted - count;  // lost, and not needed again
  if (item.drafts > 0) {
    counters_.speculation.add(item.drafts, accepted);
    counters_.speculation.emitted += count;
    log_.drafts.add(item.request, item.drafts, accepted, count);
  }
  log_.emit(item.request, count);
  if (!config_.kv_producer)
    counters_.generation_tokens += count;  // the decode side computes it again
  if (current) key_received(item.request, s);
  if (stopped) {
    finish(item.request, finished);
  } else if (speculation.on() && !config_.async_scheduling && current) {
    const std::int32_t drafts = speculation.drafts_of(item.request, drafts_after);
    const bool proposes = drafts > 0 && speculation.proposes(item.request, s.emitted());
    leave_drafts(item.request, proposes ? drafts : 0);
  }
}

void VllmV1::key_received(RequestId request, const Sequence& s) {
  if (config_.rules.keys_processed) {
    if (config_.async_scheduling || config_.speculation.on())
      kv_.register_full(request, s.processed());
  } else if (config_.async_scheduling) {
    kv_.register_full(request, s.num_computed - s.num_in_flight);
  }
}

void VllmV1::release(RequestId request, bool preempted) {
  if (defer_block_free()) {
    late_.release(request, preempted, kv_);
  } else {
    kv_.release(request, preempted);
  }
}

bool VllmV1::stops(RequestId request, const Sequence& s) const {
  return s.emitted() >= sequences_.max_tokens(request) || s.num_tokens >= config_.kv.max_model_len;
}

void VllmV1::finish(RequestId request, std::vector<RequestId>& finished) {
  Sequence& s = sequences_[request];
  if (ranker_ != nullptr) leave_ranking(request);
  encoder_.release(request);
  // The last token is never computed.
  kv_.below().left(request, std::max(s.prompt_tokens, s.num_tokens - 1), KvBelow::Leave::kEnded);
  if (s.status == static_cast<std::uint8_t>(Status::kWaiting)) {
    waiting_.remove(request);  // preempted while its last token was in flight
    counters_.recomputed_tokens -= s.num_tokens - 1;  // what it lost is never computed again
  } else {
    // Steps from before a preemption and the one after it may give it a token each for the same
    // computed one: what it then lacks is never computed.
    counters_.recomputed_tokens -= std::max(0, s.num_tokens - 1 - s.num_computed);
    some_running_finished_ = true;
    if (leaving_.leave(request, config_.kv_producer ? 1 : 0)) release(request, /*preempted=*/false);
  }
  s.status = static_cast<std::uint8_t>(Status::kFinished);
  ++counters_.finished;
  log_.finished(request);
  finished.push_back(request);
}

}  // namespace llmsim
