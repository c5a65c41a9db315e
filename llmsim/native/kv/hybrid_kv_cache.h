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
  // Of each table: the tokens that its layers see (then blocks behind them are given back), minus
  // the tokens of a chunk (then those of the chunks before are), kSeesAll or kKeepsState. Tables of
  // states come last, with a prefix cache as `states` says.
  std::vector<std::int32_t> windows{kSeesAll};
  // Tokens in a block of each table, whole multiples of the cache's block size, which at least one
  // table has; empty: all have it. Layers that store less of a token have more of them in a block.
  std::vector<std::int32_t> block_sizes;
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

// Blocks of the first table with the cache's block size are in `Sequence::blocks`, as for models of
// one kind, those of the others are here. Block 0 stands for a block that was given back. Hits and
// keys end where a block of every table does.
class KvTables {
 public:
  using Blocks = std::vector<BlockId>;

  // Throws std::invalid_argument for tables that it does not know how to keep.
  KvTables(const KvTablesConfig& config, std::int32_t block_size, std::int32_t max_model_len,
           bool prefix_caching, bool drops_last_hit);

  // Cached blocks of all tables for at most `most` tokens, by the keys of every `key_tokens`
  // tokens. `hits` gets those of the table in `Sequence::blocks`; the others are kept for the next
  // `taken` and `allocate`.
  void find_hits(const BlockPool& pool, RequestId request, const std::vector<Key>& keys,
                 std::int32_t most, Blocks& hits);
  void forget_hits(RequestId request) {
    hits_.assign(tables_.size(), {});
    hit_tokens_ = 0;
    junctions_.erase(request);
  }
  // Of the hits that were found last.
  std::int32_t hit_tokens() const { return hit_tokens_; }
  // Tokens that a key names more than the one before.
  std::int32_t key_tokens() const { return key_tokens_; }
  // Whether prefixes end inside of blocks, too.
  bool matches_tails() const { return states_.matches_tails(); }

  // Blocks that a new sequence takes from the free ones to have `tokens` slots, with the hits that
  // were found last; `whole`: to hold all of it in the end, when windows have moved on.
  std::int32_t taken(const BlockPool& pool, const Sequence& sequence, std::int32_t tokens,
                     bool whole) const;
  void allocate(BlockPool& pool, RequestId request, Sequence& sequence, std::int32_t tokens);
  // Gives back what no window sees any more, then makes room for `tokens` slots, or returns false.
  bool grow(BlockPool& pool, RequestId request, Sequence& sequence, std::int32_t tokens);
  // So many tokens are computed. Gives `keys` to the blocks that end with them, from the cache's
  // block `first` on; where prefixes end inside of blocks, `keys` are all of the sequence's.
  void set_keys(BlockPool& pool, RequestId request, const Sequence& sequence, std::int32_t first,
                std::int32_t tokens, const std::vector<Key>& keys);
  // A step begins, in which states that others leave in it cannot be hit.
  void begin_step() { fresh_.clear(); }
  // It is formed: what it copies blocks from, and to, is no longer held for that.
  void end_step(BlockPool& pool) {
    for (const BlockId block : copied_) pool.release(block);
    copied_.clear();
  }
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
  // Tokens after which a block of every table ends, and again after as many.
  std::int32_t alignment() const { return alignment_; }

