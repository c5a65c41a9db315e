#include "scheduler/impl/sglang/pools/memory.h"

#include <algorithm>

namespace llmsim {

// Without windows and states the prompt ends with a node of its own, so that the answer can
// go without it. Where others had computed more of the prompt than was found, for their windows
// were gone, the tree takes the prompt up to there, with the window of this request.
void SglangMemory::checkpoint(RequestId request, SglangHeld& held, std::int32_t computed,
                              Then then) {
  if (!caching_) return;
  std::int32_t up_to =
      then == Then::kCancelled ? computed : std::min(computed, sequences_[request].num_tokens);
  if (states_) {
    up_to = states_->cached_end(held.states, computed, up_to);
    if (up_to == 0) return;
    if (then == Then::kGoesOn && !make_room_for_given_state(held)) return;
  }
  const auto page = static_cast<std::int32_t>(page_);
  const std::int32_t named = up_to - keys_.lookahead();  // tokens that have a key
  const bool branches = held.branch > held.kept && held.branch <= named;
  const std::int32_t tokens = branches ? held.branch + keys_.lookahead() : up_to;
  if (then == Then::kGoesOn) slide_window(held, tokens - keys_.lookahead() - 1, 1);
  const std::int32_t pages = keys_.whole_pages(tokens);
  const RadixTree::Taken taken = tree_.insert(request, {.pages = pages,
                                                        .own = held.kept / page,
                                                        .inserted = held.inserted / page,
                                                        .window_from = held.behind_window / page});
  take_back({taken.copies, taken.window_copies});
  if (states_) hand_over_state(held, then, taken.state);
  held.inserted = std::max(held.inserted, pages * page);
  const std::int32_t prompt = keys_.whole_pages(sequences_[request].prompt_tokens);
  if (!windowed() && !states_ && prompt > 0 && prompt < pages)
    tree_.insert(request, {.pages = prompt, .own = prompt, .inserted = prompt});
  lock(held, taken.end.node);
  held.kept = pages * page;
  if (!branches) return;
  held.branch = 0;
  if (then == Then::kGoesOn) slide_window(held, named - 1, 1);
}

// Up to the end of the last whole page before it, a prefix in the tree ends with a whole window
// (mem_cache/common.py: free_swa_out_of_window_slots).
void SglangMemory::slide_window(SglangHeld& held, std::int64_t computed, std::int64_t interval) {
  if (!windowed() || computed - window_ < held.behind_window + interval) return;
  const std::int64_t first = std::max(held.behind_window, held.kept);
  const std::int64_t window = caching_ ? ceil(std::max(window_, page_)) : window_;
  const std::int64_t end = std::max(first, computed - window) / page_ * page_;
  window_free_ += (end - first) / page_;
  held.behind_window = static_cast<std::int32_t>(end);
}

bool SglangMemory::make_room_for_states(std::int64_t slots) {
  if (host_) host_->begin_walk();
  while (states_->available() < slots) {
    const RadixTree::Freed freed =
        host_ ? host_->evict_part(RadixTree::Kind::kStates) : tree_.evict_state();
    if (freed.states == 0) return false;
    take_back(freed);
  }
  return true;
}

// The request has computed on from the state behind its prefix.
bool SglangMemory::make_room_for_given_state(const SglangHeld& held) {
  const bool gives_up = states_->gives_up_prefix() && states_->available() == 0;
  if (gives_up) tree_.unlock_state(held.locked);
  const bool found = make_room_for_states(1);
  if (gives_up) tree_.lock_state(held.locked);
  return found;
}

bool SglangMemory::make_room_for_states_of(const SglangHeld& held) {
  return !states_ || make_room_for_states(states_->of_request() - held.states.slots);
}

// The state that it copies is not to make room for the copy.
void SglangMemory::copy_state(SglangHeld& held) {
  if (!states_ || held.found == RadixTree::kRoot || held.states.slots > 0) return;
  if (held.found != held.last) return;  // the state comes from the host
  const RadixTree::WindowTop top = tree_.lock(held.found);
  make_room_for_states(1);
  tree_.unlock(held.found, top);
  states_->take(held.states, 1);
}

void SglangMemory::take_states(std::span<const RequestId> requests, std::vector<SglangHeld>& all) {
  if (!states_) return;
  std::int64_t missing = 0;
  for (const RequestId request : requests)
    missing += states_->of_request() - all[static_cast<std::size_t>(request)].states.slots;
  make_room_for_states(missing);
  for (const RequestId request : requests)
    states_->take(all[static_cast<std::size_t>(request)].states, states_->of_request());
}

// A request that goes on has as many slots as before.
void SglangMemory::hand_over_state(SglangHeld& held, Then then, bool taken) {
  held.states.saved = held.states.before = 0;
  if (!taken) return;
  if (then == Then::kGoesOn) {
    states_->take(1);
  } else {
    states_->give_away(held.states);
  }
}

// A state comes to the tree, and to a slot of the request's own, for which room is made first.
std::int32_t SglangMemory::load_back(SglangHeld& held) {
  const RadixTree::WindowTop top = tree_.lock(held.last);
  const RadixTree::HostPin pin = host_->pin(held.last);
  const bool takes_slot = held.host_state && held.states.slots == 0;
  std::optional<RadixTree::Freed> loaded;
  if (!takes_slot || make_room_for_states(1)) {
    if (takes_slot) states_->take(held.states, 1);
    loaded = host_->load_back(held.last, held.states.slots > 0);
    if (takes_slot && !loaded) states_->take(held.states, 0);
  }
  if (loaded) {
    free_ -= loaded->pages;
    window_free_ -= loaded->window_pages;
    if (states_) states_->take(loaded->states);
  }
  tree_.unlock(held.last, top);
  host_->unpin(pin);
  return loaded ? held.last_end - held.prefix : 0;
}

void SglangMemory::release(SglangHeld& held) {
  free_ += own_pages(held);
  if (windowed()) window_free_ += own_window_pages(held);
  unlock(held);
  if (states_) states_->release(held.states);
  held.row = false;
  held.behind_window = held.branch = held.chunks = held.decodes = 0;
  held.slots = held.paged = held.kept = held.prefix = held.end = held.inserted = 0;
  held.committed = held.ahead = held.verifying = 0;
  ++rows_;
}

bool SglangMemory::consistent(std::span<const SglangHeld> all) const {
  std::int64_t own = 0, own_windows = 0, own_states = 0;
  for (const SglangHeld& held : all) {
    own_states += held.states.slots;
    if (!held.row) continue;
    own += own_pages(held);
    own_windows += own_window_pages(held);
  }
  const bool windows =
      !windowed() || window_free_ + tree_.window_held() + own_windows == window_pages_;
  const bool states =
      !states_ || states_->available() + tree_.states_held() + own_states == states_->capacity();
  return tree_.consistent() && windows && states && free_ + tree_.held() + own == pages_ &&
         (!host_ || host_->consistent());
}

}  // namespace llmsim
