// Which states of linear attention and Mamba layers the prefix cache keeps, and where prompts are
// cut for them (vLLM 0.33's Mamba manager in its mode "align").
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "request/sequence_table.h"

namespace llmsim {

struct CachedStatesConfig {
  bool on = false;
  // The kernel also leaves the last whole block's state inside the last chunk of a prompt, if that
  // is a multiple of so many tokens behind the chunk's beginning; 0: it does not.
  std::int32_t checkpoint_alignment = 0;
  // Tokens from one place where a prefix can end to the next; 0: they end with blocks.
  std::int32_t match_unit = 0;
  // Prefixes do end there, which all tables must be able to; else the unit only changes where the
  // kernel leaves states inside of chunks. KvTables says so.
  bool matches_tails = false;
  // A prompt that ends with a block is cut in front of it, whose last token is computed again where
  // the prompt comes again; else it runs whole.
  bool cuts_last_block = false;
  // States are given back wherever they lie; else the one before the newest, and those that lie
  // without a gap in front of what a sequence still needs.
  bool frees_past_gaps = false;
  // A step that ends within a block behind a prompt's last state registers that state once more, so
  // that nobody hits it in this step.
  bool registers_again = false;
};

// A state is kept at the end of a block, and a chunk leaves one where it ends.
class CachedStates {
 public:
  CachedStates(const CachedStatesConfig& config, std::int32_t block_size, std::int32_t retention)
      : config_(config),
        block_size_(block_size),
        retention_(retention),
        unit_(config.match_unit > 0 ? config.match_unit : block_size) {}

  bool on() const { return config_.on; }
  // Tokens of a chunk that would begin behind `start` tokens and be `tokens` long, of at most
  // `most`. `junction`: where a shared prefix ends of which no state is kept yet; 0: nowhere.
  std::int32_t cut(const Sequence& s, std::int32_t start, std::int32_t tokens, std::int32_t most,
                   std::int32_t junction) const;
  // Whether a step from `start` to `end` leaves two states: its own, and that of the last block
  // before it.
  bool leaves_two(const Sequence& s, std::int32_t start, std::int32_t end) const {
    return saves_inside(start, end, retention_ == 0 ? prefill_end(s) : 0, saved_before(end));
  }
  // The last place in front of so many tokens where a prefix can end.
  std::int32_t saved_before(std::int32_t tokens) const {
    return config_.matches_tails ? std::max(0, tokens - 1) / unit_ * unit_ : before(tokens);
  }
  // Most states of a sequence that are held at once.
  std::int32_t most() const { return config_.checkpoint_alignment > 0 ? 3 : 2; }
  bool matches_tails() const { return config_.matches_tails; }
  bool frees_past_gaps() const { return config_.frees_past_gaps; }
  // The block whose state a step that ends behind so many tokens registers once more; -1: none.
  std::int32_t registered_again(const Sequence& s, std::int32_t tokens) const {
    const std::int32_t end = std::min(tokens, s.num_tokens) / block_size_ * block_size_;
    const std::int32_t last = std::max(0, s.prompt_tokens - 1) / unit_ * unit_;
    return config_.registers_again && end > 0 && end == last ? end / block_size_ - 1 : -1;
  }
  // Blocks in front of the one that holds the state behind so many tokens.
  std::int32_t outlived(std::int32_t tokens) const { return std::max(0, tokens - 1) / block_size_; }
  // Whether the state at the end of a block is worth keeping; `ends`: of prefixes, in blocks.
  bool kept(std::int32_t block, std::span<const std::int32_t> ends) const;

 private:
  static std::int32_t prefill_end(const Sequence& s) {
    return std::max(s.prompt_tokens, s.num_tokens - 1);
  }
  // The last block's end before the last of so many tokens, which is always computed again.
  std::int32_t before(std::int32_t tokens) const {
    return std::max(0, tokens - 1) / block_size_ * block_size_;
  }
  // The last place where a prompt of so many tokens is cut for a state.
  std::int32_t last_cut(std::int32_t tokens) const {
    return config_.cuts_last_block ? before(tokens) : tokens / block_size_ * block_size_;
  }
  bool saves_inside(std::int32_t start, std::int32_t end, std::int32_t least_end,
                    std::int32_t at) const;

  CachedStatesConfig config_;
  std::int32_t block_size_, retention_, unit_;
};

}  // namespace llmsim
