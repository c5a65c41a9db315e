#include "kv/offloading/cpu_manager.h"

#include <algorithm>
#include <unordered_set>

namespace llmsim {

CpuManager::Lookup CpuManager::lookup(Key key) const {
  const auto found = held_.find(key);
  if (found == held_.end()) return Lookup::kMiss;
  return found->second < 0 ? Lookup::kPending : Lookup::kHit;
}

CpuManager::Lookup CpuManager::look_up(Key key) {
  filter_->looked_up(key);
  return lookup(key);
}

void CpuManager::prepare_load(std::span<const OffloadedChunk> chunks, ChunkAccess& request) {
  for (const OffloadedChunk& chunk : chunks) {
    if (held_.at(chunk.key)++ > 0) continue;
    policy_->pinned(chunk.key);
    --num_idle_;
  }
  note_access(chunks, request);
  for (const OffloadedChunk& chunk : chunks)
    if (!request.inserted.contains(chunk.place)) request.reused.insert(chunk.place);
}

void CpuManager::complete_load(std::span<const OffloadedChunk> chunks) {
  for (const OffloadedChunk& chunk : chunks) {
    if (--held_.at(chunk.key) > 0) continue;
    policy_->released(chunk.key);
    ++num_idle_;
  }
}

void CpuManager::note_access(std::span<const OffloadedChunk> chunks, ChunkAccess& request) {
  std::vector<OffloadedChunk> first;
  for (const OffloadedChunk& chunk : chunks)
    if (request.seen.emplace(chunk.place, chunk.key).second) first.push_back(chunk);
  if (!first.empty()) policy_->accessed(first, request, held_);
}

bool CpuManager::make_room(std::size_t count, std::span<const OffloadedChunk> spared) {
  const auto needed = static_cast<std::int64_t>(count) - (config_.num_chunks - num_held());
  if (needed <= 0) return true;
  if (needed > num_idle_) return false;
  std::unordered_set<Key> kept;
  for (const OffloadedChunk& chunk : spared) kept.insert(chunk.key);
  std::vector<Key> victims;
  if (!policy_->evict(static_cast<std::size_t>(needed), kept, held_, victims)) return false;
  for (const Key key : victims) held_.erase(key);
  num_idle_ -= needed;
  num_evicted_ += needed;
  return true;
}

std::optional<std::vector<OffloadedChunk>> CpuManager::prepare_store(
    std::span<const OffloadedChunk> chunks, ChunkAccess& request) {
  filter_->offered(chunks);
  std::vector<OffloadedChunk> wanted, ready, noted, spared;
  for (const OffloadedChunk& chunk : chunks) {
    const Lookup found = lookup(chunk.key);
    const bool often = filter_->stores(chunk.key);
    if (often || policy_->spares_seldom_offered()) spared.push_back(chunk);
    if (found == Lookup::kHit) ready.push_back(chunk);
    if (found == Lookup::kMiss && often) wanted.push_back(chunk);
    if (found == Lookup::kHit || (found == Lookup::kMiss && often)) noted.push_back(chunk);
  }
  std::vector<OffloadedChunk> missed;
  for (const OffloadedChunk& chunk : wanted)
    if (request.missed.insert(chunk.place).second) missed.push_back(chunk);
  if (!missed.empty()) policy_->missed(missed);
  note_access(noted, request);
  for (const OffloadedChunk& chunk : ready)
    if (!request.inserted.contains(chunk.place)) request.reused.insert(chunk.place);
  if (!wanted.empty() && !make_room(wanted.size(), spared)) return std::nullopt;
  for (const OffloadedChunk& chunk : wanted) {
    held_[chunk.key] = -1;
    policy_->inserted(chunk, request);
    request.inserted.insert(chunk.place);
  }
  return wanted;
}

void CpuManager::complete_store(std::span<const OffloadedChunk> chunks) {
  for (const OffloadedChunk& chunk : chunks) {
    const auto found = held_.find(chunk.key);
    if (found == held_.end() || found->second >= 0) continue;
    found->second = 0;
    ++num_idle_;
    policy_->released(chunk.key);
  }
}

bool CpuManager::consistent() const {
  const auto idle =
      std::ranges::count_if(held_, [](const auto& chunk) { return chunk.second == 0; });
  return idle == num_idle_ && num_held() <= config_.num_chunks;
}

}  // namespace llmsim
