#include "scheduler/impl/sglang/sglang.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

#include "scheduler/bookkeeping.h"
#include "scheduler/impl/sglang/outline.h"

namespace llmsim {

namespace {

// Everything that the outline is known by, with the parameters of both.
SchedulerKind kind() {
  static constexpr Param kParams[] = {Sglang::kNewTokens,     SglangTakeover::kReservedTokens,
                                      Sglang::kPrefillTokens, Sglang::kMixedChunk,
                                      Sglang::kPolicy,        Sglang::kOverlap,
                                      Sglang::kPriorities,    Sglang::kLowFirst,
                                      Sglang::kPreemption,    Sglang::kThreshold,
                                      Sglang::kRetraction,    Sglang::kConservativeness,
                                      Sglang::kRecvInterval,  SglangDrafts::kTopk,
                                      SglangDrafts::kTokens};
  SchedulerKind kind = kind_of<SglangOutline>("sglang");
  kind.params = kParams;
  std::erase_if(kind.lacks, [](const Lack& lack) {
    return std::string_view(lack.feature) == "speculative_config";
  });
  kind.make = [](const SchedulerConfig& config, SequenceTable& sequences,
                 RequestLog& log) -> std::unique_ptr<Scheduler> {
    if (Sglang::runs(config)) return std::make_unique<Sglang>(config, sequences, log);
    return std::make_unique<SglangOutline>(config, sequences, log);
  };
  return kind;
}

const RegisterScheduler kSglang(kind());

// Tokens behind a page that its drafter has read: EAGLE's and MTP's see each token with the next
// one. Beside states the names of pages leave that out.
std::int32_t reads_ahead(const SchedulerConfig& config) {
  return config.speculation.on() && !config.state_pool.on() &&
         (config.kv.drops_last_hit || config.kv.key_lookahead > 0);
}

double conservativeness(const SchedulerConfig& config) {
  return static_cast<double>(value_of(Sglang::kConservativeness, config.parameters)) / 1000.0;
}

// Requests that may hold memory at once.
std::int32_t rows(const SchedulerConfig& config) {
  return config.kv_consumer ? SglangTakeover::rows(config) : config.max_num_seqs;
}

}  // namespace

bool Sglang::runs(const SchedulerConfig& config) {
  const bool ordered = config.queue.order != QueueOrder::kFcfs || config.ranking != nullptr;
  const bool other_cache = !config.kv.tables.plain() || config.kv.eviction != nullptr;
  const bool whole_pages = config.max_num_scheduled_tokens >= config.kv.block_size;
  return whole_pages && !config.decode_only && !ordered && !other_cache && !config.victim &&
         !config.tiered && !(config.stages > 1 && config.speculation.on());
}

Sglang::Sglang(const SchedulerConfig& config, SequenceTable& sequences, RequestLog& log)
    : config_(config),
      sequences_(sequences),
      log_(log),
      drafts_(config),
      memory_(config.kv.num_blocks - 1, config.kv.block_size, rows(config),
              config.kv.prefix_caching, sequences, reads_ahead(config), config.window_pool,
              config.state_pool, config.host_cache, counters_.host_cache),
      held_(sequences.size()),
      micro_batches_(static_cast<std::size_t>(std::max(config.stages, config.micro_batches))),
      recv_interval_(value_of(kRecvInterval, config.parameters)),
      chunk_(config.chunked_prefill
                 ? config.max_num_scheduled_tokens / config.kv.block_size * config.kv.block_size
                 : PromptBudget::kNoChunk),
      mixes_(value_of(kMixedChunk, config.parameters) != 0),
      overlaps_(value_of(kOverlap, config.parameters) != 0),
      priorities_(value_of(kPriorities, config.parameters) != 0),
      low_first_(value_of(kLowFirst, config.parameters) != 0),
      preempts_(priorities_ && value_of(kPreemption, config.parameters) != 0),
      retracts_by_priority_(priorities_ && value_of(kRetraction, config.parameters) != 0),
      policy_(static_cast<Policy>(value_of(kPolicy, config.parameters))),
      most_running_(std::max(1, config.max_num_seqs / config.stages)),
      new_tokens_(value_of(kNewTokens, config.parameters)),
      max_prefill_tokens_(value_of(kPrefillTokens, config.parameters)),
      threshold_(value_of(kThreshold, config.parameters)),
      first_ratio_(std::min(kFirstRatio * conservativeness(config), 1.0)),
      ratio_(first_ratio_),
      least_ratio_(std::min(first_ratio_ * kLeastShare, 1.0)),
      decay_((first_ratio_ - least_ratio_) / static_cast<double>(kDecaySteps)) {
  if (drafts_.on()) log_.drafts.resize(sequences.size());
  if (config.kv_consumer)
    takeover_.emplace(config, drafts_, new_tokens_, sequences_, memory_, held_, counters_);
}

// Tokens of a prompt and its answer, as SGLang bounds them.
std::int32_t Sglang::max_request_tokens() const {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(config_.kv.max_model_len, memory_.capacity()) - 1);
}

