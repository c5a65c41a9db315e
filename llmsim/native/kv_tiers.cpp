#include "kv_tiers.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

namespace {
constexpr Key kOwnKey = Key{1} << 63;
constexpr PlaceId kFromDevices = -1;

// Keys of a workload are dense numbers; a request's own name it, and so its model.
Key salted(Key key, std::int32_t model) { return (key & kOwnKey) != 0 ? key : key | static_cast<Key>(model) << 47; }
}  // namespace

std::int32_t GroupTiers::chunk_tokens() const { return tiers_.config_of(group_).chunk_tokens; }
TierWrite GroupTiers::write() const { return tiers_.config_.write; }

bool GroupTiers::holds(Key key) const {
  const GroupTiersConfig& config = tiers_.config_of(group_);
  const Key name = salted(key, config.model);
  return std::any_of(config.pools.begin(), config.pools.end(),
                     [&](std::int32_t pool) { return tiers_.pools_[static_cast<std::size_t>(pool)].holds(name); });
}

void GroupTiers::recall(const TierChunk& chunk, std::int32_t tokens) {
  const GroupTiersConfig& config = tiers_.config_of(group_);
  const Key name = salted(chunk.key, config.model);
  for (const std::int32_t index : config.pools) {
    TierPool& pool = tiers_.pools_[static_cast<std::size_t>(index)];
    if (!pool.holds(name)) continue;
    pool.use(name);
    pool.begin_read(name);
    const std::int64_t bytes = tokens * config.bytes_per_token;
    ++pool.counters().hit_chunks;
    pool.counters().hit_tokens += tokens;
    pool.counters().recalled_bytes += bytes * static_cast<std::int64_t>(config.ranks.size());
    auto wanted = std::find_if(recalls_.begin(), recalls_.end(), [&](const Wanted& w) { return w.pool == index; });
    if (wanted == recalls_.end()) wanted = recalls_.insert(recalls_.end(), {index, {}, 0});
    wanted->keys.push_back(name);
    wanted->bytes_per_rank += bytes;
    return;
  }
}

void GroupTiers::store(Key key, std::int32_t depth, bool gate) {
  const GroupTiersConfig& config = tiers_.config_of(group_);
  const std::int64_t bytes =
      config.chunk_tokens * config.bytes_per_token * static_cast<std::int64_t>(config.ranks.size());
  writes_.push_back({{salted(key, config.model), bytes, depth}, gate});
}

bool GroupTiers::start(Ps now) {
  for (const Wanted& wanted : recalls_) tiers_.start_recall(group_, wanted, now);
  for (const Write& write : writes_) tiers_.start_write(group_, write.chunk, write.gate, now);
  recalls_.clear();
  writes_.clear();
  return open();
}

KvTiers::KvTiers(KvTiersConfig config, Fabric& fabric, std::function<void(std::int32_t)> wake)
    : config_(std::move(config)), fabric_(fabric), wake_(std::move(wake)) {
  for (TierPoolConfig& pool : config_.pools) {
    if (pool.capacity_bytes < 0) throw std::invalid_argument("a pool of KV of a negative size");
    pools_.emplace_back(pool);
  }
  for (std::size_t i = 0; i < config_.groups.size(); ++i) {
    const GroupTiersConfig& group = config_.groups[i];
    for (const std::int32_t pool : group.pools)
      if (pool < 0 || pool >= static_cast<std::int32_t>(pools_.size()))
        throw std::invalid_argument("a group names a pool of KV that does not exist");
    if (!group.pools.empty() && (group.chunk_tokens < 1 || group.bytes_per_token < 1 || group.ranks.empty()))
      throw std::invalid_argument("a group with pools of KV needs ranks, and chunks of at least a token and a byte");
    groups_.push_back(group.pools.empty() ? nullptr
                                          : std::make_unique<GroupTiers>(*this, static_cast<std::int32_t>(i)));
  }
}

std::uint64_t KvTiers::new_job(Job job) {
  if (free_jobs_.empty()) {
    jobs_.push_back(std::move(job));
    return jobs_.size() - 1;
  }
  const std::uint64_t slot = free_jobs_.back();
  free_jobs_.pop_back();
  jobs_[slot] = std::move(job);
  return slot;
}

