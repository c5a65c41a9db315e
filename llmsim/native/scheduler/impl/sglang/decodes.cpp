// Steps of decodes: whether they fit, whom to retract, and what they take.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "scheduler/bookkeeping.h"
#include "scheduler/impl/sglang/sglang.h"

namespace llmsim {

bool Sglang::ends_with_output_in_flight(RequestId request) const {
  const SglangHeld& held = held_[at(request)];
  return held.flight == flights_.front().number && sequences_[request].emitted() + 1 >= held.limit;
}

// Those whose last token is on its way decode no more. Of SGLang's loops, `event_loop_overlap`
// alone looks for them (enable_skip_finishing_decode): the one of a decode server decodes them once
// more.
bool Sglang::leave_out_ending() {
  if (flights_.empty() || staged() || takeover_) return false;  // a stage's last step has ended
  return std::erase_if(running(), [this](RequestId request) {
           return ends_with_output_in_flight(request);
         }) > 0;
}

void Sglang::schedule_decodes(Batch& batch) {
  const bool some_end = leave_out_ending();
  if (some_end) full() = false;
  if (running().empty()) {
    full() = false;
    return;
  }
  if (decodes_fit(running())) {
    ratio_ = std::max(ratio_ - decay_, least_ratio_);
  } else if (some_end) {
    return;  // what they hold is free in a moment
  } else {
    retract();
    full() = false;
  }
  if (!running().empty()) form_decodes(batch, Decode::kVerifies);
}

std::int64_t Sglang::slots_to_decode(const SglangHeld& held) const {
  if (!drafts_.on()) return held.slots + 1;
  return std::max<std::int64_t>(held.slots, memory_.ceil(held.committed + drafts_.reserve()));
}

bool Sglang::decodes_fit(const std::vector<RequestId>& requests) {
  if (!drafts_.on() && memory_.page_size() == 1) return memory_.make_room(std::ssize(requests));
  std::int64_t tokens = 0;
  for (const RequestId request : requests) {
    const SglangHeld& held = held_[at(request)];
    tokens += memory_.missing(held, slots_to_decode(held));
  }
  return memory_.make_room(tokens);
}

// Whom to keep comes first: long answers, then short prompts.
void Sglang::retract() {
  std::vector<RequestId> kept = running(), retracted;
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
  if (kept.size() == 1 && !decodes_fit(kept)) {
    const bool holds_all = !staged() && !takeover_ && memory_.host() == nullptr && cut_ < 0;
    if (holds_all && !memory_.windowed())
      throw std::runtime_error("the KV cache does not hold request " + std::to_string(kept[0]) +
                               " alone");
    give_up(kept[0], 0);
    held_[at(kept[0])].stranded = looks_again_ = true;
    waits_for_copies_ = memory_.host() != nullptr && cut_ < 0;
    retracted.push_back(kept[0]);
    kept.clear();
  }
  running() = std::move(kept);
  std::int64_t written = 0, limits = 0;
  for (const RequestId request : running()) {
    written += sequences_[request].emitted();
    limits += held_[at(request)].limit;
  }
  const std::int64_t soon = written + kRetractDecodeSteps * std::ssize(running());
  ratio_ = std::min(1.0, static_cast<double>(soon) / static_cast<double>(limits + 1));
  for (const RequestId request : retracted) {
    if (takeover_) {
      held_[at(request)].entry = entries_++;
      takeover_->retracted(request);
    } else {
      enter_queue(request, /*retracted=*/true);
    }
  }
}

void Sglang::give_up(RequestId request, std::int64_t left) {
  memory_.release(held_[at(request)]);
  memory_.make_room(left * kRetractDecodeSteps);
  Sequence& s = sequences_[request];
  const std::uint8_t status = s.status;
  note_preemption(request, s, log_, counters_);
  if (status == static_cast<std::uint8_t>(Status::kCancelled)) s.status = status;
  s.num_in_flight = 0;
  preempted_.push_back(request);
}

// What their windows have left; the prompt of one that has not decoded yet may still be running.
void Sglang::slide_windows_of_decodes() {
  if (!memory_.windowed()) return;
  for (const RequestId request : running()) {
    SglangHeld& held = held_[at(request)];
    if (held.decodes++ > 0) memory_.slide_window(held, known(request) - 1, kSlideInterval);
  }
}

void Sglang::make_room_for_decodes() {
  const std::int64_t page = memory_.page_size(), pages = std::ssize(running()) * page;
  if (!drafts_.on()) {
    memory_.make_room(pages);
    return;
  }
  std::int64_t slots = 0;
  for (const RequestId request : running()) {
    const SglangHeld& held = held_[at(request)];
    slots += slots_to_decode(held) - held.slots;
  }
  if (slots > 0) memory_.make_room(page == 1 ? slots : slots + pages);
}

void Sglang::form_decodes(Batch& batch, Decode kind) {
  prepare_states_of_verifications(kind);
  slide_windows_of_decodes();
  make_room_for_decodes();
  for (const RequestId request : running()) {
    SglangHeld& held = held_[at(request)];
    memory_.grow(held, static_cast<std::int32_t>(slots_to_decode(held)));
    if (drafts_.on() && kind == Decode::kVerifies) {
      verify(request, batch);
    } else {
      decode(request, batch);
    }
  }
  launch_states_of_decodes(kind);
}

void Sglang::prepare_states_of_verifications(Decode kind) {
  if (memory_.states() == nullptr || !drafts_.on()) return;
  for (const RequestId request : running()) {
    SglangHeld& held = held_[at(request)];
    memory_.states()->prepare_verification(held.states, held.committed, kind == Decode::kPlain);
  }
}

// Decodes that join a step of prompts save nothing there.
void Sglang::launch_states_of_decodes(Decode kind) {
  SglangStates* states = memory_.states();
  if (states == nullptr) return;
  for (const RequestId request : running())
    states->launch_decode(held_[at(request)].states, sequences_[request].num_computed);
  if (kind != Decode::kPlain) return;
  for (const RequestId request : running())
    states->join_prompts(held_[at(request)].states, sequences_[request].num_computed);
}

}  // namespace llmsim