 private:
  // What layers see, and the tokens in a block of their table.
  struct Table {
    std::int32_t window, size;
    // Tokens of a chunk, of which layers see those before them; 0: they do not attend in chunks.
    std::int32_t chunk() const { return window < kKeepsState ? -window : 0; }
    bool operator==(const Table&) const = default;
  };
  std::int32_t skipped(Table table, std::int32_t computed) const {
    if (table.window == kKeepsState) return states_.on() ? states_.outlived(computed) : 0;
    if (table.chunk() > 0) return computed / table.chunk() * table.chunk() / table.size;
    const std::int32_t behind = computed - table.window + 1 - held_behind_;
    return table.window <= 0 ? 0 : std::max(0, behind) / table.size;
  }
  std::int32_t needed(Table table, std::int32_t tokens) const {
    return one_state(table.window) ? std::min(tokens, 1)
                                   : static_cast<std::int32_t>(ceil_div(tokens, table.size));
  }
  bool one_state(std::int32_t window) const { return window == kKeepsState && !states_.on(); }
  // The key of a table's block among those of the cache's blocks.
  std::size_t key_of(Table table, std::int32_t block) const {
    return (static_cast<std::size_t>(block) + 1) * static_cast<std::size_t>(scale(table)) - 1;
  }
  std::int32_t scale(Table table) const { return table.size / key_tokens_; }
  // Of a table of cached states with `held` places: how many more blocks it takes to reach `end`,
  // beside one that is copied.
  std::int32_t states_taken(const Sequence& sequence, std::int32_t start, std::int32_t end,
                            std::int32_t held) const;
  void extend(BlockPool& pool, RequestId request, const Sequence& sequence, Table table,
              std::int32_t start, std::int32_t tokens, Blocks& blocks);
  // In a step that ends behind `tokens`.
  void register_again(const BlockPool& pool, RequestId request, const Sequence& sequence,
                      std::int32_t tokens);
  // What layers no longer see of a sequence of which so many tokens are done.
  void give_back(BlockPool& pool, RequestId request, Table table, std::int32_t done,
                 Blocks& blocks);
  Blocks& blocks_of(RequestId request, Sequence& sequence, std::size_t index) {
    return index == home_ ? sequence.blocks : others_[request][index];
  }
  // The tables that are alike, of which a prefix must be hit in all.
  struct Kind {
    Table table;
    std::vector<std::size_t> tables;
  };
  void add_table(Table table, bool prefix_caching);
  // Tokens of the longest prefix that is cached in all tables of a kind.
  std::int32_t find_in(const BlockPool& pool, const Kind& kind, const std::vector<Key>& keys,
                       std::int32_t most, bool drops);
  // The same where prefixes end inside of blocks.
  std::int32_t find_tails(const BlockPool& pool, const Kind& kind, const std::vector<Key>& keys,
                          std::int32_t most);
  // Whether all tables of a kind have a prefix of so many tokens, in blocks that `found` gets.
  bool found_at(const BlockPool& pool, const Kind& kind, const std::vector<Key>& keys,
                std::int32_t tokens, std::vector<BlockId>& found) const;
  // The hits end inside of a block, which is copied for the sequence.
  bool hits_tail() const { return hit_tokens_ % block_size_ != 0; }
  void copy_hit(BlockPool& pool, Blocks& blocks);
  // The state at the end of the prompt that the last step left in a table's block moves to a copy,
  // since the sequence goes on in its own.
  void keep_tail(BlockPool& pool, RequestId request, std::size_t table);
  bool keeps_tail(RequestId request, std::size_t table) const {
    const auto found = tails_.find(request);
    return found != tails_.end() && found->second[table] != 0;
  }
  void set_tail(BlockPool& pool, const Blocks& blocks, std::size_t table, std::int32_t prompt_tail,
                std::int32_t tokens, const std::vector<Key>& keys);
  void key_state(BlockPool& pool, RequestId request, const Sequence& sequence, std::size_t table,
                 std::int32_t tokens, const std::vector<Key>& keys);
  void note_checkpoint(RequestId request, const Sequence& sequence, std::int32_t start,
                       std::int32_t end);
  std::int32_t junction_of(RequestId request) const {
    const auto found = junctions_.find(request);
    return found == junctions_.end() ? 0 : found->second;
  }
  bool cached(const BlockPool& pool, const Kind& kind, Key key, std::int32_t block);
  std::int32_t find_window(const BlockPool& pool, const Kind& kind, const std::vector<Key>& keys,
                           std::int32_t blocks, bool drops);
  // Most tokens that a table with a window or chunks holds of a sequence with `ahead` tokens more
  // than a step computes, and its blocks.
  std::int64_t most_held(Table table, std::int64_t ahead) const {
    const std::int64_t seen = table.chunk() > 0 ? table.chunk() : table.window - 1 + held_behind_;
    return seen + step_tokens_ + ahead;
  }
  static std::int64_t blocks_held(Table table, std::int64_t tokens) {
    const std::int64_t cut = table.chunk() > 0 ? 0 : 1;  // a window begins inside of a block
    return ceil_div(tokens, table.size) + cut;
  }
  // Blocks that a prefix needs of a window, and one more where a drafter gives the last one up.
  static std::int32_t enough(Table table, bool drops) {
    return static_cast<std::int32_t>(ceil_div(table.window - 1, table.size)) + drops;
  }
  // Whether a prefix could end such that it needs this block of a window.
  bool reachable(Table table, std::int32_t block, std::span<const std::int32_t> ends) const;
  // Where prefixes of a request can end whatever the retention is, in units of `alignment_`.
  std::vector<std::int32_t> prefix_ends(RequestId request, const Sequence& sequence) const;

  std::vector<Table> tables_;
  std::vector<Kind> kinds_;  // what sees everything first
  std::size_t home_ = 0;     // of the table whose blocks are in `Sequence::blocks`
  std::int32_t block_size_, key_tokens_, alignment_, max_model_len_, step_tokens_, retention_,
      held_behind_;
  std::int32_t hit_tokens_ = 0;
  bool drops_last_hit_, frees_processed_;
  CachedStates states_;
  std::vector<Key> hit_keys_;      // of the last block hit, by table
  std::unordered_set<Key> fresh_;  // of states that this step leaves
  std::vector<Blocks> hits_;
  // By table, the one in `Sequence::blocks` empty; looked up, never walked.
  std::unordered_map<RequestId, std::vector<Blocks>> others_;
  // Tokens that some table has cached of a prefix that not all have: where the last look-up ended.
  std::unordered_map<RequestId, std::int32_t> junctions_;
  // Places of the states before the newest ones in tables of cached states, which are given back
  // even behind a gap; kept only where others behind gaps stay.
  std::unordered_map<RequestId, std::int32_t> last_states_;
  // By table, blocks whose state ends the prompt inside of a block, until the next step copies it;
  // 0: none.
  std::unordered_map<RequestId, std::vector<BlockId>> tails_;
  // The state that the last step leaves inside of its chunk: tokens before it, and its block.
  struct Checkpoint {
    std::int32_t tokens, block;
  };
  std::unordered_map<RequestId, Checkpoint> checkpoints_;
  // Whether a place has the state of another number of tokens than those of its block's end.
  bool is_checkpoint_within(RequestId request, std::int32_t place) const {
    const auto found = checkpoints_.find(request);
    return found != checkpoints_.end() && found->second.block == place &&
           found->second.tokens != (place + 1) * block_size_;
  }
  std::vector<BlockId> copied_;  // held once more by this step
};

}  // namespace llmsim
