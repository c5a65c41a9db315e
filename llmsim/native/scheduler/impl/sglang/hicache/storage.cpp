#include "scheduler/impl/sglang/hicache/storage.h"

#include <utility>

namespace llmsim {

SglangStorage::SglangStorage(const HostStorageConfig& config, std::int32_t page_size, bool back,
                             RadixTree& tree, HostPages& host, Evict evict,
                             HostCacheCounters& counters)
    : config_(config),
      page_size_(page_size),
      back_(back),
      tree_(tree),
      host_(host),
      evict_(std::move(evict)),
      counters_(counters),
      threads_(config, page_size) {}

void SglangStorage::begin_pass(Ps now) {
  now_ = now;
  leaves_out_ = false;
  threads_.advance(now);
  counters_.stored = tokens(static_cast<std::size_t>(threads_.stored_pages()));
  counters_.erased = tokens(static_cast<std::size_t>(threads_.erased_pages()));
}

void SglangStorage::prefetch(Asked asked, Ps now) {
  const RequestId request = asked.request;
  misses_.erase(request);
  const auto wait = waits_.find(request);
  if (wait != waits_.end() && wait->second.late) return;
  if (searches_.contains(request)) return;
  const std::int32_t end = asked.first + static_cast<std::int32_t>(asked.keys.size());
  const bool known_stored = asked.first < asked.stored_end && asked.stored_end <= end;
  if (known_stored) asked.keys.resize(static_cast<std::size_t>(asked.stored_end - asked.first));
  if (too_few(asked.keys.size())) return;
  if (crowded()) return miss(request, asked.stored_end);
  const auto search = std::make_shared<StorageSearch>();
  search->request = request;
  search->anchor = asked.last;
  if (asked.last != RadixTree::kRoot) search->pin = tree_.pin_host(asked.last, back_);
  search->first = asked.first;
  search->asked = static_cast<std::int32_t>(asked.keys.size());
  search->keys = std::move(asked.keys);
  search->known_stored = known_stored;
  asked_tokens_ += tokens(search->keys.size());
  searches_.emplace(request, search);
  threads_.search(search, now);
}

bool SglangStorage::late(const StorageSearch& search) const {
  if (search.has_memory && search.done >= search.found) return false;
  const auto wait = waits_.find(search.request);
  if (wait == waits_.end()) return false;
  return wait->second.late || now_ - wait->second.since > wait->second.timeout;
}

bool SglangStorage::waits(const StorageSearch& search) const {
  switch (config_.prefetch) {
    case StoragePrefetch::kBestEffort:
      return false;
    case StoragePrefetch::kWaitComplete:
      return true;
    case StoragePrefetch::kTimeout:
      break;
  }
  return !late(search);
}

bool SglangStorage::ready(RequestId request) {
  const auto found = searches_.find(request);
  if (found == searches_.end()) return true;
  const Prefetch search = found->second;
  const bool times_out = config_.prefetch == StoragePrefetch::kTimeout;
  if (!search->ends) {
    if (waits(*search)) {
      const Ps timeout = config_.timeout + config_.timeout_per_page * search->asked;
      if (times_out) waits_.try_emplace(request, Wait{now_, timeout});
      return false;
    }
    if (times_out) {
      search->late = true;
      misses_.erase(request);
      waits_.try_emplace(request, Wait{}).first->second.late = true;
    }
  }
  search->ends = true;
  if (search->has_memory) {
    settle(search);
    return true;
  }
  if (!search->late) miss(request);
  retire(request);
  return true;
}

void SglangStorage::admitted(RequestId request) {
  waits_.erase(request);
  misses_.erase(request);
}

void SglangStorage::release(RequestId request) {
  admitted(request);
  const auto found = searches_.find(request);
  if (found == searches_.end()) return;
  StorageSearch& search = *found->second;
  search.ends = true;
  if (search.has_memory) {
    held_ -= search.done;
    returned_ += search.done;
  }
  retire(request);
}

// Who is first in the queue does not look again, which would only delay it.
std::vector<SglangStorage::Retry> SglangStorage::retries(
    std::span<const RequestId> waiting, const std::function<std::int64_t(RequestId)>& attempts) {
  ++pass_;
  std::vector<Retry> due;
  if (waiting.empty() || misses_.empty()) return due;
  misses_.erase(waiting.front());
  for (const RequestId request : waiting) {
    if (misses_.empty()) break;
    const auto found = misses_.find(request);
    if (found == misses_.end()) continue;
    Miss& miss = found->second;
    const bool gives_up = attempts(request) >= config_.most_retries || config_.retry_passes <= 0;
    if (!gives_up) {
      if (miss.due == kUnknown) miss.due = pass_ + config_.retry_passes;
      if (miss.due > pass_) continue;
      due.push_back({request, miss.stored_end});
    }
    misses_.erase(found);
  }
  return due;
}

void SglangStorage::write(NodeId node, Ps at) {
  ++writing_;
  threads_.write({node, tree_.pin_host(node, back_), tree_.page_keys(node)}, at);
}

void SglangStorage::drain() {
  const std::int64_t freed = returned_;
  for (const Prefetch& search : threads_.take_searched()) searched(search);
  for (const StorageThreads::Progress& one : threads_.take_progress()) progress(one);
  for (const StorageThreads::Backup& backup : threads_.take_written()) {
    tree_.unpin_host(backup.pin, back_);
    --writing_;
  }
  host_.free += freed;
  returned_ -= freed;
}

// An older search of the same request, which nobody waits for any more, ends the newer one, too.
void SglangStorage::searched(const Prefetch& search) {
  const RequestId request = search->request;
  if (!searches_.contains(request)) return;
  if (search->ends || too_few(search->keys.size())) {
    if (!search->ends || !search->late) miss(request);
    return retire(request);
  }
  take_memory(search);
}

void SglangStorage::take_memory(const Prefetch& search) {
  const std::int32_t end = search->first + search->found;
  if (host_.free < search->found) evict_(search->found);
  const auto pages = static_cast<std::int32_t>(std::min<std::int64_t>(search->found, host_.free));
  if (pages < search->found && too_few(static_cast<std::size_t>(pages))) {
    retire(search->request);
    return miss(search->request, end);
  }
  host_.free -= pages;
  held_ += pages;
  search->found = pages;
  search->keys.resize(static_cast<std::size_t>(pages));
  search->has_memory = true;
  threads_.read(search, now_);
}

void SglangStorage::progress(const StorageThreads::Progress& progress) {
  StorageSearch& search = *progress.prefetch;
  const auto found = searches_.find(search.request);
  const bool current = found != searches_.end() && found->second == progress.prefetch;
  if (!progress.ends) {
    if (current) search.done = progress.pages;
    return;
  }
  if (current) settle(progress.prefetch);
  held_ -= search.found - search.done;
  returned_ += search.found - search.done;
}

void SglangStorage::settle(const Prefetch& search) {
  const std::int32_t end = search->first + search->done;
  const std::int32_t there =
      tree_.graft(search->anchor, search->request, search->first, end, !back_);
  host_.free += there;
  held_ -= search->done;
  counters_.prefetched += tokens(static_cast<std::size_t>(search->done - there));
  retire(search->request);
}

void SglangStorage::retire(RequestId request) {
  const auto found = searches_.find(request);
  const StorageSearch& search = *found->second;
  tree_.unpin_host(search.pin, back_);
  asked_tokens_ -= tokens(static_cast<std::size_t>(search.asked));
  searches_.erase(found);
}

Ps SglangStorage::next(Ps now) const {
  if (returned_ > 0) return now;
  Ps next = threads_.next();
  for (const auto& [request, wait] : waits_) {
    const Ps end = wait.since + wait.timeout + 1;
    if (!wait.late && end > now && searches_.contains(request)) next = std::min(next, end);
  }
  return next;
}

}  // namespace llmsim
