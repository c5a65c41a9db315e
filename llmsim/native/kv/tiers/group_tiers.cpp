// One group's view of the pools of KV below it.
#include <algorithm>

#include "kv/tiers/kv_tiers.h"

namespace llmsim {

namespace {

// Keys of a workload are dense numbers; a request's own name it, and so its model.
Key salted(Key key, std::int32_t model) {
  return (key & kOwnKey) != 0 ? key : key | static_cast<Key>(model) << 47;
}
}  // namespace

std::int32_t GroupTiers::chunk_tokens() const { return tiers_.config_of(group_).chunk_tokens; }
TierWrite GroupTiers::write() const { return tiers_.config_.write; }

bool GroupTiers::holds(Key key) const {
  const GroupTiersConfig& config = tiers_.config_of(group_);
  const Key name = salted(key, config.model);
  return std::any_of(config.pools.begin(), config.pools.end(), [&](std::int32_t pool) {
    return tiers_.pools_[static_cast<std::size_t>(pool)].holds(name);
  });
}

bool GroupTiers::consistent() const { return tiers_.consistent(); }
bool GroupTiers::parks() const { return tiers_.config_.parks; }

void GroupTiers::recall(const TierChunk& chunk, std::int32_t tokens) {
  const GroupTiersConfig& config = tiers_.config_of(group_);
  const Key name = salted(chunk.key, config.model);
  for (const std::int32_t index : config.pools) {
    TierPool& pool = tiers_.pools_[static_cast<std::size_t>(index)];
    if (!pool.holds(name)) {
      ++pool.counters().missed_chunks;
      continue;
    }
    pool.use(name);
    pool.begin_read(name);
    ++pool.counters().hit_chunks;
    pool.counters().hit_tokens += tokens;
    pool.counters().recalled_bytes += tokens * config.all_bytes_per_token();
    count(index, tokens * config.all_bytes_per_token());
    std::vector<Wanted>& recalls = loading_ ? loads_.back().recalls : recalls_;
    auto wanted = std::find_if(recalls.begin(), recalls.end(),
                               [&](const Wanted& w) { return w.pool == index; });
    if (wanted == recalls.end()) wanted = recalls.insert(recalls.end(), {index, {}});
    wanted->pieces.push_back({name, tokens});
    return;
  }
}

void GroupTiers::count(std::int32_t pool, std::int64_t bytes) {
  const auto found = std::find_if(moved_.begin(), moved_.end(),
                                  [pool](const auto& one) { return one.first == pool; });
  if (found == moved_.end()) {
    moved_.emplace_back(pool, bytes);
  } else {
    found->second += bytes;
  }
}

void GroupTiers::missed() {
  for (const std::int32_t index : tiers_.config_of(group_).pools)
    ++tiers_.pools_[static_cast<std::size_t>(index)].counters().missed_chunks;
}

void GroupTiers::store(Key key, std::int32_t depth, bool gate) {
  const GroupTiersConfig& config = tiers_.config_of(group_);
  const std::int64_t bytes = config.chunk_tokens * config.all_bytes_per_token();
  std::vector<Write>& writes = gate && loading_ ? loads_.back().writes : writes_;
  writes.push_back({{salted(key, config.model), bytes, depth}, gate});
}

void GroupTiers::start(Ps now) {
  for (const Wanted& wanted : recalls_) tiers_.start_recall(group_, wanted, -1, now);
  for (const Write& write : writes_) tiers_.start_write(group_, write, -1, now);
  recalls_.clear();
  writes_.clear();
  for (Load& load : loads_) {
    load.group = group_;
    tiers_.start_load(std::move(load), now);
  }
  loads_.clear();
}

}  // namespace llmsim
