#include "kv/offloading/cache_policy.h"

#include <algorithm>
#include <utility>

#include "kv/offloading/key_list.h"

namespace llmsim {

namespace {

// Requests that run share one rank for all of their chunks, of which the last ones go first; when a
// request has finished, its chunks are the newest, again from the last one to the first.
class LruPolicy : public CachePolicy {
 public:
  void inserted(const OffloadedChunk& chunk, ChunkAccess& request) override {
    ranks_[chunk.key] = {rank_of(request), -chunk.place};
  }
  void missed(std::span<const OffloadedChunk>) override {}
  void accessed(std::span<const OffloadedChunk> chunks, ChunkAccess& request,
                const HeldChunks& held) override {
    const std::int64_t rank = rank_of(request);
    for (const OffloadedChunk& chunk : chunks) {
      const Rank own{rank, -chunk.place};
      if (held.contains(chunk.key) && ranks_.at(chunk.key) < own) rerank(chunk.key, own);
    }
  }
  void request_finished(const ChunkAccess& request, const HeldChunks& held) override {
    for (auto chunk = request.seen.rbegin(); chunk != request.seen.rend(); ++chunk)
      if (held.contains(chunk->second)) rerank(chunk->second, {++next_, 0});
  }
  void released(Key key) override { order_.insert({ranks_.at(key), key}); }
  void pinned(Key key) override { order_.erase({ranks_.at(key), key}); }
  bool evict(std::size_t count, const std::unordered_set<Key>& spared, const HeldChunks&,
             std::vector<Key>& victims) override {
    std::vector<Place> chosen;
    for (auto place = order_.begin(); place != order_.end() && chosen.size() < count; ++place)
      if (!spared.contains(place->second)) chosen.push_back(*place);
    if (chosen.size() < count) return false;
    for (const Place& place : chosen) {
      order_.erase(place);
      ranks_.erase(place.second);
      victims.push_back(place.second);
    }
    return true;
  }

 protected:
  void rank_newest(Key key) { ranks_[key] = {++next_, 0}; }

 private:
  using Rank = std::pair<std::int64_t, std::int32_t>;
  using Place = std::pair<Rank, Key>;

  std::int64_t rank_of(ChunkAccess& request) {
    if (request.rank == 0) request.rank = ++next_;
    return request.rank;
  }
  void rerank(Key key, const Rank& rank) {
    Rank& old = ranks_.at(key);
    if (order_.erase({old, key}) > 0) order_.insert({rank, key});
    old = rank;
  }

  std::int64_t next_ = 0;
  std::unordered_map<Key, Rank> ranks_;
  std::set<Place> order_;  // of those that no transfer uses
};

// Up to vLLM 0.32: the chunks of a request that runs are as old as they were written.
class LruByChunk final : public LruPolicy {
 public:
  void inserted(const OffloadedChunk& chunk, ChunkAccess&) override { rank_newest(chunk.key); }
  void accessed(std::span<const OffloadedChunk>, ChunkAccess&, const HeldChunks&) override {}
};

// Up to vLLM 0.30: the chunks that no transfer uses, of which those that were touched last, or
// whose transfers ended last, go last.
class TouchedLru final : public CachePolicy {
 public:
  void inserted(const OffloadedChunk&, ChunkAccess&) override {}
  void missed(std::span<const OffloadedChunk>) override {}
  void accessed(std::span<const OffloadedChunk>, ChunkAccess&, const HeldChunks&) override {}
  void request_finished(const ChunkAccess&, const HeldChunks&) override {}
  void touched(std::span<const OffloadedChunk> chunks, const HeldChunks&) override {
    for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk)
      if (idle_.contains(chunk->key)) idle_.push_back(chunk->key);
  }
  bool spares_seldom_offered() const override { return false; }
  void released(Key key) override { idle_.push_back(key); }
  void pinned(Key key) override { idle_.erase(key); }
  bool evict(std::size_t count, const std::unordered_set<Key>& spared, const HeldChunks&,
             std::vector<Key>& victims) override {
    std::vector<Key> chosen;
    for (auto key = idle_.begin(); key != idle_.end() && chosen.size() < count; ++key)
      if (!spared.contains(*key)) chosen.push_back(*key);
    if (chosen.size() < count) return false;
    for (const Key key : chosen) idle_.erase(key);
    victims.insert(victims.end(), chosen.begin(), chosen.end());
    return true;
  }

 private:
  KeyList idle_;
};

// Adaptive Replacement Cache (N. Megiddo and D. Modha, FAST 2003): chunks that were used once and
// those that were used again, and what each of them has lost lately.
class ArcPolicy : public CachePolicy {
 public:
  ArcPolicy(std::int64_t num_chunks, bool gives_up_either)
      : num_chunks_(num_chunks), gives_up_either_(gives_up_either) {}

