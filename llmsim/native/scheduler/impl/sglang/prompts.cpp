// Steps of prompts: the order of the queue, and who is admitted.
#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <unordered_set>

#include "scheduler/bookkeeping.h"
#include "scheduler/impl/sglang/sglang.h"

namespace llmsim {

namespace {

// Beyond so many waiting requests the queue is not ordered by prefixes.
constexpr std::size_t kMostMatched = 128;
// Tokens: who has no longer a prefix in the cache waits for another waiting request that shares
// so many with it.
constexpr std::int32_t kSharedInQueue = 32;

}  // namespace

// Requests whose answers are cut at `limit` never begin to count less than what was written.
std::int64_t Sglang::answer_left(RequestId request) const {
  const std::int64_t left = held_[at(request)].limit - sequences_[request].emitted();
  return clipped(std::max<std::int64_t>(0, left));
}

double Sglang::promised() const {
  double tokens = 0;
  for (const RequestId request : running()) tokens += promised_to(request);
  return tokens;
}

double Sglang::promised_to(RequestId request) const {
  const std::int64_t left = held_[at(request)].limit - sequences_[request].emitted();
  return static_cast<double>(clipped(left)) * rate_of_answers();
}

bool Sglang::schedule_prompts(Ps now, Batch& batch) {
  if (running().empty() || preempts_ || memory_.windowed()) full() = false;
  if ((full() || waiting_.empty()) && cut_ < 0) return false;
  if (std::min(places(), memory_.rows()) <= 0 && cut_ < 0 && !preempts_) {
    full() = true;
    return false;
  }
  order_waiting();
  const bool mixed = mixes_ && std::ssize(running()) < chunk_;
  PromptBudget budget(memory_, max_prefill_tokens_, chunk_, mixed ? std::ssize(running()) : 0,
                      promised());
  chosen_.clear();
  last().cut = -1;
  if (cut_ >= 0) go_on(budget);
  admit_waiting(budget);
  for (const RequestId request : victims_) enter_queue(request);
  victims_.clear();
  if (chosen_.empty()) return false;
  form_prompts(now, batch);
  if (mixed && !running().empty()) mix_decodes(batch);
  return true;
}

// The prompt that the last step cut; it makes progress even if nothing is left of what admission
// counts on.
void Sglang::go_on(PromptBudget& budget) {
  SglangHeld& held = held_[at(cut_)];
  std::int64_t most = std::min(budget.chunk(), static_cast<std::int64_t>(budget.left()));
  if (memory_.windowed()) {
    most = std::min(most, budget.window_left() - memory_.page_size());
    if (most <= 0) return;
  }
  if (most <= 0) most = budget.chunk();
  const std::int64_t left = known(cut_) - held.prefix;
  most = std::min(most, most_beside_shorter(left, budget.chunked() ? budget.chunk() : 0));
  const std::int64_t room = memory_.available() + memory_.evictable();
  const std::int64_t tokens = std::min({left, most, room});
  if (tokens <= 0) return;
  const bool ends = tokens == left;
  held.end = held.prefix + static_cast<std::int32_t>(tokens);
  chosen_.push_back(cut_);
  budget.take(tokens, ends ? clipped(held.limit) : 0);
  if (ends) cut_ = -1;
}

void Sglang::admit_waiting(PromptBudget& budget) {
  std::vector<RequestId> left;
  ends_.clear();
  std::size_t next = 0;
  for (; next < waiting_.size(); ++next) {
    const RequestId request = waiting_[next];
    if (budget.state() == PromptBudget::State::kFull) break;
    std::int64_t rows = memory_.rows();
    for (const RequestId request : chosen_) rows += held_[at(request)].row;
    if (std::ssize(chosen_) >= std::min(places(), rows)) full() = true;
    if (full() && (!preempts_ || !preempt_for(request, budget))) break;
    if (memory_.storage() != nullptr && !has_prefetched(request)) {
      left.push_back(request);
      continue;
    }
    const std::size_t before = chosen_.size();
    const PromptBudget::State state = admit(request, budget);
    const bool goes_on = state == PromptBudget::State::kGoesOn;
    if (chosen_.size() > before && memory_.storage() != nullptr)
      memory_.storage()->admitted(request);
    if (goes_on) continue;
    if (state == PromptBudget::State::kNoMemory) full() = !chosen_.empty() || !running().empty();
    next += chosen_.size() - before;
    break;
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(next));
  waiting_.insert(waiting_.begin(), left.begin(), left.end());
}

// What it needs is counted as when it was last tried, which may be never.
bool Sglang::preempt_for(RequestId request, PromptBudget& budget) {
  const SglangHeld& held = held_[at(request)];
  const std::int64_t tokens = held.filled - held.prefix + clipped(held.limit);
  const std::vector<RequestId> victims =
      victims_for(request, static_cast<double>(tokens) - budget.left());
  if (victims.empty()) return false;
  std::int64_t left = std::ssize(running());
  for (const RequestId running : running()) {
    if (std::ranges::find(victims, running) == victims.end()) continue;
    budget.forgo(promised_to(running));
    give_up(running, --left);
  }
  std::erase_if(running(), [this](RequestId running) { return !held_[at(running)].row; });
  victims_.insert(victims_.end(), victims.begin(), victims.end());
  return true;
}

// Whoever is less important by more than the threshold, as far as it takes; nobody where that is
// not enough.
std::vector<RequestId> Sglang::victims_for(RequestId request, double tokens) const {
  std::vector<RequestId> victims = running();
  std::ranges::sort(victims, std::greater<>(), [this](RequestId running) {
    return std::pair(rank(running), held_[at(running)].entry);
  });
  std::size_t count = 0;
  for (; count == 0 || tokens > 0; ++count) {
    if (count == victims.size() || rank(victims[count]) - rank(request) <= threshold_) return {};
    tokens -= promised_to(victims[count]);
  }
  victims.resize(count);
  return victims;
}

Sglang::Admission Sglang::select(RequestId request, const Cached& cached, std::int64_t needed,
                                 const PromptBudget& budget) const {
  if (static_cast<double>(needed) >= budget.left()) return {};
  constexpr auto kFull = PromptBudget::State::kFull;
  const std::int64_t page = memory_.page_size(), left = known(request) - cached.tokens;
  const std::int64_t paged = memory_.ceil(left);
  std::int64_t chunk = budget.chunk();
  if (memory_.windowed())
    chunk = budget.window_chunk(paged, answer_left(request), cached.loaded_windows);
  if (chunk <= 0 && memory_.windowed()) return {};
  std::int64_t tokens = left;
  bool cut = false;
  if (!budget.chunked()) {
    if (!chosen_.empty() && paged >= budget.input()) tokens = 0;
  } else if (paged > chunk) {
    if (policy_ == Policy::kShortestPrefill && cut_ >= 0) return {0, false, kFull};
    cut = true;
    tokens = (cached.tokens + chunk / page * page) / page * page - cached.tokens;
  }
  return {static_cast<std::int32_t>(std::max<std::int64_t>(0, tokens)), cut, kFull};
}

// What the host holds of its prefix is loaded: a longer prefix leaves less to compute than was
// counted on, where layers with windows or states lacked theirs of it. Where it cannot be loaded,
// it is computed.
Sglang::Admission Sglang::load_back(RequestId request, Admission admission, std::int64_t needed,
                                    const PromptBudget& budget) {
  SglangHeld& held = held_[at(request)];
  const std::int32_t loaded = memory_.load_back(held);
  if (loaded < held.on_host) return select(request, {held.prefix, 0}, needed, budget);
  held.prefix = held.kept = held.prefix + loaded;
  if (loaded == held.on_host) return admission;
  admission.tokens = std::min(admission.tokens, known(request) - held.prefix);
  admission.cut = admission.cut && held.prefix + admission.tokens < known(request);
  return admission;
}

// What the host holds of its prefix takes memory, too, but is loaded instead of computed.
PromptBudget::State Sglang::admit(RequestId request, PromptBudget& budget) {
  SglangHeld& held = held_[at(request)];
  held.prefix = held.kept = memory_.match(request, known(request) - 1, held);
  held.filled = known(request);
  if (config_.output_length_known && !memory_.caching()) return admit_unshared(request, budget);
  memory_.copy_state(held);
  const std::int64_t needed =
      known(request) - held.prefix + answer_left(request) + memory_.page_size();
  const RadixTree::NodeId found = held.found;
  const RadixTree::WindowTop top = memory_.tree().lock(found);
  Admission admission =
      select(request, {held.prefix + held.on_host, held.host_windows}, needed, budget);
  const std::int32_t on_device = held.prefix;
  if (admission.tokens > 0 && held.on_host + held.host_windows + held.host_state > 0)
    admission = load_back(request, admission, needed, budget);
  const RadixTree::NodeId locked = held.prefix > on_device ? held.last : found;
  if (admission.tokens <= 0) {
    memory_.tree().unlock(found, top);
    memory_.return_state(held);
    return admission.refused;
  }
  memory_.lock(held, locked);  // and stays so
  memory_.tree().unlock(found, top);
  if (admission.cut) cut_ = request;
  return take(request, admission.tokens, admission.cut ? 0 : clipped(held.limit), budget);
}

PromptBudget::State Sglang::take(RequestId request, std::int32_t tokens, std::int64_t answer,
                                 PromptBudget& budget) {
  held_[at(request)].end = held_[at(request)].prefix + tokens;
  chosen_.push_back(request);
  budget.take(tokens, answer);
  return budget.state();
}

// Without a prefix cache, and with answers as long as their limits: whether all of them can be
// written to their ends, the shortest first.
bool Sglang::fits_to_their_ends(RequestId request, const PromptBudget& budget) {
  const auto end_of = [this](RequestId one) {
    const Sequence& s = sequences_[one];
    return End{held_[at(one)].limit - s.emitted(), s.num_tokens};
  };
  const auto shorter = [](const End& a, const End& b) { return a.left < b.left; };
  const End own = end_of(request);
  if (ends_.empty()) {
    if (own.left > 0) ends_.push_back(own);
    for (const auto* list : {&running(), &chosen_})
      for (const RequestId one : *list)
        if (end_of(one).left > 0) ends_.push_back(end_of(one));
    std::ranges::stable_sort(ends_, shorter);
  } else if (own.left > 0) {
    // The last place is before the longest one, whoever is longer.
    const auto last = std::prev(ends_.end());
    ends_.insert(
        std::find_if(ends_.begin(), last, [&own](const End& end) { return own.left <= end.left; }),
        own);
  }
  if (starved()) return true;
  const double left =
      budget.left_now() - static_cast<double>(memory_.ceil(known(request)) + memory_.page_size());
  std::int64_t freed = 0, count = std::ssize(ends_);
  for (const End& end : ends_) {
    if (left + static_cast<double>(freed - end.left * count) <= static_cast<double>(count))
      return false;
    freed += end.tokens;
    --count;
  }
  return true;
}

PromptBudget::State Sglang::admit_unshared(RequestId request, PromptBudget& budget) {
  const std::int64_t left = known(request);
  const auto paged = static_cast<double>(memory_.ceil(left) + memory_.page_size());
  if (paged > std::min(budget.left_now(), budget.left())) return PromptBudget::State::kNoMemory;
  const bool fits = memory_.windowed()
                        ? budget.window_tokens(left, answer_left(request)) <= budget.window_left()
                        : fits_to_their_ends(request, budget);
  if (!fits) return PromptBudget::State::kNoMemory;
  if (left <= budget.chunk())
    return take(request, static_cast<std::int32_t>(left), clipped(held_[at(request)].limit),
                budget);
  if (budget.chunk() <= 0) return PromptBudget::State::kFull;
  cut_ = request;
  return take(request, static_cast<std::int32_t>(budget.chunk()), 0, budget);
}

void Sglang::form_prompts(Ps now, Batch& batch) {
  std::int64_t tokens = 0;
  std::vector<RequestId> first;
  for (const RequestId request : chosen_) {
    SglangHeld& held = held_[at(request)];
    tokens += held.end - held.prefix;
    if (!held.row) first.push_back(request);
    memory_.take_row(held);
  }
  const std::int64_t page = memory_.page_size();
  if (memory_.host() != nullptr) batch.load = memory_.host()->start_loads();
  slide_windows_of_prompts();
  memory_.take_states(chosen_, held_);
  memory_.make_room(page == 1 ? tokens : tokens + std::ssize(chosen_) * page);
  for (const RequestId request : first) {
    Sequence& s = sequences_[request];
    const std::int32_t cached = held_[at(request)].prefix;
    if (!gone(request)) s.status = static_cast<std::uint8_t>(Status::kRunning);
    s.num_computed = cached;
    if (memory_.caching()) note_hit(s, cached, counters_);
    note_start(request, s, now, cached, /*prompt_elsewhere=*/false, log_, counters_);
  }
  for (const RequestId request : chosen_) {
    SglangHeld& held = held_[at(request)];
    memory_.grow(held, held.end);
    ++held.chunks;
    if (memory_.states() != nullptr)
      memory_.states()->compute_prompt(held.states, held.prefix, held.end);
    held.committed = held.end;
    const bool emits = held.end == known(request);
    run({request, held.end - held.prefix, held.prefix, sequences_[request].epoch, 0, emits}, batch);
  }
  if (memory_.overdrawn())
    throw OutOfKvMemory("a prompt finds no room in the KV cache at " + std::to_string(now) + " ps");
  last().requests = chosen_;
  last().cut = cut_;
}

// Without a prefix cache, what the windows of prompts that go on have left; with two steps in
// flight, the last chunk may still be running (schedule_batch.py: maybe_evict_swa).
void Sglang::slide_windows_of_prompts() {
  if (memory_.caching() || !memory_.windowed()) return;
  for (const RequestId request : chosen_) {
    SglangHeld& held = held_[at(request)];
    if (held.chunks == 0 || (overlaps_ && held.chunks < 2)) continue;
    const std::int64_t in_flight = overlaps_ && chunk_ != PromptBudget::kNoChunk ? chunk_ : 0;
    memory_.slide_window(held, held.prefix - in_flight, 1);
  }
}

// Decodes join the step where there is room for them; else they wait for the next one.
void Sglang::mix_decodes(Batch& batch) {
  if (leave_out_ending()) full() = false;
  if (running().empty() || !decodes_fit(running())) return;
  form_decodes(batch, Decode::kPlain);
  last().requests.insert(last().requests.end(), running().begin(), running().end());
  running().clear();
}

// ---- The waiting queue.

bool Sglang::orders_by_prefix() const {
  if (!memory_.caching()) return false;
  if (policy_ == Policy::kShortestPrefill) return true;
  const bool looks = policy_ == Policy::kLongestPrefix || policy_ == Policy::kHighestResponseRatio;
  return looks && waiting_.size() <= kMostMatched;
}

void Sglang::order_waiting() {
  if (orders_by_prefix()) return order_by_prefix();
  if (policy_ == Policy::kDepthFirst && memory_.caching()) return order_depth_first();
  const bool by_answer = policy_ == Policy::kLongestOutput;
  if (by_answer || priorities_)
    std::ranges::stable_sort(waiting_, {}, [this, by_answer](RequestId request) {
      const SglangHeld& held = held_[at(request)];
      return std::pair(priorities_ ? rank(request) : 0, by_answer ? -held.limit : held.entry);
    });
  touch_waiting();
}

void Sglang::order_depth_first() {
  std::vector<RadixTree::NodeId> nodes;
  for (const RequestId request : waiting_) {
    SglangHeld& held = held_[at(request)];
    memory_.match(request, known(request), held);
    nodes.push_back(held.found);
  }
  std::vector<RequestId> ordered;
  for (const std::size_t index : memory_.tree().depth_first(nodes))
    ordered.push_back(waiting_[index]);
  waiting_.swap(ordered);
}

// One of several that share a prefix goes first, so that the others find it in the cache.
void Sglang::order_by_prefix() {
  std::unordered_set<Key> first_tokens;
  std::vector<std::pair<Rank, RequestId>> ordered;
  for (const RequestId request : waiting_) {
    SglangHeld& held = held_[at(request)];
    const std::int32_t cached = memory_.match(request, known(request), held);
    held.matched = std::min(cached + held.on_host, known(request) - 1);
    bool deferred = false;
    if (cached <= kSharedInQueue && known(request) >= kSharedInQueue) {
      const Key shared = memory_.keys().prefix(request, kSharedInQueue);
      deferred = shared != 0 && !first_tokens.insert(shared).second;
    }
    ordered.emplace_back(rank_by_prefix(request, deferred), request);
  }
  std::ranges::stable_sort(ordered, {}, [](const std::pair<Rank, RequestId>& one) {
    return std::tuple(one.first.deferred, one.first.first, one.first.then);
  });
  for (std::size_t i = 0; i < ordered.size(); ++i) waiting_[i] = ordered[i].second;
}

// By the longest prefix, equal ones stay in their order. By the highest response ratio, who has
// nothing to compute is first; SGLang orders equal ratios by the requests' names, here by arrival.
Sglang::Rank Sglang::rank_by_prefix(RequestId request, bool deferred) const {
  const SglangHeld& held = held_[at(request)];
  if (policy_ == Policy::kShortestPrefill)
    return {deferred, static_cast<double>(tokens_to_compute(request)), held.entry};
  if (policy_ == Policy::kLongestPrefix)
    return {deferred, deferred ? 0.0 : static_cast<double>(-held.matched), 0};
  const std::int32_t left = sequences_[request].prompt_tokens - held.matched;
  if (deferred || left <= 0)
    return {deferred, deferred ? 0 : -std::numeric_limits<double>::infinity(), request};
  const auto waited = static_cast<double>(launched_ - held.joined_at);
  return {deferred, -(waited / static_cast<double>(left)), request};
}

std::int64_t Sglang::tokens_to_compute(RequestId request) const {
  return std::max(1, known(request) - held_[at(request)].matched);
}

std::int64_t Sglang::most_beside_shorter(std::int64_t left, std::int64_t chunk) const {
  const std::int64_t page = memory_.page_size();
  if (policy_ != Policy::kShortestPrefill || chunk < 2 * page) return PromptBudget::kNoChunk;
  std::int64_t reserved = 0;
  for (const RequestId request : waiting_) {
    const std::int64_t tokens = tokens_to_compute(request), paged = memory_.ceil(tokens);
    if (tokens >= left || reserved + paged > chunk - page) break;
    reserved += paged;
  }
  return reserved == 0 ? PromptBudget::kNoChunk : (chunk - reserved) / page * page;
}

// The head of the queue counts as used last.
void Sglang::touch_waiting() {
  if (waiting_.empty() || !memory_.caching()) return;
  if (touches_++ % kTouchInterval != 0) return;
  for (std::size_t i = std::min(waiting_.size(), kMostMatched); i-- > 0;) {
    SglangHeld& held = held_[at(waiting_[i])];
    memory_.match(waiting_[i], known(waiting_[i]), held);
  }
}

}  // namespace llmsim
