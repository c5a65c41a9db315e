// Which blocks a sequence holds: allocation, prefix hits and registration on top of the block pool
// (vLLM's KVCacheManager and single-type manager for full attention; kv_tables.h for layers of
// other kinds).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "kv/block_pool.h"
#include "kv/hybrid_kv_cache.h"
#include "kv/kv_below.h"
#include "kv/offloading/connector.h"
#include "kv/tiers/kv_tiers.h"
#include "request/sequence_table.h"

namespace llmsim {

struct KvCacheConfig {
  std::int32_t num_blocks = 0;  // with the null block
  std::int32_t block_size = 16;
  std::int32_t max_model_len = 0;
  bool prefix_caching = true;
  FreeOrder free_order = FreeOrder::kUnkeyedFirst;
  std::shared_ptr<Eviction> eviction = nullptr;  // null: least recently used
  bool drops_last_hit =
      false;  // a drafter that reads hidden states needs those of the last block (vLLM: use_eagle)
  // A block's key covers so many tokens behind it, which the drafter reads, instead of
  // `drops_last_hit` (vLLM 0.33).
  std::int32_t key_lookahead = 0;
  // Last computed tokens whose KV a drafter of several modules writes again (vLLM 0.33); not with
  // tables.
  std::int32_t unsettled_tokens = 0;
  KvTablesConfig tables;  // of layers that keep different parts of a sequence
};

class KvCache {
 public:
  // Throws std::invalid_argument where the workload's content keys do not fit the blocks.
  KvCache(const KvCacheConfig& config, SequenceTable& sequences);

  // Cached leading blocks of the sequence, at most (num_tokens - 1) / block_size of them, so that
  // at least one token is computed. Nothing is changed; the blocks are valid until the next
  // allocation.
  void find_hits(RequestId request, std::vector<BlockId>& hits);

  // Whether `tokens` tokens of KV fit, counting hits and leaving `spare` blocks free.
  bool fits(const Sequence& sequence, std::int32_t tokens, const std::vector<BlockId>& hits,
            std::int32_t spare) const {
    return taken(sequence, tokens, hits, /*whole=*/false) <= pool_.num_free() - spare;
  }
  // The same for all of a sequence, of which layers with a window never hold everything at once.
  bool fits_whole(const Sequence& sequence, std::int32_t tokens, const std::vector<BlockId>& hits,
                  std::int32_t spare) const {
    return taken(sequence, tokens, hits, /*whole=*/true) <= pool_.num_free() - spare;
  }
  // Makes room for `tokens` tokens in all; the hits become the sequence's first blocks. Requires
  // fits().
  void allocate(RequestId request, std::int32_t tokens, const std::vector<BlockId>& hits);
  // Room for `tokens` tokens of a running sequence, or false with nothing changed.
  bool grow(RequestId request, std::int32_t tokens) {
    return grow(request, sequences_[request], tokens);
  }
  bool grow(RequestId request, Sequence& sequence, std::int32_t tokens) {
    if (tokens > config_.max_model_len) tokens = config_.max_model_len;
    if (tokens <= slots(sequence) && !tables_) return true;
    return grow_slow(request, sequence, tokens);
  }
  // Gives keys to the blocks that are full once `tokens` tokens are computed.
  void register_full(RequestId request, std::int32_t tokens) {
    register_full(request, sequences_[request], tokens);
  }
  void register_full(RequestId request, const Sequence& sequence, std::int32_t tokens) {
    const bool tail = tables_ && tables_->matches_tails() && tokens <= sequence.prompt_tokens &&
                      config_.prefix_caching;
    if (tokens >= next_key(sequence) || tail) register_slow(request, tokens);
  }
  // Tokens of the hits that were found last.
  std::int32_t hit_tokens(const std::vector<BlockId>& hits) const {
    return tables_ ? tables_->hit_tokens()
                   : static_cast<std::int32_t>(hits.size()) * config_.block_size;
  }
  // A step is formed.
  void end_step() {
    if (tables_) tables_->end_step(pool_);
  }
  // Tokens whose KV the sequence's blocks hold.
  std::int32_t slots(const Sequence& sequence) const {
    return static_cast<std::int32_t>(sequence.blocks.size()) * config_.block_size;
  }
  // Tokens with which its next block gets a key.
  std::int32_t next_key(const Sequence& sequence) const {
    if (!config_.prefix_caching) return std::numeric_limits<std::int32_t>::max();
    const std::int32_t next = (sequence.num_keyed_blocks + 1) * config_.block_size;
    if (!tables_) return next;
    return static_cast<std::int32_t>(ceil_div(next, tables_->alignment())) * tables_->alignment();
  }
  // Known and computed tokens below which it gives no block back, after a step that began when
  // `computed` were.
  struct Kept {
    std::int32_t known = std::numeric_limits<std::int32_t>::max(), computed = known;
  };
  Kept kept(RequestId request, const Sequence& sequence, std::int32_t computed) const {
    Kept kept;
    if (!tables_) return kept;
    if (!tables_->settled(request)) return {0, 0};
    if (config_.tables.frees_processed) {
      const std::int32_t next = tables_->next_given_back(sequence.processed());
      kept.known = next == kept.known ? next : next + 1;  // all but the last one are processed
    } else {
      kept.computed = tables_->next_given_back(computed);
    }
    return kept;
  }
  // A step begins.
  void begin_step() {
    if (tables_) tables_->begin_step();
  }
  // Tokens of a chunk of at most `most` that would be `tokens` long: where layers keep states, a
  // prompt is cut where these are cached.
  std::int32_t cut(RequestId request, const Sequence& sequence, std::int32_t start,
                   std::int32_t tokens, std::int32_t most) const {
    return tables_ && tokens > 0 ? tables_->cut(request, sequence, start, tokens, most) : tokens;
  }
  // Most blocks that a sequence holds at once on its way to `slots` slots, `ahead` of them for
  // drafts.
  std::int64_t most_blocks(std::int64_t slots, std::int32_t ahead) const {
    return tables_ ? tables_->most_blocks(slots, ahead) : ceil_div(slots, config_.block_size);
  }
  // Returns all blocks, last first. A preempted sequence may ask for its own blocks again, so they
  // become findable.
  void release(RequestId request, bool preempted);
  // The same in two parts: they are no longer the request's; and, later, they are free.
  std::vector<BlockId> take(RequestId request, bool preempted);
  void give_back(const std::vector<BlockId>& blocks);
  void log_keys(KeyLog* log) { pool_.log_keys(log); }

