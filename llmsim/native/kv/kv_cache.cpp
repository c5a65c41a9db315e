#include "kv/kv_cache.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kv/tiers/tiers_below.h"

namespace llmsim {

KvCache::KvCache(const KvCacheConfig& config, SequenceTable& sequences)
    : config_(config),
      sequences_(sequences),
      pool_(config.num_blocks, config.free_order, config.eviction) {
  const std::int32_t size = config.block_size, unit = sequences.content().granularity;
  if (config.prefix_caching && !sequences.content().keys.empty() && size % unit != 0 &&
      unit % size != 0)
    throw std::invalid_argument("content keys of " + std::to_string(unit) +
                                " tokens cannot name blocks of " + std::to_string(size) +
                                ": one has to be a multiple of the other");
  if (!config.tables.plain())
    tables_.emplace(config.tables, size, config.max_model_len, config.prefix_caching,
                    config.drops_last_hit);
}

// The workload's keys may name less than one of our blocks (then a block has the key of its last
// part) or, as those of traces with long blocks do, several (then a block has its part of their
// key).
//
// Of the tokens behind a block that its key covers, only whole units of content can be told apart.
std::int64_t KvCache::content_of(std::int32_t block, std::int32_t size) const {
  const std::int64_t end = (block + std::int64_t{1}) * size,
                     unit = sequences_.content().granularity;
  return std::max(ceil_div(end, unit), (end + config_.key_lookahead) / unit);
}

bool KvCache::shareable(RequestId request, std::int32_t piece, std::int32_t size) const {
  return content_of(piece, size) <=
         static_cast<std::int64_t>(sequences_.content().of(request).size());
}

Key KvCache::key_of(RequestId request, std::int32_t piece, std::int32_t size) const {
  if (!shareable(request, piece, size)) {
    return kOwnKey | (static_cast<Key>(request) << 28) | static_cast<Key>(piece);
  }
  const std::int64_t end = (piece + std::int64_t{1}) * size,
                     unit = sequences_.content().granularity;
  const Key key =
      sequences_.content().of(request)[static_cast<std::size_t>(content_of(piece, size) - 1)];
  if (size >= unit) return key;
  const std::int64_t parts = unit / size, part = (end - 1) % unit / size;
  return (key * static_cast<Key>(parts) + static_cast<Key>(part)) & ~kOwnKey;
}

void KvCache::find_hits(RequestId request, std::vector<BlockId>& hits) {
  hits.clear();
  if (tables_) tables_->forget_hits(request);
  const Sequence& sequence = sequences_[request];
  // Without shareable content only the request itself can have left blocks behind, by being
  // preempted.
  if (!config_.prefix_caching || (sequence.epoch == 0 && !shareable(request, 0, key_tokens())))
    return;
  const std::int32_t most = most_keyed(sequence, sequence.num_tokens - 1);
  if (tables_) {
    list_keys(request, 0,
              most * (config_.block_size / key_tokens()) +
                  (sequence.num_tokens - 1) % config_.block_size / key_tokens());
    tables_->find_hits(pool_, request, keys_, sequence.num_tokens - 1, hits);
    return;
  }
  for (std::int32_t i = 0; i < most; ++i) {
    const BlockId block = pool_.find(key_of(request, i));
    if (block == 0) break;
    hits.push_back(block);
  }
  if (config_.drops_last_hit && !hits.empty()) hits.pop_back();
}

void KvCache::list_keys(RequestId request, std::int32_t first, std::int32_t end) {
  keys_.clear();
  for (std::int32_t i = first; i < end; ++i) keys_.push_back(key_of(request, i, key_tokens()));
}

std::int32_t KvCache::taken(const Sequence& sequence, std::int32_t tokens,
                            const std::vector<BlockId>& hits, bool whole) const {
  if (tables_)
    return tables_->taken(pool_, sequence, std::min(tokens, config_.max_model_len), whole);
  const std::int32_t held = static_cast<std::int32_t>(sequence.blocks.size() + hits.size());
  std::int32_t taken = std::max(0, blocks_for(std::min(tokens, config_.max_model_len)) - held);
  for (const BlockId block : hits) taken += pool_.is_free(block);
  return taken;
}

void KvCache::allocate(RequestId request, std::int32_t tokens, const std::vector<BlockId>& hits) {
  Sequence& sequence = sequences_[request];
  if (tables_) {
    tables_->allocate(pool_, request, sequence, std::min(tokens, config_.max_model_len));
    pool_.tell();
    sequence.num_keyed_blocks = tables_->hit_tokens() / config_.block_size;
    return;
  }
  for (const BlockId block : hits) {
    pool_.touch(block);
    sequence.blocks.push_back(block);
  }
  pool_.tell();
  sequence.num_keyed_blocks = static_cast<std::int32_t>(hits.size());
  const std::int32_t needed = blocks_for(std::min(tokens, config_.max_model_len));
  while (static_cast<std::int32_t>(sequence.blocks.size()) < needed)
    sequence.blocks.push_back(pool_.allocate());
}

bool KvCache::grow_slow(RequestId request, Sequence& sequence, std::int32_t tokens) {
  if (tables_) {
    const bool room = tables_->grow(pool_, request, sequence, tokens);
    pool_.tell();
    return room;
  }
  const std::int32_t needed = blocks_for(tokens);
  if (needed - static_cast<std::int32_t>(sequence.blocks.size()) > pool_.num_free()) return false;
  while (static_cast<std::int32_t>(sequence.blocks.size()) < needed)
    sequence.blocks.push_back(pool_.allocate());
  return true;
}

void KvCache::register_slow(RequestId request, std::int32_t tokens) {
  Sequence& sequence = sequences_[request];
  const std::int32_t settled = tables_ ? tokens / tables_->alignment() * tables_->alignment()
                                       : tokens - config_.unsettled_tokens;
  const std::int32_t full = std::max(most_keyed(sequence, settled), sequence.num_keyed_blocks);
  if (tables_) {
    const bool tails = tables_->matches_tails();
    const std::int32_t known =
        tails ? std::min(tokens, sequence.num_tokens) : full * config_.block_size;
    list_keys(request, tails ? 0 : sequence.num_keyed_blocks, known / tables_->key_tokens());
    tables_->set_keys(pool_, request, sequence, sequence.num_keyed_blocks, known, keys_);
    sequence.num_keyed_blocks = full;
    return;
  }
  for (std::int32_t& i = sequence.num_keyed_blocks; i < full; ++i) {
    pool_.set_key(sequence.blocks[i], key_of(request, i), shareable(request, i));
    if (chunk_blocks_ > 0 && (i + 1) % chunk_blocks_ == 0)
      pool_.end_chunk(sequence.blocks[i], i / chunk_blocks_);
  }
}

void KvCache::prepare_below() {
  if (!config_.prefix_caching) throw std::invalid_argument("KV tiers need the prefix cache");
  if (tables_) throw std::invalid_argument("KV tiers need layers of one kind");
  // Connectors keep the keys that cover a block and nothing behind it.
  config_.drops_last_hit |= config_.key_lookahead > 0;
  config_.key_lookahead = 0;
}

void KvCache::use_tiers(GroupTiers& tiers) {
  prepare_below();
  if (tiers.chunk_tokens() % config_.block_size != 0)
    throw std::invalid_argument("a chunk of KV of " + std::to_string(tiers.chunk_tokens()) +
                                " tokens is not whole blocks of " +
                                std::to_string(config_.block_size));
  chunk_blocks_ = tiers.chunk_tokens() / config_.block_size;
  below_ = std::make_unique<TiersBelow>(tiers, sequences_,
                                        [this](RequestId request, std::int32_t chunk) {
                                          return key_of(request, (chunk + 1) * chunk_blocks_ - 1);
                                        });
  if (tiers.write() == TierWrite::kBack)
    pool_.on_drop(
        [&tiers](Key key, std::int32_t chunk) { tiers.store(key, chunk, /*gate=*/true); });
}

const OffloadingConnector& KvCache::use_offloading(const OffloadingConfig& config,
                                                   GroupCopies& copies) {
  prepare_below();
  auto connector = std::make_unique<OffloadingConnector>(
      config, config_.block_size, config_.drops_last_hit, sequences_,
      [this](RequestId request, std::int32_t block) { return key_of(request, block); }, copies);
  const OffloadingConnector& made = *connector;
  below_ = std::move(connector);
  return made;
}

void KvCache::keep_findable(const Sequence& sequence) {
  for (std::int32_t i = 0; i < sequence.num_keyed_blocks; ++i)
    pool_.make_findable(sequence.blocks[i]);
}

void KvCache::forget_blocks(Sequence& sequence, bool preempted) {
  sequence.blocks.clear();
  if (!preempted) sequence.blocks.shrink_to_fit();
  sequence.num_keyed_blocks = 0;
}

void KvCache::release(RequestId request, bool preempted) {
  Sequence& sequence = sequences_[request];
  if (tables_) {
    tables_->release(pool_, request, sequence);
    pool_.tell();
    forget_blocks(sequence, preempted);
    return;
  }
  if (preempted) keep_findable(sequence);
  pool_.release(sequence.blocks);
  pool_.tell();
  forget_blocks(sequence, preempted);
}

std::vector<BlockId> KvCache::take(RequestId request, bool preempted) {
  Sequence& sequence = sequences_[request];
  std::vector<BlockId> blocks;
  if (tables_) {
    blocks = tables_->take(request, sequence);
  } else {
    if (preempted) keep_findable(sequence);
    blocks.assign(sequence.blocks.begin(), sequence.blocks.end());
  }
  forget_blocks(sequence, preempted);
  return blocks;
}

void KvCache::give_back(const std::vector<BlockId>& blocks) {
  pool_.release(blocks);
  pool_.tell();
}

}  // namespace llmsim
