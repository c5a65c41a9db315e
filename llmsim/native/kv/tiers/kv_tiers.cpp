#include "kv/tiers/kv_tiers.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

namespace {
constexpr std::int32_t kFromDevices = -1;
}  // namespace

KvTiers::KvTiers(KvTiersConfig config, SharedNetwork& network, Callbacks callbacks)
    : config_(std::move(config)),
      network_(network),
      callbacks_(std::move(callbacks)),
      queues_(config_.pools.size()) {
  for (TierPoolConfig& pool : config_.pools) {
    if (pool.capacity_bytes < 0) throw std::invalid_argument("a pool of KV of a negative size");
    if (pool.queue_depth < 0 || pool.read_latency < 0 || pool.write_latency < 0)
      throw std::invalid_argument("a pool of KV with a negative queue depth or latency");
    const bool striped =
        !config_.stripes.empty() && std::ranges::count(pool.places, config_.striped) > 0;
    if (pool.places.empty()) throw std::invalid_argument("a pool of KV that is nowhere");
    if (pool.queue_depth > 0 && (striped || pool.places.size() > 1))
      throw std::invalid_argument(
          "a pool of KV on several memories with a queue depth; each of them needs its own queue");
    pools_.emplace_back(pool);
  }
  for (const GroupTiersConfig& group : config_.groups) view(group);
}

void KvTiers::view(const GroupTiersConfig& group) {
  for (const std::int32_t pool : group.pools)
    if (pool < 0 || pool >= static_cast<std::int32_t>(pools_.size()))
      throw std::invalid_argument("a group names a pool of KV that does not exist");
  const auto no_bytes = [](std::int64_t bytes) { return bytes < 1; };
  const bool empty =
      std::any_of(group.bytes_per_token.begin(), group.bytes_per_token.end(), no_bytes);
  if (!group.pools.empty() && (group.chunk_tokens < 1 || group.ranks.empty() || empty ||
                               group.bytes_per_token.size() != group.ranks.size()))
    throw std::invalid_argument(
        "a group with pools of KV needs ranks, and chunks of at least a token and a byte");
  const auto index = static_cast<std::int32_t>(groups_.size());
  groups_.push_back(group.pools.empty() ? nullptr : std::make_unique<GroupTiers>(*this, index));
}

void KvTiers::add_group(const GroupTiersConfig& group) {
  config_.groups.push_back(group);
  view(group);
}

void KvTiers::leave(std::int32_t group) {
  if (config_.shared) return;
  for (const std::int32_t pool : config_of(group).pools) pools_[at(pool)].clear();
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

// A memory sends each rank its share of all pieces at once, a storage device piece by piece.
void KvTiers::start_recall(std::int32_t group, const GroupTiers::Wanted& wanted, std::int64_t load,
                           Ps now) {
  const GroupTiersConfig& config = config_of(group);
  const TierPoolConfig& pool = pools_[static_cast<std::size_t>(wanted.pool)].config();
  const std::size_t ranks = config.ranks.size();
  Job job{group, wanted.pool, 0, true, load < 0, load, {}};
  std::vector<std::int64_t> tokens;
  for (const GroupTiers::Piece& piece : wanted.pieces) {
    job.keys.push_back(piece.key);
    if (tokens.empty() || pool.queue_depth > 0) tokens.push_back(0);
    tokens.back() += piece.tokens;
  }
  job.transfers = static_cast<std::int32_t>(tokens.size() * ranks);
  if (job.gate) ++groups_[static_cast<std::size_t>(group)]->gates_;
  const std::uint64_t id = new_job(std::move(job));
  for (const std::int64_t part : tokens)
    for (std::size_t rank = 0; rank < ranks; ++rank)
      operate(wanted.pool,
              {pool.places[pool.part_of(rank, ranks)], config.ranks[rank],
               part * config.bytes_per_token[rank], id, true},
              now);
}

// Write-back goes to the first pool, which may hand something on; the others to every pool that
// lacks the chunk.
std::int32_t KvTiers::start_write(std::int32_t group, const GroupTiers::Write& write,
                                  std::int64_t load, Ps now) {
  const std::size_t levels = config_.write == TierWrite::kBack ? 1 : config_of(group).pools.size();
  const Job job{group, 0, 0, false, write.gate && load < 0, load, {write.chunk.key}};
  std::int32_t jobs = 0;
  for (std::size_t level = 0; level < levels; ++level)
    jobs += write_to(level, write.chunk, kFromDevices, job, now);
  return jobs;
}

// A chunk on its way to a pool from all ranks.
std::vector<KvTiers::Operation> KvTiers::from_devices(const GroupTiersConfig& group,
                                                      const TierPoolConfig& pool) {
  const std::size_t ranks = group.ranks.size();
  std::vector<Operation> operations;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    operations.push_back({group.ranks[rank], pool.places[pool.part_of(rank, ranks)],
                          group.chunk_tokens * group.bytes_per_token[rank], 0, false});
  return operations;
}

// What a chunk takes from one pool to the next: a transfer for each node that either has its own
// memory on, with the shares of the node's ranks.
std::vector<KvTiers::Operation> KvTiers::handed_on(const GroupTiersConfig& group,
                                                   const TierChunk& chunk, std::int32_t from,
                                                   std::int32_t to) const {
  const TierPoolConfig &sender = pools_[at(from)].config(), &receiver = pools_[at(to)].config();
  const TierPoolConfig& wider = sender.places.size() > receiver.places.size() ? sender : receiver;
  const std::size_t parts = wider.places.size(), ranks = group.ranks.size();
  std::vector<std::int64_t> shares(parts, 0);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    shares[wider.part_of(rank, ranks)] += group.bytes_per_token[rank];
  const std::int64_t tokens = chunk.bytes / group.all_bytes_per_token();
  std::vector<Operation> operations;
  std::int64_t left = chunk.bytes;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::int64_t bytes = part + 1 < parts ? tokens * shares[part] : left;
    left -= bytes;
    operations.push_back({sender.places[sender.part_of(part, parts)],
                          receiver.places[receiver.part_of(part, parts)], bytes, 0, false});
  }
  return operations;
}

