// The blocks of models whose layers keep different parts of a sequence, as vLLM's hybrid KV cache
// manager does it: one table of blocks for each group of equal layers, all from one pool
// (KVCacheCoordinator and its single-type managers).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "kv/block_pool.h"
#include "request/sequence_table.h"

namespace llmsim {

constexpr std::int32_t kSeesAll = 0;      // a table of every block of the sequence
constexpr std::int32_t kKeepsState = -1;  // a table of one block, however long the sequence is

struct KvTablesConfig {
  // Of each table: the tokens that its layers see (then blocks behind them are given back),
  // kSeesAll or kKeepsState. Tables of states come last, and not with a prefix cache.
  std::vector<std::int32_t> windows{kSeesAll};
  // Most that one step computes, or with `frees_processed` all steps in flight, which bounds what a
  // window holds at admission.
  std::int32_t step_tokens = 0;
  // Blocks behind a window are given back when no step in flight sees them, and not when a step is
  // formed that does not (vLLM 0.28).
  bool frees_processed = false;

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
  void find_hits(const BlockPool& pool, const std::vector<Key>& keys, std::int32_t most,
                 Blocks& hits);
  void forget_hits() { hits_.assign(windows_.size(), {}); }

  // Blocks that a new sequence takes from the free ones to have `tokens` slots, with the hits that
  // were found last; `whole`: to hold all of it in the end, when windows have moved on.
  std::int32_t taken(const BlockPool& pool, std::int32_t tokens, bool whole) const;
  void allocate(BlockPool& pool, RequestId request, Sequence& sequence, std::int32_t tokens);
  // Gives back what no window sees any more, then makes room for `tokens` slots, or returns false.
  bool grow(BlockPool& pool, RequestId request, Sequence& sequence, std::int32_t tokens);
  // Gives `keys` to the blocks from `first` on.
  void set_keys(BlockPool& pool, RequestId request, const Sequence& sequence, std::int32_t first,
                const std::vector<Key>& keys);
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
    return window <= 0 || computed < window ? 0 : (computed - window + 1) / block_size_;
  }
  std::int32_t needed(std::int32_t window, std::int32_t tokens) const {
    return window == kKeepsState ? std::min(tokens, 1)
                                 : static_cast<std::int32_t>(ceil_div(tokens, block_size_));
  }
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

  std::vector<std::int32_t> windows_;
  std::vector<Kind> kinds_;  // what sees everything first
  std::int32_t block_size_, max_model_len_, step_tokens_;
  bool drops_last_hit_, frees_processed_;
  std::vector<Blocks> hits_;
  std::unordered_map<RequestId, std::vector<Blocks>> others_;  // looked up, never walked
};

}  // namespace llmsim