void Sglang::add(RequestId request) {
  Sequence& s = sequences_[request];
  s.status = static_cast<std::uint8_t>(Status::kWaiting);
  s.fast_until_tokens = 0;
  const std::int64_t page = memory_.page_size();
  const std::int64_t by_length = max_request_tokens() - s.prompt_tokens - 1;
  const std::int64_t by_memory = memory_.capacity() - memory_.ceil(s.prompt_tokens) - page - 1;
  std::int64_t limit = std::max<std::int64_t>(0, std::min(by_length, by_memory));
  if (config_.output_length_known)
    limit = std::min<std::int64_t>(limit, sequences_.max_tokens(request));
  held_[at(request)].limit = produces() ? 1 : static_cast<std::int32_t>(limit);
  if (recv_interval_ > 1 || memory_.storage() != nullptr) {
    arrived_.push_back(request);
  } else {
    enter(request);
  }
}

void Sglang::enter(RequestId request) {
  if (produces()) {
    if (memory_.storage() != nullptr) prefetch(request, SglangStorage::kUnknown);
    bootstrapping_.push_back(request);
  } else if (takeover_) {
    takeover_->add(request);
  } else {
    enter_queue(request);
  }
}

bool Sglang::receives() {
  if (recv_interval_ == 1) return true;
  const Ran ran = micro_batches_[turn_].ran;
  const bool idle = staged() ? memory_.taken_rows() == 0 : ran == Ran::kNothing;
  const bool spins = idle && flights_.empty();
  since_received_ += ran == Ran::kPrompts ? kWeightOfPrompts : 1;
  if (!spins && since_received_ < recv_interval_) return false;
  since_received_ = 0;
  return true;
}

void Sglang::receive() {
  for (const RequestId request : arrived_) enter(request);
  arrived_.clear();
  hear_aborts();
}

void Sglang::bootstrap() {
  for (; !bootstrapping_.empty() && buffers_ < kBuffersPerRequest * config_.max_num_seqs;
       bootstrapping_.pop_front(), ++buffers_)
    enter_queue(bootstrapping_.front());
}

void Sglang::enter_queue(RequestId request, bool retracted) {
  if (memory_.storage() != nullptr && !produces()) {
    if (retracted) held_[at(request)].retries = 0;
    if (retracted) held_[at(request)].looked_behind = -1;
    prefetch(request, SglangStorage::kUnknown);
  }
  held_[at(request)].entry = entries_++;
  held_[at(request)].joined_at = launched_;
  waiting_.push_back(request);
}

bool Sglang::has_requests() const {
  return !arrived_.empty() || !waiting_.empty() || !bootstrapping_.empty() ||
         memory_.taken_rows() > sending_.size() + draining() || (takeover_ && !takeover_->empty());
}

Limits Sglang::limits() const {
  std::int32_t longest = max_request_tokens() - 6;
  if (takeover_) longest = std::min(longest, takeover_->longest_prompt());
  return {.max_model_len = config_.kv.max_model_len - 2,
          .block_size = static_cast<std::int32_t>(memory_.page_size()),
          .usable_blocks = config_.kv.num_blocks - 1,
          .longest_prompt = longest};
}

std::int64_t Sglang::most_blocks(std::int64_t slots) const {
  const std::int64_t admitted = Scheduler::most_blocks(slots + 1) + 2;
  return std::max(admitted, Scheduler::most_blocks(slots - 1 + drafts_.reserve()));
}

