#include "scheduler/impl/sglang/takeover.h"

#include "scheduler/bookkeeping.h"

namespace llmsim {

namespace {

// Servers of at most so many running requests have room for others beside them.
constexpr std::int32_t kSmallBatch = 32;
constexpr std::int32_t kExtraRows = 2, kBuffers = 2;  // for each running request
// Slots behind a request that was alone and found no room: with overlap it decodes twice before the
// first output is heard, and would lose both if the second found none.
constexpr std::int64_t kStrandedSlots = 2;

}  // namespace

std::int32_t SglangTakeover::rows(const SchedulerConfig& config) {
  const std::int32_t extra = config.max_num_seqs <= kSmallBatch ? kExtraRows : 0;
  return config.max_num_seqs * (1 + extra);
}

SglangTakeover::SglangTakeover(const SchedulerConfig& config, std::int64_t new_tokens,
                               SequenceTable& sequences, SglangMemory& memory,
                               std::vector<SglangHeld>& held, SchedulerCounters& counters)
    : reserved_tokens_(value_of(kReservedTokens, config.parameters)),
      new_tokens_(new_tokens),
      most_transferring_(static_cast<std::size_t>(config.max_num_seqs) * kBuffers),
      sequences_(sequences),
      memory_(memory),
      held_(held),
      counters_(counters) {}

// While retracted requests wait, nobody else gets memory or a place. Where nobody runs who could
// make room for them, SGLang stands still for ever, and others go on here.
void SglangTakeover::pass(const std::vector<RequestId>& running, std::vector<RequestId>& waiting) {
  resume(std::ssize(running) + num_transferring() + std::ssize(waiting), waiting);
  if (!retracted_.empty() && !(running.empty() && waiting.empty())) return;
  preallocate(running, std::ssize(waiting));
  std::erase_if(transferring_, [&waiting](const Transferring& one) {
    if (one.here) waiting.push_back(one.request);
    return one.here;
  });
}

// SGLang lets a request for ever wait that finds no reserve in an empty cache; here it goes on.
void SglangTakeover::resume(std::int64_t active, std::vector<RequestId>& waiting) {
  std::size_t resumed = 0;
  for (; resumed < retracted_.size() && memory_.rows() > 0; ++resumed) {
    const RequestId request = retracted_[resumed];
    const std::int64_t next = held_[at(request)].stranded ? kStrandedSlots : 0;
    const std::int64_t needed = memory_.ceil(filled(request) + next) + reserved_tokens_;
    const auto others = active + static_cast<std::int64_t>(resumed);
    if (needed > spare(others, 0) && memory_.taken_rows() > 0) break;
    take_pages(request);
    held_[at(request)].stranded = false;
    Sequence& s = sequences_[request];
    s.num_computed = static_cast<std::int32_t>(filled(request));
    s.status = static_cast<std::uint8_t>(Status::kRunning);
    counters_.recomputed_tokens -= s.num_computed;
    waiting.push_back(request);
  }
  retracted_.erase(retracted_.begin(), retracted_.begin() + static_cast<std::ptrdiff_t>(resumed));
}

// One of those that run, going on alone, must find room for its answer in what the others leave.
void SglangTakeover::preallocate(const std::vector<RequestId>& running, std::int64_t waiting) {
  std::int64_t retractable = 0, longest = 0;
  for (const RequestId request : running) retractable += sequences_[request].num_tokens;
  for (const RequestId request : running) {
    const std::int64_t whole = sequences_[request].prompt_tokens + answer(request);
    longest = std::max(longest, whole - retractable);
  }
  std::size_t taken = 0;
  for (; taken < queue_.size(); ++taken) {
    if (transferring_.size() >= most_transferring_ || memory_.rows() <= 0) break;
    const std::int64_t active = std::ssize(running) + waiting + num_transferring();
    if (!reserve(queue_[taken], active, retractable, longest)) break;
    transferring_.push_back({queue_[taken]});
  }
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(taken));
}

bool SglangTakeover::reserve(RequestId request, std::int64_t active, std::int64_t retractable,
                             std::int64_t longest) {
  SglangHeld& held = held_[at(request)];
  Sequence& s = sequences_[request];
  held.prefix = held.kept = memory_.match(request, s.prompt_tokens, held);
  memory_.lock(held, held.found);
  const std::int64_t pages = memory_.ceil(s.prompt_tokens) - held.prefix;
  const std::int64_t needed = std::max(
      pages + reserved_tokens_, s.prompt_tokens - held.prefix + answer(request) - retractable);
  if (needed > spare(active, longest)) {
    memory_.unlock(held);
    return false;
  }
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
  memory_.make_room(memory_.ceil(end) - held.kept);
  memory_.take_row(held);
  memory_.grow(held, end);
  held.end = held.committed = end;
}

void SglangTakeover::landed(RequestId request) {
  std::ranges::find(transferring_, request, &Transferring::request)->here = true;
}

std::int32_t SglangTakeover::remove_transferring(RequestId request) {
  const auto one = std::ranges::find(transferring_, request, &Transferring::request);
  if (one == transferring_.end()) return -1;
  const std::int32_t expected = one->here ? 0 : 1;
  transferring_.erase(one);
  return expected;
}

}  // namespace llmsim
