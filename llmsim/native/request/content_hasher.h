// Names the content of full token blocks by dense ids, chained so that an id stands for the whole
// prefix.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/types.h"

namespace llmsim {

// Two requests get the same id for block i exactly when their first (i + 1) * granularity tokens
// are equal, up to a collision of a 128-bit hash. Ids start at 1; the map is only looked up, never
// iterated.
class ContentHasher {
 public:
  explicit ContentHasher(std::int32_t granularity) : granularity_(granularity) {
    offsets_.push_back(0);
  }

  // Tokens of one request, prompt then output, in calls of token(); end() closes the request.
  void token(std::int64_t id) {
    mix(static_cast<std::uint64_t>(id));
    if (++in_block_ == granularity_) close_block();
  }
  void end() {
    offsets_.push_back(static_cast<std::int64_t>(keys_.size()));
    a_ = kSeedA;
    b_ = kSeedB;
    in_block_ = 0;
  }

  // The keys of all requests since the last call, which are not kept.
  std::vector<Key> take_keys() {
    offsets_.assign(1, 0);
    return std::exchange(keys_, {});
  }

  std::int32_t granularity() const { return granularity_; }
  const std::vector<std::int64_t>& offsets() const { return offsets_; }
  const std::vector<Key>& keys() const { return keys_; }

 private:
  static constexpr std::uint64_t kSeedA = 0x243F6A8885A308D3ull,
                                 kSeedB = 0x13198A2E03707344ull;  // digits of pi
  struct Hash128 {
    std::uint64_t a, b;
    bool operator==(const Hash128&) const = default;
  };
  struct Home {
    std::size_t operator()(const Hash128& h) const { return h.a; }
  };

  static std::uint64_t finalize(std::uint64_t x) {  // the mixer of splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  }
  void mix(std::uint64_t x) {
    a_ = finalize((a_ ^ x) * 0x9E3779B97F4A7C15ull + b_);
    b_ = finalize((b_ + x) * 0xC2B2AE3D27D4EB4Full ^ a_);
  }
  void close_block() {
    in_block_ = 0;
    const auto [entry, is_new] = ids_.try_emplace(Hash128{a_, b_}, ids_.size() + 1);
    keys_.push_back(entry->second);
  }

  std::int32_t granularity_, in_block_ = 0;
  std::uint64_t a_ = kSeedA, b_ = kSeedB;
  std::vector<std::int64_t> offsets_;
  std::vector<Key> keys_;
  std::unordered_map<Hash128, Key, Home> ids_;
};

}  // namespace llmsim
