#include "kv_cache.h"

#include <algorithm>

namespace llmsim {

namespace {
constexpr Key kOwnKey = Key{1} << 63;  // content that no other request can have; workload keys keep this bit clear
}

bool KvCache::shareable(RequestId request, std::int32_t block) const {
  const auto keys = sequences_.content().of(request);
  const std::int64_t ratio = config_.block_size / sequences_.content().granularity;
  return (block + 1) * ratio <= static_cast<std::int64_t>(keys.size());
}

Key KvCache::key_of(RequestId request, std::int32_t block) const {
  if (!shareable(request, block)) {
    return kOwnKey | (static_cast<Key>(request) << 28) | static_cast<Key>(block);
  }
  const std::int64_t ratio = config_.block_size / sequences_.content().granularity;
  return sequences_.content().of(request)[(block + 1) * ratio - 1];
}

void KvCache::find_hits(RequestId request, std::vector<BlockId>& hits) const {
  hits.clear();
  const Sequence& sequence = sequences_[request];
  // Without shareable content only the request itself can have left blocks behind, by being preempted.
  if (!config_.prefix_caching || (sequence.epoch == 0 && !shareable(request, 0))) return;
  const std::int32_t most = (sequence.num_tokens - 1) / config_.block_size;
  for (std::int32_t i = 0; i < most; ++i) {
    const BlockId block = pool_.find(key_of(request, i));
    if (block == 0) return;
    hits.push_back(block);
  }
}

bool KvCache::fits(const Sequence& sequence, std::int32_t tokens, const std::vector<BlockId>& hits,
                   std::int32_t spare) const {
  const std::int32_t held = static_cast<std::int32_t>(sequence.blocks.size() + hits.size());
  std::int32_t taken = std::max(0, blocks_for(std::min(tokens, config_.max_model_len)) - held);
  for (const BlockId block : hits) taken += pool_.is_free(block);
  return taken <= pool_.num_free() - spare;
}

void KvCache::allocate(RequestId request, std::int32_t tokens, const std::vector<BlockId>& hits) {
  Sequence& sequence = sequences_[request];
  for (const BlockId block : hits) {
    pool_.touch(block);
    sequence.blocks.push_back(block);
  }
  pool_.tell();
  sequence.num_keyed_blocks = static_cast<std::int32_t>(hits.size());
  const std::int32_t needed = blocks_for(std::min(tokens, config_.max_model_len));
  while (static_cast<std::int32_t>(sequence.blocks.size()) < needed) sequence.blocks.push_back(pool_.allocate());
}

bool KvCache::grow_slow(Sequence& sequence, std::int32_t tokens) {
  const std::int32_t needed = blocks_for(tokens);
  if (needed - static_cast<std::int32_t>(sequence.blocks.size()) > pool_.num_free()) return false;
  while (static_cast<std::int32_t>(sequence.blocks.size()) < needed) sequence.blocks.push_back(pool_.allocate());
  return true;
}

void KvCache::register_slow(RequestId request, std::int32_t tokens) {
  Sequence& sequence = sequences_[request];
  const std::int32_t full = tokens / config_.block_size;
  for (std::int32_t& i = sequence.num_keyed_blocks; i < full; ++i)
    pool_.set_key(sequence.blocks[i], key_of(request, i), shareable(request, i));
}

void KvCache::release(RequestId request, bool preempted) {
  Sequence& sequence = sequences_[request];
  if (preempted) {
    for (std::int32_t i = 0; i < sequence.num_keyed_blocks; ++i) pool_.make_findable(sequence.blocks[i]);
  }
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block) pool_.release(*block);
  pool_.tell();
  sequence.blocks.clear();
  if (!preempted) sequence.blocks.shrink_to_fit();
  sequence.num_keyed_blocks = 0;
}

}  // namespace llmsim
