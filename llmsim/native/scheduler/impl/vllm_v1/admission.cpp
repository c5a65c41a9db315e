// Who of the waiting and the parked requests may run, load or be parked.
#include <algorithm>
#include <stdexcept>

#include "scheduler/bookkeeping.h"
#include "scheduler/impl/vllm_v1/vllm_v1.h"
#include "scheduler/phase.h"

namespace llmsim {

void VllmV1::schedule_waiting(Ps now, Batch& batch, StepBudget& budget) {
  parked_.rewind();
  admit_waiting(now, batch, budget);
  if (!batch.empty() || !running_.empty() || parked_.empty() || !parked_.all_ready() ||
      !late_.empty())
    return;
  // Who has waited for KV lacks slots for drafts, and nobody will ever give any back: vLLM 0.30 and
  // earlier stand still for ever. The first of them begins without.
  parked_.rewind();
  while (parked_.next() >= 0 && !parked_.holds()) parked_.skip();
  const RequestId first = parked_.next();
  if (first >= 0 && admit_arrived(now, first, budget.left(), batch, /*slots_for_drafts=*/false) ==
                        Admission::kScheduled)
    budget.take(batch.items.back().tokens);
}

void VllmV1::admit_waiting(Ps now, Batch& batch, StepBudget& budget) {
  loras_.clear();
  if (config_.rules.counts_running_loras) {
    for (const RequestId request : running_) note_lora(request);
  } else {
    for (const Item& item : batch.items) note_lora(item.request);
    // Requests that a step passes over take no slot, and run again beside those that took theirs.
    // vLLM ends with an assertion then.
    const auto most = static_cast<std::size_t>(config_.limits.max_loras);
    if (loras_.size() > most) ++counters_.crowded_lora_steps;
  }
  while (budget.left() > 0 && num_running() < most_running_) {
    if (!holders_first()) pass_over_waiting(now);
    const RequestId arrived = next_parked();
    if (holders_first() && arrived < 0) pass_over_waiting(now);
    if (arrived < 0 && waiting_.empty()) return;
    // Where nothing runs and nothing more will arrive, only what is parked holds blocks.
    const bool stands_still =
        arrived >= 0 && running_.empty() && parked_.all_ready() && late_.empty();
    Admission admission = Admission::kNoRoom;
    const bool from_parked =
        arrived >= 0 && (waiting_.empty() || parked_first(arrived, waiting_.front(now)));
    if (from_parked) {
      admission = admit_parked(now, arrived, budget.left(), batch, stands_still);
    } else {
      const RequestId request = waiting_.front(now);
      const bool alone = stands_still && !begun_beside_parked_.insert(request).second;
      admission = sequences_[request].remote_kv ? reserve(now, request)
                                                : admit(now, request, budget.left(), batch, alone);
      // Head of line: nobody overtakes. But vLLM by priority would stand still for ever.
      if (admission == Admission::kNoRoom && stands_still)
        admission = admit_parked(now, arrived, budget.left(), batch, stands_still);
    }
    if (admission == Admission::kNoRoom) {
      if (!stands_still) return;
      parked_.skip();  // one of them has room: each left enough for those that were parked before
    }
    if (admission == Admission::kPassedOver) {
      if (from_parked) {
        pass_over_parked();
      } else {
        waiting_.pass_over(now);
      }
    }
    if (admission != Admission::kScheduled) continue;
    budget.take(batch.items.back().tokens);
    note_lora(batch.items.back().request);
  }
}

// Who waits for an output or for a slot of an adapter lets others go first.
void VllmV1::pass_over_waiting(Ps now) {
  while (!waiting_.empty() &&
         (awaits_output(waiting_.front(now)) || lacks_slot(waiting_.front(now))))
    waiting_.pass_over(now);
}

bool VllmV1::holders_first() const {
  const bool ranked = ranker_ != nullptr && ranker_->lists().waiting;
  return config_.rules.holders_first && !ranked;
}

RequestId VllmV1::next_parked() {
  RequestId request = parked_.next();
  for (; request >= 0 && lacks_slot(request); request = parked_.next()) {
    land();
    pass_over_parked();
  }
  return request;
}

// Where those that hold blocks have a queue of their own, who holds none any more leaves it.
void VllmV1::pass_over_parked() {
  const RequestId request = parked_.next();
  if (parked_.holds() || !config_.rules.holders_first) return parked_.skip();
  parked_.take();
  sequences_[request].status = static_cast<std::uint8_t>(Status::kWaiting);
  waiting_.add_passed_over(request);
}

bool VllmV1::parked_first(RequestId parked, RequestId waiting) const {
  const bool ranked = ranker_ != nullptr && ranker_->lists().waiting;
  if (ranked) return ranker_->before(parked, waiting);
  return config_.rules.holders_first || parked_.before(parked, waiting);
}

bool VllmV1::room_to_load(const Sequence& s, std::int32_t slots) const {
  const std::int32_t spare = spare_blocks();
  if (config_.reserve_full_isl && !kv_.fits_whole(s, s.num_tokens, hits_, spare)) return false;
  const std::int32_t own = kv_.blocks_for(verification_of_loads());
  return kv_.fits(s, slots, hits_, spare + own + blocks_still_needed());
}

void VllmV1::park(const ParkedQueue::Parked& parked) {
  Sequence& s = sequences_[parked.request];
  if (config_.kv.prefix_caching) note_hit(s, kv_.hit_tokens(hits_), counters_);
  if (is_parked(parked.request)) {
    parked_.park_again(parked);
  } else {
    leave_waiting(parked.request);
    sequences_.set_aside(parked.request);
    parked_.park(parked);
  }
  note_partly_prefilled(parked.request);
  s.status = static_cast<std::uint8_t>(Status::kParked);
}

// Pools lose chunks (vLLM: invalid_block_ids); what comes from another group comes whole or not at
// all (NIXL).
std::int32_t VllmV1::comes(RequestId request, std::int32_t hit, std::int32_t recalled,
                           std::int32_t loaded) {
  const std::int32_t below = hit + recalled;
  std::int32_t known =
      recalled > 0 ? load_failures_.next(request, hit, below, kv_.below().chunk_tokens()) : below;
  if (known == below) known = load_failures_.next(request, below, loaded, loaded);
  if (known == loaded) return loaded;
  if (config_.load_failures.loses_all) known = 0;
  ++counters_.failed_loads;
  counters_.lost_tokens += loaded - std::max(known, hit);
  return known;
}

// vLLM 0.24's scheduler with a connector that loads asynchronously (NIXL): all blocks of the prompt
// at once, beside what prompts under way still need, so that a load never takes their room; nothing
// is computed and no budget used. What the tiers below hold comes from there and not from the other
// group.
VllmV1::Admission VllmV1::reserve(Ps now, RequestId request) {
  Sequence& s = sequences_[request];
  kv_.find_hits(request, hits_);
  const std::int32_t loaded =
      s.num_tokens - (config_.prefill_all_but_last_token && s.num_tokens > 1);
  const std::int32_t slots = loaded + lookahead_of_loads();
  if (!room_to_load(s, slots)) return Admission::kNoRoom;
  const auto hit = kv_.hit_tokens(hits_);
  const std::int32_t recalled = kv_.below().find(request, hit);
  if (recalled > 0) {
    kv_.load(request, hit, recalled, slots, hits_);
    log_.begin_load(request, now);
  } else {
    kv_.allocate(request, slots, hits_);
  }
  const std::int32_t known = comes(request, hit, recalled, loaded);
  const bool whole = known == loaded;
  note_external(request, s, hit, loaded - hit, log_, counters_);
  park({request, std::min(hit + recalled, known), known, recalled > 0 ? 2 : 1, whole, !whole});
  s.remote_kv = false;  // only once: after a preemption it is computed here
  reserved_.push_back({request, hit + recalled});
  return Admission::kParked;
}

// The same with what the tiers below hold of the request.
VllmV1::Admission VllmV1::load(Ps now, RequestId request, std::int32_t hit, std::int32_t recalled) {
  const std::int32_t loaded = hit + recalled, slots = loaded + lookahead_of_loads();
  if (!room_to_load(sequences_[request], slots)) return Admission::kNoRoom;
  kv_.load(request, hit, recalled, slots, hits_);
  const std::int32_t known = comes(request, hit, recalled, loaded);
  note_external(request, sequences_[request], hit, recalled, log_, counters_);
  park({request, known, known, 1, /*remote=*/false, known < loaded});
  log_.begin_load(request, now);
  return Admission::kParked;
}

std::int32_t VllmV1::blocks_still_needed() const {
  const std::int32_t verification = verification_of_loads();
  const bool joined = config_.rules.joins_verification;
  std::int32_t blocks = 0;
  for (const RequestId request : partly_prefilled_) {
    const Sequence& s = sequences_[request];
    const std::int32_t whole = std::min(s.num_tokens, config_.kv.max_model_len);
    const std::int32_t tokens = whole + (joined ? verification : 0);
    blocks += std::max(0, kv_.blocks_for(tokens) - static_cast<std::int32_t>(s.blocks.size()));
    if (!joined) blocks += kv_.blocks_for(verification);
  }
  return blocks;
}

void VllmV1::land() {
  const RequestId request = parked_.next();
  if (parked_.holds()) {
    kv_.register_full(request, parked_.loaded());
  } else {
    kv_.release(request, /*preempted=*/true);
  }
}

// Of whom nothing has come looks for its prefix again, here and below.
VllmV1::Admission VllmV1::admit_parked(Ps now, RequestId request, std::int32_t budget, Batch& batch,
                                       bool alone) {
  if (parked_.holds()) return admit_arrived(now, request, budget, batch);
  land();
  return admit(now, request, budget, batch, alone);
}

// Its blocks are filled and get their keys; of a whole prompt the last token is computed again, to
// sample the next one.
VllmV1::Admission VllmV1::admit_arrived(Ps now, RequestId request, std::int32_t budget,
                                        Batch& batch, bool slots_for_drafts) {
  Sequence& s = sequences_[request];
  land();
  const std::int32_t computed = std::min(parked_.loaded(), s.num_tokens - 1);
  if (defers_prompts_ && config_.rules.admits_last_token && computed < s.num_tokens - 1)
    return Admission::kNoRoom;
  std::int32_t most = first_tokens(s, computed, budget);
  // Nor do drafts pad it.
  if (!slots_for_drafts) most = std::min(most, s.num_tokens - computed);
  if (most == 0) return Admission::kNoRoom;
  const std::int32_t tokens = cut_prompt(request, s, computed, most);
  if (tokens == 0) return cut_off();
  hits_.clear();  // it holds them already
  const std::int32_t slots =
      computed + tokens + (slots_for_drafts ? config_.speculation.lookahead : 0);
  const bool whole = !config_.reserve_full_isl || kv_.fits(s, s.num_tokens, hits_, spare_blocks());
  if (!whole || !kv_.fits(s, slots, hits_, spare_blocks())) {
    encoder_.release(request);
    return Admission::kNoRoom;
  }
  kv_.grow(request, slots);
  const std::int32_t cached = parked_.cached();
  const bool elsewhere = parked_.remote();  // else the rest of the prompt is computed in this group
  if (elsewhere) kv_.below().computed(request, cached, parked_.loaded());  // but it is new here
  parked_.take();
  start(request, computed);
  note_start(request, s, now, cached, elsewhere, log_, counters_);
  if (encoder_.on()) encoder_.encode_planned(request);
  run(request, tokens, batch);
  return Admission::kScheduled;
}

// vLLM from 0.25 on keeps the full graph of a step of uniform verifications: who would add one
// token to it adds as many as the others, or waits for a step with room for them.
std::int32_t VllmV1::first_tokens(const Sequence& s, std::int32_t computed,
                                  std::int32_t budget) const {
  const StepLimitsConfig& limits = config_.limits;
  const std::int32_t padded = 1 + config_.speculation.tokens;
  const bool pads = limits.pads_new_decodes && config_.speculation.on() &&
                    config_.speculation.tokens_by_sequences.empty() &&
                    padded <= config_.max_num_scheduled_tokens && !some_prompts_run_ &&
                    (some_run_ || (limits.pads_hits && computed > 0));
  if (pads && s.num_tokens - computed == 1) {
    const std::int32_t ahead = limits.pads_within_context ? 1 : 0;  // of the token that is sampled
    const bool fits = computed + padded + ahead <= config_.kv.max_model_len;
    if (fits || !limits.pads_within_context) return fits && padded <= budget ? padded : 0;
  }
  std::int32_t tokens = s.num_tokens - computed;
  if (prompt_cap_ > 0) tokens = std::min(tokens, prompt_cap_);
  if (!config_.chunked_prefill && tokens > budget) return 0;
  return std::min(tokens, budget);
}

void VllmV1::start(RequestId request, std::int32_t computed) {
  Sequence& s = sequences_[request];
  if (is_parked(request)) begun_beside_parked_.clear();
  running_.push_back(request);
  s.status = static_cast<std::uint8_t>(Status::kRunning);
  s.num_computed = s.prompt_processed = computed;
  s.started_with = s.num_tokens;
  s.aside = 0;
  some_prompts_start_ |= computed < s.num_tokens - 1;
}

void VllmV1::use_copies(GroupCopies& copies) {
  if (config_.kv_producer || config_.kv_consumer || config_.decode_only)
    throw std::invalid_argument("KV that is handed over does not go with KV offloading");
  if (ranker_ != nullptr)
    throw std::invalid_argument("rankings of requests do not go with KV offloading");
  if (config_.load_failures.on())
    throw std::invalid_argument("loads that fail do not go with KV offloading");
  offloading_ = &kv_.use_offloading(config_.offloading, copies);
}

void VllmV1::take_reserved(std::vector<Reserved>& out) {
  out.insert(out.end(), reserved_.begin(), reserved_.end());
  reserved_.clear();
}

bool VllmV1::transferred(RequestId request) {
  begun_beside_parked_.clear();
  if (!kv_.below().moved(request)) return true;
  if (is_parked(request)) {
    if (parked_.arrived(request) || config_.load_failures.recomputes) return true;
    drop(request);
    note_failure(sequences_[request], counters_);
    return false;
  }
  if (leaving_.transferred(request)) release(request, /*preempted=*/false);
  return true;
}

// Tokens of a waiting request whose KV is here, in the tiers, or brought along.
std::int32_t VllmV1::cached_tokens(RequestId request) {
  kv_.find_hits(request, hits_);
  const std::int32_t hit = kv_.hit_tokens(hits_);
  return std::max(hit + kv_.below().find(request, hit),
                  tokens_brought(sequences_[request], config_.decode_only));
}

// `alone`: only parked requests hold blocks, and it has begun beside them before, in vain. A prompt
// that does not fit whole would be preempted by itself and begin again for ever, as in vLLM.
VllmV1::Admission VllmV1::admit(Ps now, RequestId request, std::int32_t budget, Batch& batch,
                                bool alone) {
  Sequence& s = sequences_[request];
  kv_.find_hits(request, hits_);
  const std::int32_t hit = kv_.hit_tokens(hits_);
  const std::int32_t brought = tokens_brought(s, config_.decode_only);
  const std::int32_t recalled = kv_.below().find(request, hit);
  if (recalled == KvBelow::kLater) return Admission::kPassedOver;
  if (recalled > 0 && hit + recalled > brought && kv_.below().parks_for(request))
    return load(now, request, hit, recalled);
  const std::int32_t cached = std::max(hit + recalled, brought);
  if (defers_prompts_ && !(config_.rules.admits_last_token && cached >= s.num_tokens - 1))
    return Admission::kNoRoom;
  const std::int32_t most =
      kv_.cut(request, s, cached, first_tokens(s, cached, budget), most_of_prompt());
  if (most == 0) return Admission::kNoRoom;
  const std::int32_t tokens = cut_prompt(request, s, cached, most);
  if (tokens == 0) return cut_off();
  const std::int32_t spare = spare_blocks();
  const std::int32_t whole = s.num_tokens + (alone ? config_.speculation.lookahead : 0);
  const bool fits_whole =
      !(config_.reserve_full_isl || alone) || kv_.fits_whole(s, whole, hits_, spare);
  const std::int32_t slots = cached + tokens + config_.speculation.lookahead;
  if (!fits_whole || !kv_.fits(s, slots, hits_, spare)) {
    encoder_.release(request);
    return Admission::kNoRoom;
  }
  kv_.below().recall(request, hit, recalled);
  kv_.allocate(request, slots, hits_);

  leave_queues(request);
  start(request, cached);
  if (config_.kv.prefix_caching) note_hit(s, hit, counters_);
  if (kv_.below().there()) note_external(request, s, hit, recalled, log_, counters_);
  note_start(request, s, now, cached, /*prompt_elsewhere=*/false, log_, counters_);
  if (parks() && cached + tokens < s.num_tokens) note_partly_prefilled(request);
  if (encoder_.on()) encoder_.encode_planned(request);
  run(request, tokens, batch);
  return Admission::kScheduled;
}

}  // namespace llmsim
