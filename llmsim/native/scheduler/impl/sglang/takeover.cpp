#include "scheduler/impl/sglang/takeover.h"

#include <limits>
#include <span>

#include "scheduler/bookkeeping.h"

namespace llmsim {

namespace {

// Servers of at most so many running requests have room for others beside them.
constexpr std::int32_t kSmallBatch = 32;
constexpr std::int32_t kExtraRows = 2, kBuffers = 2;  // for each running request
constexpr std::int64_t kStrandedSlots = 2;            // without drafts, one of each decode

}  // namespace

std::int32_t SglangTakeover::rows(const SchedulerConfig& config) {
  const std::int32_t extra = config.max_num_seqs <= kSmallBatch ? kExtraRows : 0;
  return config.max_num_seqs * (1 + extra);
}

SglangTakeover::SglangTakeover(const SchedulerConfig& config, const SglangDrafts& drafts,
                               std::int64_t new_tokens, SequenceTable& sequences,
                               SglangMemory& memory, std::vector<SglangHeld>& held,
                               SchedulerCounters& counters)
    : reserved_tokens_(value_of(kReservedTokens, config.parameters)),
      new_tokens_(new_tokens),
      turns_(std::max(config.stages, config.micro_batches)),
      stranded_slots_(drafts.on() ? drafts.reserve() : kStrandedSlots),
      most_transferring_(static_cast<std::size_t>(config.max_num_seqs) * kBuffers),
      sequences_(sequences),
      memory_(memory),
      held_(held),
      counters_(counters) {}

void SglangTakeover::add(RequestId request) {
  held_[at(request)].seen = -1;
  queue_.push_back(request);
}

void SglangTakeover::retracted(RequestId request) {
  held_[at(request)].seen = -1;
  retracted_.push_back(request);
}

void SglangTakeover::see(std::int64_t turn) {
  const auto see = [this, turn](RequestId request) {
    std::int64_t& seen = held_[at(request)].seen;
    if (seen < 0) seen = turn;
  };
  std::ranges::for_each(queue_, see);
  std::ranges::for_each(retracted_, see);
  for (const Transferring& one : transferring_)
    if (one.here || one.withdrawn) see(one.request);
}

bool SglangTakeover::expects(std::int64_t turn) const {
  const auto is_new = [this, turn](RequestId request) { return !seen_by(turn, request); };
  return std::ranges::any_of(queue_, is_new) || std::ranges::any_of(retracted_, is_new) ||
         std::ranges::any_of(transferring_, [&is_new](const Transferring& one) {
           return (one.here || one.withdrawn) && is_new(one.request);
         });
}

// While retracted requests wait, nobody else gets memory, nor without stages a place. Where nobody
// runs who could make room for them, SGLang stands still for ever, and others go on here.
void SglangTakeover::pass(std::int64_t turn, const std::vector<RequestId>& running,
                          std::vector<RequestId>& waiting) {
  found_withdrawn_ = false;
  release_drained();
  resume(turn, std::ssize(running) + num_transferring() + std::ssize(waiting), waiting);
  const bool some_run =
      !running.empty() || !waiting.empty() || memory_.taken_rows() > parked_rows();
  const bool blocked = !retracted_.empty() && some_run;
  if (blocked && turns_ == 1) return;
  if (!blocked) preallocate(turn, running, std::ssize(waiting));
  end_transfers(turn, waiting);
}

void SglangTakeover::release_drained() {
  std::erase_if(draining_, [this](const Draining& one) {
    if (one.drained) memory_.release(held_[at(one.request)]);
    return one.drained;
  });
}

void SglangTakeover::end_transfers(std::int64_t turn, std::vector<RequestId>& waiting) {
  std::erase_if(transferring_, [this, turn, &waiting](const Transferring& one) {
    if (!seen_by(turn, one.request)) return false;
    if (one.withdrawn) {
      draining_.push_back({one.request, one.drained});
      found_withdrawn_ = true;
    } else if (one.here) {
      waiting.push_back(one.request);
    }
    return one.withdrawn || one.here;
  });
}

// Up to the end of the last whole page before it, a prefix in the tree ends with a whole window.
std::int64_t SglangTakeover::window_start(std::int64_t tokens) const {
  const bool fit = tokens + stranded_slots_ <= memory_.window_capacity();
  if (!memory_.windowed() || (!takes_ends() && fit)) return 0;
  const std::int64_t page = memory_.page_size(), window = memory_.window();
  const std::int64_t start =
      memory_.caching() ? tokens - 1 - std::max(window, page) : tokens - window;
  return std::max<std::int64_t>(0, start) / page * page;
}

// Of prompts that are longer than an end, none has an end longer than a page more.
std::int32_t SglangTakeover::longest_prompt() const {
  const std::int64_t page = memory_.page_size();
  const Tokens reserve = with_reserve({});
  std::int64_t tokens = memory_.capacity() - reserve.all;
  if (memory_.windowed()) {
    const std::int64_t windows = memory_.window_capacity() - reserve.windows;
    if (!takes_ends() || pages_of(tokens).windows + page > windows)
      tokens = std::min(tokens, windows);
  }
  return static_cast<std::int32_t>(tokens / page * page);
}

SglangTakeover::Tokens SglangTakeover::spare(std::int64_t active, const Tokens& longest) const {
  const std::int64_t free = takes_ends() ? memory_.available() : memory_.available_in_both();
  const std::int64_t reserved = std::max(reserved_tokens_ * active, longest.all);
  return {free + memory_.evictable() - reserved, spare_windows(active, longest.windows)};
}

// The windows of those that hold memory grow until each of them is whole.
std::int64_t SglangTakeover::spare_windows(std::int64_t active, std::int64_t longest) const {
  if (!takes_ends()) return std::numeric_limits<std::int64_t>::max();
  const std::int64_t free = memory_.window_available() + memory_.window_evictable();
  const std::int64_t used = memory_.window_capacity() - free;
  const std::int64_t growth = std::max<std::int64_t>(0, active * memory_.window() - used);
  return free - std::max(std::min(reserved_tokens_ * active, growth), longest);
}

// With pages of one token SGLang counts leaves of the tree as room for both kinds of layers, and
// ends where they have too few windows; here the request waits.
bool SglangTakeover::has_windows_for(RequestId request) const {
  return !memory_.windowed() ||
         missing_windows(request) <= memory_.window_available() + memory_.window_evictable();
}

// SGLang lets a request for ever wait that finds no reserve in an empty cache; here it goes on, and
// one that is longer than the pool of windows with its end alone.
void SglangTakeover::resume(std::int64_t turn, std::int64_t active,
                            std::vector<RequestId>& waiting) {
  const std::size_t before = waiting.size();
  for (const RequestId request : retracted_) {
    SglangHeld& held = held_[at(request)];
    if (!seen_by(turn, request) || (turn - held.seen) % turns_ != 0) continue;
    if (memory_.rows() <= 0) break;
    const std::int64_t next = held.stranded ? stranded_slots_ : 0;
    const Tokens needed = with_reserve(pages_of(filled(request) + next));
    const auto others = active + static_cast<std::int64_t>(waiting.size() - before);
    if (!memory_.make_room_for_states_of(held)) break;
    const bool fits = needed.fit(spare(others, {})) && has_windows_for(request);
    if (!fits && memory_.taken_rows() > 0) break;
    take_pages(request);
    held.stranded = false;
    Sequence& s = sequences_[request];
    s.num_computed = static_cast<std::int32_t>(filled(request));
    s.status = static_cast<std::uint8_t>(Status::kRunning);
    counters_.recomputed_tokens -= s.num_computed;
    waiting.push_back(request);
  }
  std::erase_if(retracted_, [&waiting, before](RequestId request) {
    const auto resumed = std::span(waiting).subspan(before);
    return std::ranges::find(resumed, request) != resumed.end();
  });
}

// One of those that run, going on alone, must find room for its answer in what the others leave.
SglangTakeover::Running SglangTakeover::summed(const std::vector<RequestId>& running) const {
  Tokens retractable, longest;
  for (const RequestId request : running) {
    const Sequence& s = sequences_[request];
    retractable.all += s.num_tokens;
    retractable.windows += slots_of(s.prompt_tokens).windows + s.emitted();
  }
  for (const RequestId request : running) {
    const Tokens prompt = slots_of(sequences_[request].prompt_tokens);
    longest.all = std::max(longest.all, prompt.all + answer(request) - retractable.all);
    longest.windows =
        std::max(longest.windows, prompt.windows + answer(request) - retractable.windows);
  }
  return {retractable, longest};
}

void SglangTakeover::preallocate(std::int64_t turn, const std::vector<RequestId>& running,
                                 std::int64_t waiting) {
  const Running sums = summed(running);
  const std::size_t before = transferring_.size();
  for (const RequestId request : queue_) {
    if (!seen_by(turn, request)) continue;
    const std::size_t buffers = transferring_.size() + draining_.size();
    if (buffers >= most_transferring_ || memory_.rows() <= 0) break;
    const std::int64_t active = std::ssize(running) + waiting + num_transferring();
    if (!reserve(request, active, sums)) break;
    transferring_.push_back({request});
  }
  const auto taken = std::span(transferring_).subspan(before);
  for (const Transferring& one : taken) held_[at(one.request)].seen = -1;
  std::erase_if(queue_, [&taken](RequestId request) {
    return std::ranges::find(taken, request, &Transferring::request) != taken.end();
  });
}

// The end of a prompt comes with its own windows, whatever the tree has of them. Whose answer is
// longer than the whole pool of windows waits in SGLang for ever, and goes on here.
bool SglangTakeover::reserve(RequestId request, std::int64_t active, const Running& running) {
  SglangHeld& held = held_[at(request)];
  Sequence& s = sequences_[request];
  if (!memory_.make_room_for_states_of(held)) return false;
  const std::int64_t shared = takes_ends() ? window_start(s.prompt_tokens) : s.prompt_tokens;
  held.prefix = held.kept = memory_.match(request, static_cast<std::int32_t>(shared), held);
  memory_.copy_state(held);
  memory_.lock(held, held.found);
  if (takes_ends()) memory_.unlock_window(held);
  Tokens slots = slots_of(s.prompt_tokens), pages = pages_of(s.prompt_tokens);
  slots.all -= held.prefix;
  pages.all -= held.prefix;
  Tokens needed = with_reserve(pages);
  needed.all = std::max(needed.all, slots.all + answer(request) - running.retractable.all);
  needed.windows =
      std::max(needed.windows, slots.windows + answer(request) - running.retractable.windows);
  const bool fits = needed.fit(spare(active, running.longest)) && has_windows_for(request);
  if (!fits && (active > 0 || memory_.taken_rows() > 0)) {
    memory_.unlock(held);
    return false;
  }
  if (takes_ends()) memory_.make_room(0, missing_windows(request));
  const std::int32_t cached = held.prefix;
  take_pages(request);
  s.status = static_cast<std::uint8_t>(Status::kParked);
  s.remote_kv = false;
  if (memory_.caching()) note_hit(s, cached, counters_);
  reserved_.push_back({request, cached});
  return true;
}

void SglangTakeover::take_pages(RequestId request) {
  SglangHeld& held = held_[at(request)];
  const auto end = static_cast<std::int32_t>(filled(request));
  memory_.take_states(held);
  memory_.make_room(memory_.ceil(end) - held.kept, missing_windows(request));
  memory_.take_row(held);
  memory_.grow(held, end);
  memory_.leave_out_windows(held, window_start(end));
  held.end = held.committed = end;
}

void SglangTakeover::landed(RequestId request) {
  std::ranges::find(transferring_, request, &Transferring::request)->here = true;
}

bool SglangTakeover::remove_waiting(RequestId request) {
  if (std::erase(queue_, request) + std::erase(retracted_, request) == 0) return false;
  memory_.return_state(held_[at(request)]);
  return true;
}

void SglangTakeover::withdraw(RequestId request) {
  std::ranges::find(transferring_, request, &Transferring::request)->withdrawn = true;
  held_[at(request)].seen = -1;
}

void SglangTakeover::drained(RequestId request) {
  const auto one = std::ranges::find(transferring_, request, &Transferring::request);
  if (one != transferring_.end()) {
    one->drained = true;
  } else {
    std::ranges::find(draining_, request, &Draining::request)->drained = true;
  }
}

}  // namespace llmsim