bool KvTiers::write_to(std::size_t level, const TierChunk& chunk, std::int32_t from, Job job,
                       Ps now) {
  const GroupTiersConfig& config = config_of(job.group);
  const std::int32_t group = job.group;
  job.pool = config.pools[level];
  job.keys = {chunk.key};
  TierPool& pool = pools_[static_cast<std::size_t>(job.pool)];
  if (pool.knows(chunk.key)) {
    pool.use(chunk.key);
    return false;
  }
  std::vector<TierChunk> given_up;
  if (!pool.reserve(chunk, given_up)) return false;
  ++pool.counters().written_chunks;
  pool.counters().written_bytes += chunk.bytes;
  GroupTiers& mine = *groups_[static_cast<std::size_t>(group)];
  mine.count(job.pool, chunk.bytes);
  if (from != kFromDevices) mine.count(from, chunk.bytes);
  if (job.gate) ++groups_[static_cast<std::size_t>(group)]->gates_;
  const std::int32_t to = job.pool;
  std::vector<Operation> operations = from == kFromDevices ? from_devices(config, pool.config())
                                                           : handed_on(config, chunk, from, to);
  job.transfers = static_cast<std::int32_t>(operations.size());
  const std::uint64_t id = new_job(std::move(job));
  for (Operation& operation : operations) {
    operation.job = id;
    operate(to, operation, now);
  }
  if (config_.write != TierWrite::kBack || level + 1 == config.pools.size()) return true;
  for (const TierChunk& moved : given_up)
    write_to(level + 1, moved, to, Job{group, 0, 0, false, false, -1, {}}, now);
  return true;
}

void KvTiers::start_load(GroupTiers::Load load, Ps now) {
  std::int64_t id = static_cast<std::int64_t>(loads_.size());
  if (free_loads_.empty()) {
    loads_.push_back(std::move(load));
  } else {
    id = free_loads_.back();
    free_loads_.pop_back();
    loads_[static_cast<std::size_t>(id)] = std::move(load);
  }
  const std::vector<GroupTiers::Write> writes =
      std::move(loads_[static_cast<std::size_t>(id)].writes);
  const std::int32_t group = loads_[static_cast<std::size_t>(id)].group;
  std::int32_t jobs = 0;
  for (const GroupTiers::Write& write : writes) jobs += start_write(group, write, id, now);
  loads_[static_cast<std::size_t>(id)].jobs = jobs;
  if (jobs == 0) read_load(id, now);
}

void KvTiers::read_load(std::int64_t id, Ps now) {
  GroupTiers::Load& load = loads_[static_cast<std::size_t>(id)];
  load.reading = true;
  load.jobs = static_cast<std::int32_t>(load.recalls.size());
  for (const GroupTiers::Wanted& wanted : load.recalls) start_recall(load.group, wanted, id, now);
}

void KvTiers::job_of_load_ended(std::int64_t id, Ps now) {
  GroupTiers::Load& load = loads_[static_cast<std::size_t>(id)];
  if (--load.jobs > 0) return;
  if (!load.reading) return read_load(id, now);
  const std::int32_t group = load.group;
  const RequestId request = load.request;
  load = {};
  free_loads_.push_back(id);
  callbacks_.loaded(group, request);
}