  // Pools below the device's. Throws std::invalid_argument where their chunks are not whole blocks.
  void use_tiers(GroupTiers& tiers);
  // The same for a pool in host memory under vLLM's own rules; valid for as long as the cache.
  const OffloadingConnector& use_offloading(const OffloadingConfig& config, GroupCopies& copies);
  KvBelow& below() { return *below_; }
  const KvBelow& below() const { return *below_; }
  // Takes blocks for a request that is parked until `recalled` tokens have come from below.
  void load(RequestId request, std::int32_t hit, std::int32_t recalled, std::int32_t slots,
            const std::vector<BlockId>& hits) {
    below_->begin_load(request, hit, recalled);
    allocate(request, slots, hits);
    below_->end_load(request, hit, recalled);
  }

  // The key of a block's content, and of the prefix before it.
  Key key_of(RequestId request, std::int32_t block) const {
    return key_of(request, block, config_.block_size);
  }

  const BlockPool& pool() const { return pool_; }
  const KvCacheConfig& config() const { return config_; }
  std::int32_t usable_blocks() const { return config_.num_blocks - 1; }
  std::int32_t blocks_for(std::int64_t tokens) const {
    return static_cast<std::int32_t>(ceil_div(tokens, config_.block_size));
  }

 private:
  std::int32_t taken(const Sequence& sequence, std::int32_t tokens,
                     const std::vector<BlockId>& hits, bool whole) const;
  bool grow_slow(RequestId request, Sequence& sequence, std::int32_t tokens);
  void register_slow(RequestId request, std::int32_t tokens);
  void list_keys(RequestId request, std::int32_t first, std::int32_t end);  // into `keys_`
  void keep_findable(const Sequence& sequence);  // its keyed blocks, whatever their content
  void forget_blocks(Sequence& sequence, bool preempted);
  // Most leading blocks of a sequence that can have a key with so many tokens computed.
  std::int32_t most_keyed(const Sequence& sequence, std::int32_t tokens) const {
    return std::max(0, std::min(tokens, sequence.num_tokens - config_.key_lookahead)) /
           config_.block_size;
  }
  // The place of a block's key among the keys of its request's content.
  std::int64_t content_of(std::int32_t block, std::int32_t size) const;
  bool shareable(RequestId request, std::int32_t block) const {
    return shareable(request, block, config_.block_size);
  }
  // The same of the pieces of `size` tokens of a sequence.
  bool shareable(RequestId request, std::int32_t piece, std::int32_t size) const;
  Key key_of(RequestId request, std::int32_t piece, std::int32_t size) const;
  std::int32_t key_tokens() const { return tables_ ? tables_->key_tokens() : config_.block_size; }
  // Throws std::invalid_argument where nothing can be below.
  void prepare_below();

  KvCacheConfig config_;
  SequenceTable& sequences_;
  BlockPool pool_;
  std::optional<KvTables> tables_;  // of models whose layers keep different parts of a sequence
  std::vector<Key> keys_;           // scratch
  std::unique_ptr<KvBelow> below_ = std::make_unique<NothingBelow>();
  std::int32_t chunk_blocks_ = 0;  // of tiers that hear of the ends of chunks
};

}  // namespace llmsim