Gauges Sglang::gauges() const {
  const std::int64_t page = memory_.page_size();
  const auto free = static_cast<std::int32_t>(memory_.available() / page);
  const auto cached = static_cast<std::int32_t>(memory_.evictable() / page);
  const auto rows = static_cast<std::int32_t>(memory_.taken_rows());
  const std::int64_t copied = rows > 0 ? 0 : memory_.tree().held() - memory_.tree().evictable();
  const std::int32_t parked = takeover_ ? takeover_->num_transferring() : 0;
  const std::int32_t taken_over = takeover_ ? takeover_->size() : 0;
  const std::size_t seen_at_once = recv_interval_ == 1 ? arrived_.size() : 0;
  const auto waiting =
      static_cast<std::int32_t>(waiting_.size() + bootstrapping_.size() + seen_at_once);
  return {.running = rows - parked - draining(),
          .waiting = waiting + taken_over,
          .parked = parked,
          .bound = sending_.size() + (takeover_ ? takeover_->num_expected() : 0),
          .copied = static_cast<std::int32_t>(copied),
          .pool = {config_.kv.num_blocks, free + cached, cached},
          .free_states = memory_.free_states()};
}

// Copies between device and host have to end first; with storage, `pass_idle` knows.
Ps Sglang::idle_from() {
  if (memory_.storage() != nullptr) return std::numeric_limits<Ps>::max();
  return memory_.host() == nullptr ? last_output_
                                   : std::max(last_output_, memory_.host()->last_copy());
}

bool Sglang::pool_consistent() const { return memory_.consistent(held_); }

// After an idle time the first micro-batch is the next one.
void Sglang::begin_turn() {
  turn_ = idle_ ? 0 : (turn_ + 1) % micro_batches_.size();
  if (turn_ == 0) before_ = {std::ssize(preempted_), touches_};
  ++batches_;
  if (!staged()) return;
  if (turn_ == 0) round_changed_ = false;
  release_sent(micro_batches_[turn_].sent);
  micro_batches_[turn_].sent.swap(sent_);
}

// Those whose KV has been sent, too, as long as they hold memory.
std::int32_t Sglang::unsent() const {
  std::size_t requests = at(sending_.size()) + sent_.size();
  for (const MicroBatch& micro : micro_batches_) requests += micro.sent.size();
  return static_cast<std::int32_t>(requests);
}

void Sglang::release_sent(std::vector<RequestId>& requests) {
  for (const RequestId request : requests) leave(request);
  buffers_ -= std::ssize(requests);
  requests.clear();
}

bool Sglang::begin_pass(Ps now, Batch& batch) {
  begin_turn();
  if (memory_.storage() != nullptr && !in_rounds_) pass_idle(now);
  if (memory_.host() != nullptr) memory_.host()->begin_pass(now);
  if (receives()) receive();
  bootstrap();
  if (memory_.host() != nullptr) memory_.host()->poll(now);
  if (memory_.storage() != nullptr) retry_prefetches();
  if (!in_rounds_ && idle_ && now > idle_from()) ratio_ = first_ratio_;
  idle_ = false;
  if (takeover_ && take_over(batch)) return false;
  merge_last();
  round_changed_ |= looks_again_;
  if (produces()) full() = false;
  last().prompts = !takeover_ && schedule_prompts(now, batch);
  return true;
}

void Sglang::schedule(Ps now, Batch& batch) {
  batch.clear();
  if (std::ssize(flights_) == most_flights()) return;
  if (turn_state_ == TurnState::kReleased) {
    turn_state_ = TurnState::kNew;
  } else if (staged() && !joined_.empty()) {  // they have brought first tokens in this turn
    merge_joined();
    merge_last();
  } else {
    if (!begin_pass(now, batch)) return;
    if (!last().prompts && withholds_decodes()) {
      turn_state_ = TurnState::kWithholds;
      return;
    }
  }
  if (!last().prompts && !running().empty()) schedule_decodes(batch);
  if (takeover_ && staged()) pass_queues();
  if (batch.empty()) {  // a micro-batch remembers what it ran last (`last_mbs`)
    if (!staged()) micro_batches_[turn_].ran = Ran::kNothing;
  } else {
    micro_batches_[turn_].ran = last().prompts ? Ran::kPrompts : Ran::kDecodes;
  }
  batch.features.add(batch.items);
  count_launched(batch);
  // The drafter reads prompts behind them, and drafts ahead of verifications.
  if (drafts_.on() && !batch.empty()) batch.drafts_after = last().prompts ? 1 : drafts_.steps();
  if (!batch.empty()) {
    flights_.push_back({batches_, last().prompts ? chosen_.size() : 0});
    batch.preempted.swap(preempted_);
    waits_for_copies_ = false;
    if (memory_.host() != nullptr) batch.not_before = memory_.host()->blocked_until();
  }
  finds_more_ = batch.empty() && flights_.empty() && finds_more(now);
  // Whoever waited has given up, or the last one has been sent.
  const bool ends_alone = memory_.storage() != nullptr || (staged() && (produces() || takeover_));
  if (ends_alone && batch.empty() && flights_.empty() && !has_requests()) {
    idle_ = true;
    last_output_ = now;
  }
  counters_.peak_blocks_used =
      std::max(counters_.peak_blocks_used, static_cast<std::int32_t>(memory_.used_pages()));
}

