// The blocks of models whose layers keep different parts of a sequence, as vLLM's hybrid KV cache
// manager does it: one table of blocks for each group of equal layers, all from one pool
// (KVCacheCoordinator and its single-type managers).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kv/block_pool.h"
#include "kv/cached_states.h"
#include "request/sequence_table.h"

namespace llmsim {

constexpr std::int32_t kSeesAll = 0;  // a table of every block of the sequence
// A table of one block, however long the sequence is; with cached states, of the last one and of
// those that are kept.
constexpr std::int32_t kKeepsState = -1;
constexpr std::int32_t kKeepsAll = -1;  // every full block is findable

struct KvTablesConfig {
  // Of each table: the tokens that its layers see (then blocks behind them are given back),
  // kSeesAll or kKeepsState. Tables of states come last, with a prefix cache as `states` says.
  std::vector<std::int32_t> windows{kSeesAll};
  // Most that one step computes, or with `frees_processed` all steps in flight, which bounds what a
  // window holds at admission.
  std::int32_t step_tokens = 0;
  // Blocks behind a window are given back when no step in flight sees them, and not when a step is
  // formed that does not (vLLM 0.28).
  bool frees_processed = false;
  // Tokens from one place to the next where a prefix can end for layers with a window, or
  // kKeepsAll. A prefix can also end with the prompt, and where another table's hit did that was
  // longer than all tables'; 0: there alone (vLLM 0.33: prefix_cache_retention_interval).
  std::int32_t retention = kKeepsAll;
  // Tokens behind a window that are held, too, for a drafter that computes them again.
  std::int32_t held_behind = 0;
  CachedStatesConfig states;

  bool plain() const { return windows == std::vector<std::int32_t>{kSeesAll}; }
};

// Blocks of the first table are in `Sequence::blocks`, as for models of one kind, those of the
// others are here. Block 0 stands for a block that was given back.
class KvTables {
 public:
  using Blocks = std::vector<BlockId>;

  // Throws std::invalid_argument for tables that it does not know how to keep.
  KvTables(const KvTablesConfig& config, std::int32_t block_size, std::int32_t max_model_len,
           bool prefix_caching, bool drops_last_hit);

  // Cached blocks of all tables for at most `most` tokens, by the keys of the first table's blocks.
  // `hits` gets those of the first; the others are kept for the next `taken` and `allocate`.
  void find_hits(const BlockPool& pool, RequestId request, const std::vector<Key>& keys,
                 std::int32_t most, Blocks& hits);
  void forget_hits(RequestId request) {
    hits_.assign(windows_.size(), {});
    junctions_.erase(request);
  }

  // Blocks that a new sequence takes from the free ones to have `tokens` slots, with the hits that
  // were found last; `whole`: to hold all of it in the end, when windows have moved on.
  std::int32_t taken(const BlockPool& pool, const Sequence& sequence, std::int32_t tokens,
                     bool whole) const;
  void allocate(BlockPool& pool, RequestId request, Sequence& sequence, std::int32_t tokens);
  // Gives back what no window sees any more, then makes room for `tokens` slots, or returns false.
  bool grow(BlockPool& pool, RequestId request, Sequence& sequence, std::int32_t tokens);
  // Gives `keys` to the blocks from `first` on.
  void set_keys(BlockPool& pool, RequestId request, const Sequence& sequence, std::int32_t first,
                const std::vector<Key>& keys);
  // A step begins, in which states that others leave in it cannot be hit.
  void begin_step() { fresh_.clear(); }
  // Tokens of a chunk that begins behind `start` tokens, so that it ends where its state is kept.
  std::int32_t cut(RequestId request, const Sequence& sequence, std::int32_t start,
                   std::int32_t tokens, std::int32_t most) const;
  // Whether every state but the last has been given back.
  bool settled(RequestId request) const;
  void release(BlockPool& pool, RequestId request, Sequence& sequence);
  // All that it holds, table by table; they are no longer the sequence's, but not free either.
  std::vector<BlockId> take(RequestId request, Sequence& sequence);

  // Most blocks that a sequence holds at once on its way to `slots` slots, `ahead` of them for
  // drafts.
  std::int64_t most_blocks(std::int64_t slots, std::int32_t ahead) const;
  // Computed tokens with which the next block is given back, after a step that began with
  // `computed`; with `frees_processed`, processed ones.
  std::int32_t next_given_back(std::int32_t computed) const;
  // The tokens of a sequence by which blocks are given back.
  std::int32_t done(const Sequence& sequence) const {
    return frees_processed_ ? sequence.processed() : sequence.num_computed;
  }

 private:
  std::int32_t skipped(std::int32_t window, std::int32_t computed) const {
    if (window == kKeepsState) return states_.on() ? states_.outlived(computed) : 0;
    const std::int32_t behind = computed - window + 1 - held_behind_;
    return window <= 0 ? 0 : std::max(0, behind) / block_size_;
  }
  std::int32_t needed(std::int32_t window, std::int32_t tokens) const {
    return one_state(window) ? std::min(tokens, 1)
                             : static_cast<std::int32_t>(ceil_div(tokens, block_size_));
  }
  bool one_state(std::int32_t window) const { return window == kKeepsState && !states_.on(); }
  // Of a table of cached states with `held` places: how many more blocks it takes to reach `end`.
  std::int32_t states_taken(const Sequence& sequence, std::int32_t start, std::int32_t end,
                            std::int32_t held) const;
  void extend(BlockPool& pool, const Sequence& sequence, std::int32_t window, std::int32_t start,
              std::int32_t tokens, Blocks& blocks);
  Blocks& table(RequestId request, Sequence& sequence, std::size_t index) {
    return index == 0 ? sequence.blocks : others_[request][index - 1];
  }
  // The tables with one window, of which a prefix must be hit in all.
  struct Kind {
    std::int32_t window;
    std::vector<std::size_t> tables;
  };
  std::int32_t find_in(const BlockPool& pool, const Kind& kind, const std::vector<Key>& keys,
                       std::int32_t most, bool drops);
  bool cached(const BlockPool& pool, const Kind& kind, Key key, std::int32_t block);
  // Blocks that a prefix needs of a window, and one more where a drafter gives the last one up.
  std::int32_t enough(std::int32_t window, bool drops) const {
    return static_cast<std::int32_t>(ceil_div(window - 1, block_size_)) + drops;
  }
  // Whether a prefix could end such that it needs this block of a window.
  bool reachable(std::int32_t window, std::int32_t block, std::span<const std::int32_t> ends) const;
  // Where prefixes of a request can end whatever the retention is, in blocks.
  std::vector<std::int32_t> prefix_ends(RequestId request, const Sequence& sequence) const;

  std::vector<std::int32_t> windows_;
  std::vector<Kind> kinds_;  // what sees everything first
  std::int32_t block_size_, max_model_len_, step_tokens_, retention_, held_behind_;
  bool drops_last_hit_, frees_processed_;
  CachedStates states_;
  std::vector<Key> hit_keys_;      // of the last block hit, by table
  std::unordered_set<Key> fresh_;  // of states that this step leaves
  std::vector<Blocks> hits_;
  std::unordered_map<RequestId, std::vector<Blocks>> others_;  // looked up, never walked
  // Tokens that some table has cached of a prefix that not all have: where the last look-up ended.
  std::unordered_map<RequestId, std::int32_t> junctions_;
};

}  // namespace llmsim
