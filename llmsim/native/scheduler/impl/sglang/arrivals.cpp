// Decode groups: requests whose KV has come join those that decode, with their first tokens.
#include "scheduler/bookkeeping.h"
#include "scheduler/impl/sglang/sglang.h"

namespace llmsim {

// The batch of first tokens and the step of decodes behind it are one step of SGLang's.
bool Sglang::take_over(Batch& batch) {
  looks_again_ = false;
  if (!joined_.empty()) {
    merge_joined();
    looks_again_ = true;
    return false;
  }
  takeover_->see(batches_);
  if (!staged()) pass_queues();
  join(batch);
  if (!batch.empty()) return true;
  merge_joined();
  return false;
}

// What all stages have agreed on happens: what turns before this one have seen, and its own one
// where there is one stage.
void Sglang::pass_queues() {
  if (priorities_) takeover_->order_by([this](RequestId request) { return rank(request); });
  const std::size_t before = waiting_.size();
  const std::int32_t queued = takeover_->num_queued();
  const std::int32_t parked = takeover_->num_transferring();
  takeover_->pass(batches_ - std::ssize(micro_batches_) + 1, running(), waiting_);
  looks_again_ |= takeover_->found_withdrawn();
  round_changed_ |= looks_again_ || waiting_.size() > before || queued != takeover_->num_queued() ||
                    parked != takeover_->num_transferring();
  for (std::size_t i = before; i < waiting_.size(); ++i) {
    SglangHeld& held = held_[at(waiting_[i])];
    if (sequences_[waiting_[i]].emitted() == 0) held.entry = entries_++;
  }
}

// Those whose KV is here, as far as there are places: a micro-batch may have all of the server's.
void Sglang::join(Batch& batch) {
  if (priorities_ && !waiting_.empty()) order_waiting();
  const std::int64_t left = config_.max_num_seqs - std::ssize(running());
  const auto places = std::min<std::int64_t>(std::max<std::int64_t>(0, left), std::ssize(waiting_));
  joined_.assign(waiting_.begin(), waiting_.begin() + places);
  waiting_.erase(waiting_.begin(), waiting_.begin() + places);
  round_changed_ |= !joined_.empty();
  bring_first_tokens(batch);
}

// Who was retracted has its tokens already. The tree takes all that has come at once, with the
// windows that came with it, however much of it others had computed.
void Sglang::bring_first_tokens(Batch& batch) {
  for (const RequestId request : joined_) {
    SglangHeld& held = held_[at(request)];
    Sequence& s = sequences_[request];
    const bool first = s.emitted() == 0;
    held.branch = 0;
    memory_.checkpoint(request, held, held.end, SglangMemory::Then::kGoesOn);
    if (!first) continue;
    s.status = static_cast<std::uint8_t>(Status::kRunning);
    batch.items.push_back({request, 0, s.prompt_tokens, s.epoch, 0, /*emits=*/true});
  }
  batch.takes_no_time = !batch.empty();
}

void Sglang::receive_first_token(RequestId request, std::vector<RequestId>& finished) {
  Sequence& s = sequences_[request];
  s.num_computed = s.prompt_tokens;
  note_start(request, s, log_.output_time(), held_[at(request)].prefix, /*prompt_elsewhere=*/true,
             log_, counters_);
  ++s.num_tokens;
  ++counters_.generation_tokens;
  log_.emit(request, 1);
  note_plain_outputs(request);
  if (s.emitted() >= answer_limit(request)) finish(request, finished);
}

void Sglang::merge_joined() {
  for (const RequestId request : joined_)
    if (held_[at(request)].row) running().push_back(request);
  joined_.clear();
}

// What is on its way into its pages has to arrive before they are free.
void Sglang::abort_taken_over(RequestId request) {
  if (takeover_->remove_waiting(request)) return;
  if (takeover_->is_transferring(request)) return takeover_->withdraw(request);
  if (std::erase(waiting_, request) == 0) return aborts_.push_back(request);
  leave(request);
}

}  // namespace llmsim