void KvTiers::operate(std::int32_t pool, const Operation& operation, Ps now) {
  const TierPoolConfig& config = pools_[static_cast<std::size_t>(pool)].config();
  if (config.queue_depth == 0) return begin(pool, operation, now);
  Queue& queue = queues_[static_cast<std::size_t>(pool)];
  TierCounters& counters = pools_[static_cast<std::size_t>(pool)].counters();
  ++counters.operations;
  if (queue.busy == config.queue_depth) {
    ++counters.queued_operations;
    queue.waiting.push_back(operation);
    return;
  }
  ++queue.busy;
  begin(pool, operation, now);
}

void KvTiers::begin(std::int32_t pool, const Operation& operation, Ps now) {
  const TierPoolConfig& config = pools_[static_cast<std::size_t>(pool)].config();
  const Ps at = now + (operation.read ? config.read_latency : config.write_latency);
  move(operation, config.queue_depth > 0, at, now);
}

void KvTiers::move(const Operation& operation, bool queued, Ps at, Ps now) {
  const bool from = operation.from == config_.striped, to = operation.to == config_.striped;
  if (config_.stripes.empty() || (!from && !to)) {
    const Ps out = at + network_.way_out(operation.from, operation.to);
    network_.transfer_at(operation.from, operation.to, operation.bytes, out, now, *this,
                         operation.job, Purpose::kKvTier);
    return;
  }
  const auto count = static_cast<std::int64_t>(config_.stripes.size());
  Job& job = jobs_[operation.job];
  job.transfers += static_cast<std::int32_t>(count) - 1;
  job.pieces = queued;  // what one pool hands on to the next is one operation
  for (std::int64_t i = 0; i < count; ++i) {
    const NetworkNodeId stripe = config_.stripes[static_cast<std::size_t>(i)];
    const std::int64_t bytes = operation.bytes / count + (i < operation.bytes % count);
    const NetworkNodeId sender = from ? stripe : operation.from,
                        receiver = to ? stripe : operation.to;
    const Ps out = at + network_.way_out(sender, receiver);
    network_.transfer_at(sender, receiver, bytes, out, now, *this, operation.job, Purpose::kKvTier);
  }
}

void KvTiers::ended(std::int32_t pool, Ps now) {
  if (pools_[static_cast<std::size_t>(pool)].config().queue_depth == 0) return;
  Queue& queue = queues_[static_cast<std::size_t>(pool)];
  if (queue.waiting.empty()) {
    --queue.busy;
    return;
  }
  const Operation next = queue.waiting.front();
  queue.waiting.pop_front();
  begin(pool, next, now);
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

void KvTiers::landed(TransferId, std::uint64_t token, Ps now) {
  if (!jobs_[token].pieces || jobs_[token].transfers == 1) ended(jobs_[token].pool, now);
  if (--jobs_[token].transfers > 0) return;
  const Job job = std::move(jobs_[token]);
  jobs_[token] = {};
  free_jobs_.push_back(token);
  TierPool& pool = pools_[static_cast<std::size_t>(job.pool)];
  for (const Key key : job.keys) {
    if (job.recall) {
      pool.end_read(key);
    } else {
      pool.arrived(key);
    }
  }
  if (job.gate && --groups_[static_cast<std::size_t>(job.group)]->gates_ == 0)
    callbacks_.opened(job.group);
  if (job.load >= 0) job_of_load_ended(job.load, now);
}

bool KvTiers::consistent() const {
  std::vector<std::int64_t> read(pools_.size(), 0), written(pools_.size(), 0);
  const auto count = [&read](const std::vector<GroupTiers::Wanted>& recalls) {
    for (const auto& one : recalls)
      read[static_cast<std::size_t>(one.pool)] += std::ssize(one.pieces);
  };
  for (const Job& job : jobs_)
    if (job.transfers > 0)
      (job.recall ? read : written)[static_cast<std::size_t>(job.pool)] += std::ssize(job.keys);
  for (const auto& load : loads_)
    if (!load.reading) count(load.recalls);
  for (const auto& group : groups_) {
    if (group == nullptr) continue;
    count(group->recalls_);
    for (const auto& load : group->loads_) count(load.recalls);
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (!pools_[i].consistent() || pools_[i].num_readers() != read[i] ||
        pools_[i].num_arriving() != written[i])
      return false;
    if (queues_[i].busy < pools_[i].config().queue_depth && !queues_[i].waiting.empty())
      return false;
  }
  return true;
}

}  // namespace llmsim
