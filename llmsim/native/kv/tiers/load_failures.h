// Loads of KV that fail, and how much of each is there all the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "base/counter_rng.h"
#include "base/types.h"

namespace llmsim {

struct LoadFailuresConfig {
  static constexpr int kBits = 53;
  std::uint64_t chance = 0;  // of each load, in 2^-53
  std::uint64_t seed = 0;
  // Whose load has failed computes what is missing; else it ends with an error (vLLM's
  // kv_load_failure_policy).
  bool recomputes = false;
  // Nothing of a request is of use then, not even what was here: with layers of several kinds,
  // nobody knows which blocks lack their KV.
  bool loses_all = false;

  bool on() const { return chance > 0; }
};

// A draw depends on nothing but the seed, the request, and how many loads of it came before.
class LoadFailures {
 public:
  explicit LoadFailures(const LoadFailuresConfig& config) : config_(config) {}

  // The next load of the request brings the tokens [from, to), in pieces of `piece` tokens that
  // begin at multiples of it: up to where its KV is there, which is `to` unless a piece is lost.
  std::int32_t next(RequestId request, std::int32_t from, std::int32_t to, std::int32_t piece) {
    if (!config_.on() || from >= to) return to;
    const std::uint64_t stream =
        draw(draw(config_.seed, static_cast<std::uint64_t>(request)), num_loads_[request]++);
    if (draw(stream, 0) >> (64 - LoadFailuresConfig::kBits) >= config_.chance) return to;
    const std::int32_t first = from / piece;
    const auto pieces = static_cast<std::size_t>(ceil_div(to, piece) - first);
    const auto lost = first + static_cast<std::int32_t>(draw_below(stream, 1, pieces));
    return std::max(from, lost * piece);
  }

 private:
  LoadFailuresConfig config_;
  std::unordered_map<RequestId, std::uint64_t> num_loads_;
};

}  // namespace llmsim
