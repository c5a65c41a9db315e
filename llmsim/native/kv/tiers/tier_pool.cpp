#include "kv/tiers/tier_pool.h"

#include <algorithm>

namespace llmsim {

void TierPool::revalue(Entry& entry) {
  entry.turn = ++turn_;
  switch (config_.eviction) {
    case TierEviction::kLru:
      entry.value = 0;
      return;
    case TierEviction::kLfu:
      entry.value = entry.uses;
      return;
    case TierEviction::kCost:
      entry.value = floor_ + entry.uses * (entry.depth + 1);
  }
}

bool TierPool::reserve(const TierChunk& chunk, std::vector<TierChunk>& given_up) {
  if (chunk.bytes > config_.capacity_bytes - used_ + free_to_go_) {
    ++counters_.unwritten_chunks;
    return false;
  }
  counters_.thrashed_chunks += static_cast<std::int64_t>(ghosts_.erase(chunk.key));
  while (used_ + chunk.bytes > config_.capacity_bytes) {
    const auto [value, turn, key] = *order_.begin();
    const Entry& entry = entries_.at(key);
    given_up.push_back({key, entry.bytes, entry.depth});
    floor_ = std::max(floor_, value);
    used_ -= entry.bytes;
    free_to_go_ -= entry.bytes;
    ++counters_.evicted_chunks;
    order_.erase(order_.begin());
    entries_.erase(key);
    remember(key);
  }
  entries_[chunk.key] = {chunk.bytes, 1, 0, 0, chunk.depth, 0, false};
  used_ += chunk.bytes;
  counters_.peak_bytes = std::max(counters_.peak_bytes, used_);
  return true;
}

// Ghosts of as many evictions as the pool could hold chunks of this size.
void TierPool::remember(Key key) {
  given_up_.emplace_back(key, counters_.evicted_chunks);
  ghosts_[key] = counters_.evicted_chunks;
  const std::size_t most = std::max<std::size_t>(1, entries_.size() + 1);
  for (; given_up_.size() > most; given_up_.pop_front()) {
    const auto ghost = ghosts_.find(given_up_.front().first);
    if (ghost != ghosts_.end() && ghost->second == given_up_.front().second) ghosts_.erase(ghost);
  }
}

void TierPool::arrived(Key key) {
  Entry& entry = entries_.at(key);
  entry.ready = true;
  revalue(entry);
  order_.insert({entry.value, entry.turn, key});
  free_to_go_ += entry.bytes;
}

void TierPool::clear() {
  entries_.clear();
  order_.clear();
  given_up_.clear();
  ghosts_.clear();
  used_ = free_to_go_ = 0;
}

void TierPool::use(Key key) {
  Entry& entry = entries_.at(key);
  const bool was = listed(entry);
  if (was) order_.erase({entry.value, entry.turn, key});
  ++entry.uses;
  revalue(entry);
  if (was) order_.insert({entry.value, entry.turn, key});
}

void TierPool::begin_read(Key key) {
  Entry& entry = entries_.at(key);
  if (entry.readers++ > 0) return;
  order_.erase({entry.value, entry.turn, key});
  free_to_go_ -= entry.bytes;
}

void TierPool::end_read(Key key) {
  Entry& entry = entries_.at(key);
  if (--entry.readers > 0) return;
  order_.insert({entry.value, entry.turn, key});
  free_to_go_ += entry.bytes;
}

std::int64_t TierPool::num_readers() const {
  std::int64_t count = 0;
  for (const auto& [key, entry] : entries_)
    count += entry.readers;  // a sum: the order does not matter
  return count;
}

std::int64_t TierPool::num_arriving() const {
  return std::count_if(entries_.begin(), entries_.end(),
                       [](const auto& one) { return !one.second.ready; });
}

bool TierPool::consistent() const {
  std::int64_t used = 0, may_go = 0;
  std::size_t listed_entries = 0;
  for (const auto& [key, entry] : entries_) {  // a sum: the order does not matter
    used += entry.bytes;
    if (!listed(entry)) continue;
    may_go += entry.bytes;
    ++listed_entries;
    if (!order_.contains({entry.value, entry.turn, key})) return false;
  }
  return used == used_ && used <= config_.capacity_bytes && may_go == free_to_go_ &&
         listed_entries == order_.size() && ghosts_.size() <= given_up_.size();
}

}  // namespace llmsim