// SGLang's batch of decodes is that of the step of prompts that its first requests come from, whose
// tokens it therefore counts again with each step (`run_batch`: `extend_num_tokens`).
void Sglang::count_launched(const Batch& batch) {
  if (batch.empty()) return;
  if (last().prompts) last().tokens = batch.features.tokens;
  launched_ += last().prompts ? last().tokens : micro_batches_[turn_].first_tokens;
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
    if (held.end > held.prefix)
      memory_.checkpoint(cut_, held, held.end, SglangMemory::Then::kGoesOn);
    held.prefix = held.end;
  }
  if (last().prompts) {
    if (drop_ended(last().requests, last().cut)) full() = false;
    if (produces()) last().requests.clear();  // they decode elsewhere
    if (running().empty() && !last().requests.empty()) {
      running().swap(last().requests);
      micro_batches_[turn_].first_tokens = last().tokens;
      full() = false;
    } else {
      running().insert(running().end(), last().requests.begin(), last().requests.end());
    }
    last().requests.clear();
  }
  bool& some_ended = micro_batches_[turn_].some_ended;
  if (some_ended && drop_ended(running())) {
    full() = false;
    looks_again_ = takeover_.has_value();
  }
  some_ended = false;
}

void Sglang::run(const Item& item, Batch& batch) {
  Sequence& s = sequences_[item.request];
  SglangHeld& held = held_[at(item.request)];
  ++s.num_in_flight;
  s.num_computed = item.computed_before + item.tokens;
  held.flight = batches_;
  if (item.emits) ++held.ahead;
  batch.items.push_back(item);
}

void Sglang::decode(RequestId request, Batch& batch) {
  Sequence& s = sequences_[request];
  const std::int32_t before = s.num_tokens + held_[at(request)].ahead - 1;
  const std::int32_t computed = s.num_computed;
  run({request, 1, before, s.epoch, 0, /*emits=*/true}, batch);
  // Drafts of a verification in flight may reach beyond the answer, of which they are no part.
  s.num_computed = std::min(before, computed) + 1;
}

// What the devices know when the step runs: drafts of the step before it have held or not.
void Sglang::verify(RequestId request, Batch& batch) {
  Sequence& s = sequences_[request];
  SglangHeld& held = held_[at(request)];
  const std::int32_t before = s.num_tokens + held.ahead - 1;
  const std::int32_t emitted = s.emitted() + held.ahead;
  const std::int32_t nth = log_.drafts.verifications[request] + held.verifying;
  const std::int32_t held_drafts = drafts_.accepted(request, emitted, nth);
  const std::int32_t width = drafts_.width(), computed = s.num_computed;
  run({request, width, before, s.epoch, width - 1, /*emits=*/true}, batch);
  const std::int32_t missing = answer_limit(request) - emitted;  // behind steps in flight
  s.num_computed = missing > 0 ? before + std::min(1 + held_drafts, missing) : computed;
  held.ahead += held_drafts;
  ++held.verifying;
  log_.drafts.drafted[request] += width - 1;
}

