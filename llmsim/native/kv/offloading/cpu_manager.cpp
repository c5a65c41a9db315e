#include "kv/offloading/cpu_manager.h"

#include <algorithm>
#include <unordered_set>

namespace llmsim {

CpuManager::Lookup CpuManager::lookup(Key key) const {
  const auto found = held_.find(key);
  if (found == held_.end()) return Lookup::kMiss;
  return found->second < 0 ? Lookup::kPending : Lookup::kHit;
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

// What was offered lately and is offered again is not forgotten for what is new.
void CpuManager::count_offers(std::span<const OffloadedChunk> chunks) {
  std::int64_t known = 0;
  for (const OffloadedChunk& chunk : chunks) {
    if (!offered_.contains(chunk.key)) continue;
    offered_.push_back(chunk.key);
    ++num_offers_[chunk.key];
    ++known;
  }
  std::int64_t others = static_cast<std::int64_t>(offered_.size()) - known;
  for (const OffloadedChunk& chunk : chunks) {
    if (offered_.contains(chunk.key)) continue;
    if (static_cast<std::int64_t>(offered_.size()) >= config_.max_tracker_size) {
      if (others == 0) continue;
      num_offers_.erase(offered_.front());
      offered_.pop_front();
      --others;
    }
    offered_.push_back(chunk.key);
    num_offers_[chunk.key] = 1;
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
  const bool counts = config_.store_threshold >= 2;
  if (counts) count_offers(chunks);
  std::vector<OffloadedChunk> wanted, ready, noted, spared;
  for (const OffloadedChunk& chunk : chunks) {
    const Lookup found = lookup(chunk.key);
    const auto offers = num_offers_.find(chunk.key);
    const bool often =
        !counts || (offers != num_offers_.end() && offers->second >= config_.store_threshold);
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