  void inserted(const OffloadedChunk& chunk, ChunkAccess&) override {
    once_.push_back(chunk.key);
    lost_once_.erase(chunk.key);
    lost_again_.erase(chunk.key);
  }
  void missed(std::span<const OffloadedChunk> chunks) override {
    for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) adapt(chunk->key);
  }
  void accessed(std::span<const OffloadedChunk>, ChunkAccess&, const HeldChunks&) override {}
  void request_finished(const ChunkAccess& request, const HeldChunks&) override {
    for (auto chunk = request.seen.rbegin(); chunk != request.seen.rend(); ++chunk)
      touch(request, chunk->first, chunk->second);
  }
  void released(Key) override {}
  void pinned(Key) override {}
  bool evict(std::size_t count, const std::unordered_set<Key>& spared, const HeldChunks& held,
             std::vector<Key>& victims) override {
    const auto next = [&](KeyList::Place& place, const KeyList& list) {
      while (place != list.end()) {
        const Key key = *place++;
        if (held.at(key) == 0 && !spared.contains(key)) return std::pair{key, true};
      }
      return std::pair{Key{0}, false};
    };
    KeyList::Place once = once_.begin(), again = again_.begin();
    std::vector<std::pair<Key, bool>> chosen;  // and whether it was used once
    auto left = static_cast<std::int64_t>(once_.size());
    while (chosen.size() < count) {
      std::pair<Key, bool> victim{0, false};
      bool from_once = left >= static_cast<std::int64_t>(most_once_);
      if (from_once) victim = next(once, once_);
      if (!victim.second) {
        victim = next(again, again_);
        from_once = false;
      }
      if (!victim.second && gives_up_either_) {
        victim = next(once, once_);
        from_once = true;
      }
      if (!victim.second) return false;
      left -= from_once;
      chosen.emplace_back(victim.first, from_once);
    }
    for (const auto& [key, from_once] : chosen) {
      (from_once ? once_ : again_).erase(key);
      (from_once ? lost_once_ : lost_again_).push_back(key);
      victims.push_back(key);
    }
    for (KeyList* lost : {&lost_once_, &lost_again_})
      while (static_cast<std::int64_t>(lost->size()) > num_chunks_) lost->pop_front();
    return true;
  }

 protected:
  // A chunk that was used once, and is used again; false: it is none.
  bool use_again(Key key) {
    if (!once_.erase(key)) return false;
    again_.push_back(key);
    return true;
  }
  void renew(Key key) {
    if (once_.contains(key)) {
      once_.push_back(key);
    } else if (again_.contains(key)) {
      again_.push_back(key);
    }
  }

 private:
  void touch(const ChunkAccess& request, std::int32_t place, Key key) {
    const bool reused = request.reused.contains(place);
    if (request.inserted.contains(place) && !reused) {  // a copy is no second use
      renew(key);
    } else if (reused && !use_again(key)) {
      renew(key);
    }
  }

 protected:
  // The part of the pool for chunks that were used once grows where one of them is missed.
  void adapt(Key key) {
    const auto once = static_cast<double>(lost_once_.size()),
               again = static_cast<double>(lost_again_.size());
    if (lost_once_.contains(key)) {
      most_once_ =
          std::min(most_once_ + std::max(1.0, again / once), static_cast<double>(num_chunks_));
      lost_once_.push_back(key);
    } else if (lost_again_.contains(key)) {
      most_once_ = std::max(most_once_ - std::max(1.0, once / again), 0.0);
      lost_again_.push_back(key);
    }
  }

 private:
  std::int64_t num_chunks_;
  bool gives_up_either_;
  double most_once_ = 0;
  KeyList once_, again_, lost_once_, lost_again_;  // vLLM: t1, t2, b1, b2
};

// Up to vLLM 0.30: each touch is a use, also of chunks that the pool has lost.
class TouchedArc final : public ArcPolicy {
 public:
  using ArcPolicy::ArcPolicy;
  bool spares_seldom_offered() const override { return false; }
  void missed(std::span<const OffloadedChunk>) override {}
  void request_finished(const ChunkAccess&, const HeldChunks&) override {}
  void touched(std::span<const OffloadedChunk> chunks, const HeldChunks& held) override {
    for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
      const auto found = held.find(chunk->key);
      if (found == held.end()) {
        adapt(chunk->key);
      } else if (found->second < 0 || !use_again(chunk->key)) {
        renew(chunk->key);
      }
    }
  }
};

}  // namespace

std::unique_ptr<CachePolicy> make_cache_policy(OffloadingEviction kind, std::int64_t num_chunks,
                                               const OffloadingRules& rules) {
  switch (kind) {
    case OffloadingEviction::kArc:
      return std::make_unique<ArcPolicy>(num_chunks, rules.gives_up_either);
    case OffloadingEviction::kLruByChunk:
      return std::make_unique<LruByChunk>();
    case OffloadingEviction::kTouchedLru:
      return std::make_unique<TouchedLru>();
    case OffloadingEviction::kTouchedArc:
      return std::make_unique<TouchedArc>(num_chunks, rules.gives_up_either);
    case OffloadingEviction::kLru:
      break;
  }
  return std::make_unique<LruPolicy>();
}

}  // namespace llmsim