void Sglang::update(const Batch& batch, std::vector<RequestId>& finished) {
  if (batch.takes_no_time) {
    for (const Item& item : batch.items) receive_first_token(item.request, finished);
    return;
  }
  const std::size_t prompts = flights_.front().prompts;
  flights_.pop_front();
  // Without requests nobody has asked for a step since the last output, when SGLang would have.
  if (memory_.host() != nullptr && !in_rounds_ && !has_requests()) {
    memory_.host()->begin_pass(last_output_);
    memory_.host()->poll(last_output_);
  }
  if (prompts == 0) note_saved_states(batch.items);
  for (std::size_t i = 0; i < prompts; ++i) receive(batch.items[i], /*decodes=*/false, finished);
  receive_decodes(std::span(batch.items).subspan(prompts), finished);
  if (memory_.host() != nullptr) memory_.host()->flush(log_.output_time());
  idle_ = flights_.empty() && !has_requests();
  last_output_ = log_.output_time();
}

std::int32_t Sglang::answer_limit(RequestId request) const {
  return std::min(std::max(1, held_[at(request)].limit), sequences_.max_tokens(request));
}

// Decodes that join a step of prompts save none.
void Sglang::note_saved_states(std::span<const Item> items) {
  if (memory_.states() == nullptr) return;
  for (const Item& item : items) {
    const Sequence& s = sequences_[item.request];
    SglangHeld& held = held_[at(item.request)];
    if (!held.row || s.epoch != item.epoch) continue;
    const std::int32_t computed = 1 + accepted(item);
    const bool ends = held.leaving || s.emitted() + computed >= answer_limit(item.request);
    memory_.states()->decoded(held.states, held.committed, held.committed + computed, ends);
  }
}

void Sglang::receive_decodes(std::span<const Item> items, std::vector<RequestId>& finished) {
  std::int64_t plain = 0;
  for (const Item& item : items) {
    Sequence& s = sequences_[item.request];
    const bool goes_on = s.num_tokens < s.fast_until_tokens && s.epoch == item.epoch &&
                         s.status == static_cast<std::uint8_t>(Status::kRunning);
    if (!goes_on) {
      receive(item, /*decodes=*/true, finished);
      continue;
    }
    SglangHeld& held = held_[at(item.request)];
    --s.num_in_flight;
    --held.ahead;
    ++s.num_tokens;
    ++held.committed;
    log_.emit(item.request, 1);
    ++plain;
  }
  counters_.generation_tokens += plain;
}

// From its first token on; `receive_decodes` only counts them.
void Sglang::note_plain_outputs(RequestId request) {
  if (drafts_.on()) return;
  Sequence& s = sequences_[request];
  s.fast_until_tokens = s.prompt_tokens + answer_limit(request) - 1;
}

void Sglang::receive(const Item& item, bool decodes, std::vector<RequestId>& finished) {
  Sequence& s = sequences_[item.request];
  SglangHeld& held = held_[at(item.request)];
  if (s.epoch != item.epoch || (gone(item.request) && !held.row)) return discard_rejected(item);
  if (s.status == static_cast<std::uint8_t>(Status::kFinished)) {
    counters_.discarded_tokens += item.tokens;
    return;
  }
  --s.num_in_flight;
  if (!item.emits) return;
  receive_tokens(item);
  if (produces() && !held.leaving && !gone(item.request)) return hand_over(item.request, finished);
  if (held.leaving || produces() || s.emitted() >= answer_limit(item.request))
    return finish(item.request, finished);
  if (decodes) {
    if (item.drafts == 0) ++held.committed;
    return;
  }
  memory_.checkpoint(item.request, held, held.end, SglangMemory::Then::kGoesOn);
  held.prefix = held.end;
  note_plain_outputs(item.request);
}

std::int32_t Sglang::accepted(const Item& item) const {
  if (item.drafts == 0) return 0;
  return drafts_.accepted(item.request, sequences_[item.request].emitted(),
                          log_.drafts.verifications[item.request]);
}

// The request was retracted meanwhile: what held is computed again.
void Sglang::discard_rejected(const Item& item) {
  if (item.drafts == 0) return;
  const std::int32_t missing =
      std::max(0, answer_limit(item.request) - sequences_[item.request].emitted());
  counters_.discarded_tokens += item.tokens - std::min(1 + accepted(item), missing);
}

