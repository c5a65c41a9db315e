// What one step of SGLang may take of prompts (python/sglang/srt/managers/schedule_policy.py,
// PrefillAdder; mem_cache/prefill_budget.py).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "scheduler/impl/sglang/pools/memory.h"

namespace llmsim {

// Counts in tokens. Memory is counted in doubles as there, since shares of answers are reserved.
class PromptBudget {
 public:
  static constexpr std::int64_t kNoChunk = std::numeric_limits<std::int64_t>::max();

  PromptBudget(const SglangMemory& memory, std::int64_t max_prefill_tokens, std::int64_t chunk,
               std::int64_t decodes, double promised)
      : memory_(memory),
        input_(max_prefill_tokens - decodes),
        chunk_(chunk == kNoChunk ? kNoChunk : chunk - decodes),
        total_(static_cast<double>(decodes) + promised),
        current_(static_cast<double>(decodes)) {}

  enum class State : std::uint8_t { kGoesOn, kNoMemory, kFull };

  State state() const {
    if (left() <= 0 || left_now() <= 0) return State::kNoMemory;
    if (memory_.windowed() && window_left() <= 0) return State::kNoMemory;
    return input_ <= 0 || chunk_ <= 0 ? State::kFull : State::kGoesOn;
  }
  // Tokens of memory when all that is promised has been taken; and when only prompts have.
  double left() const { return space() - total_; }
  double left_now() const { return space() - current_; }
  // Tokens that layers with a window have left.
  std::int64_t window_left() const {
    return memory_.window_available() + memory_.window_evictable() - window_total_;
  }
  // Those that so many tokens of a prompt and of its answer take of them at most, at one time.
  std::int64_t window_tokens(std::int64_t tokens, std::int64_t answer) const {
    const std::int64_t at_once = std::min(tokens, chunk_), window = memory_.window();
    return std::max<std::int64_t>(0, at_once - window) + std::min(tokens + answer, window) +
           memory_.page_size();
  }
  // Tokens of a prompt that layers with a window let join the step, of at most a chunk; 0: none. A
  // prompt is cut for them only where it would never fit. So many of its prefix are loaded.
  std::int64_t window_chunk(std::int64_t tokens, std::int64_t answer, std::int64_t loaded) const {
    const std::int64_t needed = window_tokens(tokens, answer) + loaded, page = memory_.page_size();
    if (needed < window_left()) return chunk_;
    if (needed < memory_.window_capacity() || !chunked()) return 0;
    const std::int64_t most = window_left() - window_tokens(0, answer) - loaded;
    return std::min(chunk_, std::max<std::int64_t>(0, most / page * page));
  }
  std::int64_t chunk() const { return chunk_; }
  std::int64_t input() const { return input_; }
  bool chunked() const { return chunk_ != kNoChunk; }

  // A prompt takes `tokens` more, and its answer will take up to `answer`.
  void take(std::int64_t tokens, std::int64_t answer) {
    const std::int64_t paged = memory_.ceil(tokens);
    const std::int64_t at_once = paged + memory_.page_size();
    if (memory_.windowed()) window_total_ += window_tokens(paged, answer);
    total_ += static_cast<double>(at_once + answer);
    current_ += static_cast<double>(at_once);
    input_ -= paged;
    if (chunked()) chunk_ -= paged;
  }
  // Who runs no longer writes what was promised to it.
  void forgo(double promised) { total_ -= promised; }

 private:
  double space() const { return static_cast<double>(memory_.available() + memory_.evictable()); }

  const SglangMemory& memory_;
  std::int64_t input_, chunk_, window_total_ = 0;
  double total_, current_;
};

}  // namespace llmsim