void KvTiers::start_recall(std::int32_t group, const GroupTiers::Wanted& wanted, Ps now) {
  const GroupTiersConfig& config = config_of(group);
  const auto ranks = static_cast<std::int32_t>(config.ranks.size());
  const std::uint64_t job = new_job({group, wanted.pool, ranks, true, true, wanted.keys});
  ++groups_[static_cast<std::size_t>(group)]->gates_;
  const PlaceId from = pools_[static_cast<std::size_t>(wanted.pool)].config().place;
  for (const PlaceId rank : config.ranks)
    fabric_.transfer(from, rank, wanted.bytes_per_rank, now, *this, job, Purpose::kKvTier);
}

// Write-back goes to the first pool, which may hand something on; the others to every pool that lacks the chunk.
void KvTiers::start_write(std::int32_t group, const TierChunk& chunk, bool gate, Ps now) {
  const std::size_t levels = config_.write == TierWrite::kBack ? 1 : config_of(group).pools.size();
  for (std::size_t level = 0; level < levels; ++level) write_to(level, group, chunk, kFromDevices, gate, now);
}

void KvTiers::write_to(std::size_t level, std::int32_t group, const TierChunk& chunk, PlaceId from, bool gate, Ps now) {
  const GroupTiersConfig& config = config_of(group);
  TierPool& pool = pools_[static_cast<std::size_t>(config.pools[level])];
  if (pool.knows(chunk.key)) {
    pool.use(chunk.key);
    return;
  }
  std::vector<TierChunk> given_up;
  if (!pool.reserve(chunk, given_up)) return;
  ++pool.counters().written_chunks;
  pool.counters().written_bytes += chunk.bytes;
  const bool from_devices = from == kFromDevices;
  const auto transfers = from_devices ? static_cast<std::int32_t>(config.ranks.size()) : 1;
  const std::uint64_t job = new_job({group, config.pools[level], transfers, false, gate, {chunk.key}});
  if (gate) ++groups_[static_cast<std::size_t>(group)]->gates_;
  const PlaceId to = pool.config().place;
  if (from_devices) {
    for (const PlaceId rank : config.ranks)
      fabric_.transfer(rank, to, chunk.bytes / transfers, now, *this, job, Purpose::kKvTier);
  } else {
    fabric_.transfer(from, to, chunk.bytes, now, *this, job, Purpose::kKvTier);
  }
  if (config_.write != TierWrite::kBack || level + 1 == config.pools.size()) return;
  for (const TierChunk& moved : given_up) write_to(level + 1, group, moved, to, false, now);
}

void KvTiers::sample(Ps now) {
  sampled_.resize(pools_.size());
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const TierCounters &c = pools_[i].counters(), &last = sampled_[i];
    series_.time_ps.push_back(now);
    series_.pool.push_back(static_cast<std::int32_t>(i));
    series_.used_bytes.push_back(pools_[i].used_bytes());
    series_.hit_tokens.push_back(c.hit_tokens - last.hit_tokens);
    series_.recalled_bytes.push_back(c.recalled_bytes - last.recalled_bytes);
    series_.written_bytes.push_back(c.written_bytes - last.written_bytes);
    series_.evicted_chunks.push_back(c.evicted_chunks - last.evicted_chunks);
    series_.thrashed_chunks.push_back(c.thrashed_chunks - last.thrashed_chunks);
    sampled_[i] = c;
  }
}

void KvTiers::landed(TransferId, std::uint64_t token, Ps) {
  Job& job = jobs_[token];
  if (--job.transfers > 0) return;
  TierPool& pool = pools_[static_cast<std::size_t>(job.pool)];
  for (const Key key : job.keys) {
    if (job.recall) {
      pool.end_read(key);
    } else {
      pool.arrived(key);
    }
  }
  free_jobs_.push_back(token);
  if (!job.gate) return;
  GroupTiers& group = *groups_[static_cast<std::size_t>(job.group)];
  if (--group.gates_ == 0) wake_(job.group);
}

}  // namespace llmsim