void Sglang::receive_tokens(const Item& item) {
  Sequence& s = sequences_[item.request];
  SglangHeld& held = held_[at(item.request)];
  const std::int32_t drafts = accepted(item);
  const std::int32_t count = std::min(1 + drafts, answer_limit(item.request) - s.emitted());
  held.ahead -= 1 + drafts;
  s.num_tokens += count;
  if (item.drafts > 0) {
    held.committed += 1 + drafts;
    --held.verifying;
    counters_.discarded_tokens += item.tokens - count;
  }
  if (gone(item.request)) return;                         // nobody hears of it
  if (!produces()) counters_.generation_tokens += count;  // the decode side computes it again
  if (item.drafts > 0) {
    counters_.speculation.add(item.drafts, drafts);
    counters_.speculation.emitted += count;
    log_.drafts.add(item.request, item.drafts, drafts, count);
  }
  log_.emit(item.request, count);
}

void Sglang::leave(RequestId request) {
  SglangHeld& held = held_[at(request)];
  const std::int32_t written = drafts_.on() ? held.committed : held.slots;
  const bool cancelled = drafts_.on() && held.leaving;
  // What a prefill group has computed for nobody is no prefix of others.
  if (!produces() || !gone(request))
    memory_.checkpoint(request, held, written,
                       cancelled ? SglangMemory::Then::kCancelled : SglangMemory::Then::kEnds);
  memory_.release(held);
  for (MicroBatch& micro : micro_batches_) micro.some_ended = true;
}

void Sglang::hand_over(RequestId request, std::vector<RequestId>& finished) {
  memory_.checkpoint(request, held_[at(request)], held_[at(request)].end,
                     SglangMemory::Then::kGoesOn);
  sequences_[request].status = static_cast<std::uint8_t>(Status::kFinished);
  (void)sending_.leave(request, 1);
  ++counters_.finished;
  log_.finished(request);
  finished.push_back(request);
}

bool Sglang::transferred(RequestId request) {
  if (takeover_ && gone(request)) {
    takeover_->drained(request);
  } else if (takeover_) {
    takeover_->landed(request);
  } else if (sending_.transferred(request)) {
    sent_.push_back(request);
    if (!staged()) release_sent(sent_);
  }
  return true;
}

void Sglang::finish(RequestId request, std::vector<RequestId>& finished) {
  leave(request);
  if (produces()) --buffers_;
  if (gone(request)) return settle(request);
  sequences_[request].status = static_cast<std::uint8_t>(Status::kFinished);
  ++counters_.finished;
  log_.finished(request);
  finished.push_back(request);
}

// Who waits leaves at once, or with the next look for requests. Who runs ends with its next output
// that the scheduler has not seen yet, and a prompt that goes on is not gone on with; both are told
// before the next step is formed.
void Sglang::abort(RequestId request) {
  sequences_[request].status = static_cast<std::uint8_t>(Status::kCancelled);
  ++counters_.cancelled;
  settle(request);
  if (memory_.storage() != nullptr) return aborts_.push_back(request);
  if (std::erase(arrived_, request) > 0) return;
  if (takeover_) return abort_taken_over(request);
  if (recv_interval_ > 1 || !leave_queue(request)) aborts_.push_back(request);
}

bool Sglang::leave_queue(RequestId request) {
  const bool bootstrapped = std::erase(bootstrapping_, request) == 0;
  if (bootstrapped && std::erase(waiting_, request) == 0) return false;
  if (memory_.storage() != nullptr) memory_.storage()->release(request);
  if (produces() && bootstrapped) --buffers_;
  return true;
}

void Sglang::settle(RequestId request) {
  const Sequence& s = sequences_[request];
  SglangHeld& held = held_[at(request)];
  const std::int64_t lost = std::max(0, s.lost_to - s.num_computed);
  counters_.recomputed_tokens -= lost - held.settled;
  held.settled = lost;
}

void Sglang::hear_aborts() {
  for (const RequestId request : aborts_) {
    if (leave_queue(request)) {
      settle(request);  // it may have run since
      continue;
    }
    SglangHeld& held = held_[at(request)];
    held.leaving = true;
    if (cut_ != request) continue;
    cut_ = -1;
    memory_.release(held);
    settle(request);
    if (produces()) --buffers_;
  }
  aborts_.clear();
}

void Sglang::stop() {
  hear_aborts();
  for (std::size_t i = 0; i < held_.size(); ++i)
    if (held_[i].row && gone(static_cast<RequestId>(i))) memory_.release(held_[i]);
  for (MicroBatch& micro : micro_batches_) micro = {};
}

}  // namespace llmsim
