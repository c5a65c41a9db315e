#include "kv/offloading/connector.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace llmsim {

OffloadingConnector::OffloadingConnector(const OffloadingConfig& config, std::int32_t block_size,
                                         bool drafts_from_states, SequenceTable& sequences,
                                         KeyOf key_of, GroupCopies& copies)
    : config_(config),
      chunk_tokens_(config.blocks_per_chunk * block_size),
      drafted_(drafts_from_states && !config.pool.rules.offloads_drafted ? 1 : 0),
      sequences_(sequences),
      key_of_(std::move(key_of)),
      copies_(copies),
      pool_(config.pool) {
  if (config.blocks_per_chunk < 1)
    throw std::invalid_argument("a chunk of offloaded KV has at least one block, not " +
                                std::to_string(config.blocks_per_chunk));
  if (config.pool.num_chunks < 0)
    throw std::invalid_argument("a pool of offloaded KV of a negative size");
  if (config.sync_load_tokens < 0)
    throw std::invalid_argument("a step waits for loads of at least no token, not " +
                                std::to_string(config.sync_load_tokens));
}

std::vector<OffloadedChunk> OffloadingConnector::chunks_of(RequestId request, std::int32_t first,
                                                           std::int32_t end) const {
  std::vector<OffloadedChunk> chunks;
  for (std::int32_t place = first; place < end; ++place) chunks.push_back(chunk_of(request, place));
  return chunks;
}

std::int32_t OffloadingConnector::find(RequestId request, std::int32_t cached) {
  Request& one = requests_[request];
  one.blocks.clear();
  if (rules_.offers_again) one.num_stored = 0;
  loads_in_step_.erase(request);
  const auto later = [this] {
    ++counters_.deferred_lookups;
    return kLater;
  };
  if (!one.jobs.empty()) return later();
  const std::int32_t found = look_up(request, cached);
  touch(request);
  return found == kLater ? later() : found;
}

void OffloadingConnector::touch(RequestId request) {
  pool_.touch(chunks_of(request, 0, sequences_[request].num_tokens / chunk_tokens_));
}

std::int32_t OffloadingConnector::look_up(RequestId request, std::int32_t cached) {
  const std::int32_t end = sequences_[request].num_tokens / chunk_tokens_;
  if (end * chunk_tokens_ - cached < chunk_tokens_) return 0;
  const std::int32_t first = cached / chunk_tokens_;
  std::int32_t place = first;
  bool written = false;
  for (; place < end; ++place) {
    const CpuManager::Lookup found = pool_.look_up(chunk_of(request, place).key);
    if (found == CpuManager::Lookup::kMiss) break;
    written |= found == CpuManager::Lookup::kPending;
  }
  if (place == first) return 0;
  if (written) return kLater;
  place -= drafted_;
  const std::int32_t found = place * chunk_tokens_ - cached;
  if (found < chunk_tokens_) return 0;
  const std::vector<OffloadedChunk> chunks = chunks_of(request, first, place);
  const auto loaded = [this](const OffloadedChunk& chunk) { return loading_.contains(chunk.key); };
  if (!loading_.empty() && std::ranges::any_of(chunks, loaded)) return kLater;
  if (loads_in_step(request, cached, found)) loads_in_step_.insert(request);
  return found;
}

// One token at least is left to compute.
bool OffloadingConnector::loads_in_step(RequestId request, std::int32_t cached,
                                        std::int32_t found) {
  if (cached + found >= sequences_[request].num_tokens) return false;
  if (sync_load_tokens_ + found > config_.sync_load_tokens) return false;
  sync_load_tokens_ += found;
  return true;
}

void OffloadingConnector::recall(RequestId request, std::int32_t hit, std::int32_t recalled) {
  if (recalled > 0) begin_load(request, hit, recalled, Kind::kLoadInStep);
}

void OffloadingConnector::end_load(RequestId request, std::int32_t hit, std::int32_t recalled) {
  const std::vector<BlockId>& blocks = sequences_[request].blocks;
  taken_.insert(blocks.begin(), blocks.end());
  begin_load(request, hit, recalled, Kind::kLoad);
}

void OffloadingConnector::begin_load(RequestId request, std::int32_t hit, std::int32_t recalled,
                                     Kind kind) {
  Request& one = requests_[request];
  const std::int32_t end = (hit + recalled) / chunk_tokens_;
  const JobId job = next_job_++;
  std::vector<OffloadedChunk> chunks = chunks_of(request, hit / chunk_tokens_, end);
  pool_.prepare_load(chunks, one.access);
  one.num_stored = end;
  one.jobs.push_back(job);
  counters_.loaded_tokens += recalled;
  if (kind == Kind::kLoad) {
    for (const OffloadedChunk& chunk : chunks) loading_.insert(chunk.key);
    copies_.load(job, request, recalled);
  } else {
    copies_.load_in_step(job, request, recalled);
    ++num_unawaited_;
  }
  jobs_[job] = {request, kind, std::move(chunks), {}};
}

void OffloadingConnector::note_blocks(RequestId request) {
  std::vector<BlockId>& known = requests_[request].blocks;
  const std::vector<BlockId>& held = sequences_[request].blocks;
  for (std::size_t i = known.size(); i < held.size(); ++i) {
    taken_.insert(held[i]);
    known.push_back(held[i]);
  }
}

void OffloadingConnector::flush_preempted(RequestId request) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return;
  for (const JobId job : found->second.jobs)
    if (job < first_of_step_) copies_.flush(job);
}

void OffloadingConnector::flush_taken() {
  if (watched_.empty()) return;
  for (const BlockId block : taken_) {
    const auto watched = watched_.find(block);
    if (watched == watched_.end()) continue;
    for (const JobId job : watched->second) copies_.flush(job);
  }
}

// vLLM walks a set of those that have left, in an order that differs between runs.
void OffloadingConnector::scheduled(std::span<const Scheduled> items,
                                    std::span<const RequestId> preempted) {
  for (const Scheduled& item : items) note_blocks(item.request);
  for (const RequestId request : preempted) flush_preempted(request);
  flush_taken();
  std::ranges::sort(left_, {}, &Scheduled::request);
  for (const Scheduled& item : items) store(item.request, item.computed);
  for (const Scheduled& gone : left_)
    if (rules_.stores_ends && requests_.contains(gone.request)) store(gone.request, gone.computed);
  for (const Scheduled& gone : left_) {
    const auto found = requests_.find(gone.request);
    if (found == requests_.end()) continue;
    pool_.request_finished(found->second.access);
    if (found->second.jobs.empty()) requests_.erase(found);
  }
  left_.clear();
  taken_.clear();
  loads_in_step_.clear();
  sync_load_tokens_ = 0;
  first_of_step_ = next_job_;
}

OffloadingConnector::Storable OffloadingConnector::storable(RequestId request, const Request& one,
                                                            std::int32_t computed) const {
  const Sequence& s = sequences_[request];
  const std::int32_t tokens =
      std::min({computed, s.num_tokens, config_.prompt_only ? s.prompt_tokens : s.num_tokens});
  const std::int32_t reached = tokens / chunk_tokens_;
  const bool drafted = !rules_.keeps_progress || tokens > s.prompt_tokens;
  const std::int32_t written = std::max(0, reached - (drafted ? drafted_ : 0));
  const auto held = static_cast<std::int32_t>(one.blocks.size()) / config_.blocks_per_chunk;
  if (written > std::max(held, one.num_stored) && !rules_.ends_with_step)
    throw EngineFails(
        "vLLM 0.26 ends with an AssertionError of its OffloadingConnector where a client gives up "
        "whose tokens have no blocks, as that of request " +
        std::to_string(request));
  const std::int32_t end = std::min(written, held);
  return {end, rules_.keeps_progress ? std::max(one.num_stored, end) : reached};
}

void OffloadingConnector::store(RequestId request, std::int32_t computed) {
  Request& one = requests_[request];
  const Storable upto = storable(request, one, computed);
  if (upto.end <= one.num_stored) {
    one.num_stored = upto.reached;
    return;
  }
  const std::vector<OffloadedChunk> offered = chunks_of(request, one.num_stored, upto.end);
  auto chosen = pool_.prepare_store(offered, one.access);
  if (!chosen) {  // offered again with its next step
    counters_.refused_tokens += std::ssize(offered) * chunk_tokens_;
    return;
  }
  one.num_stored = upto.reached;
  if (chosen->empty()) return;
  touch(request);
  begin_store(request, one, std::move(*chosen));
}

void OffloadingConnector::begin_store(RequestId request, Request& one,
                                      std::vector<OffloadedChunk> chunks) {
  const JobId job = next_job_++;
  const std::int64_t tokens = std::ssize(chunks) * chunk_tokens_;
  std::vector<BlockId> blocks;
  for (const OffloadedChunk& chunk : chunks) {
    const auto first = one.blocks.begin() + chunk.place * config_.blocks_per_chunk;
    blocks.insert(blocks.end(), first, first + config_.blocks_per_chunk);
  }
  one.jobs.push_back(job);
  copies_.store(job, request, tokens);
  counters_.stored_tokens += tokens;
  ++num_unawaited_;
  if (one.has_left) {
    watch(job, blocks);
    const auto taken = [this](BlockId block) { return taken_.contains(block); };
    if (std::ranges::any_of(blocks, taken)) copies_.flush(job);
  }
  jobs_[job] = {request, Kind::kStore, std::move(chunks), std::move(blocks)};
}

void OffloadingConnector::watch(JobId job, const std::vector<BlockId>& blocks) {
  for (const BlockId block : blocks) watched_[block].push_back(job);
}

// What an ended request may store.
std::int32_t OffloadingConnector::kept_tokens(RequestId request, std::int32_t computed,
                                              Leave how) const {
  if (rules_.stores_computed) return computed;
  if (how == Leave::kGaveUp && rules_.ends_with_step) return computed;
  return sequences_[request].num_tokens;
}

void OffloadingConnector::left(RequestId request, std::int32_t computed, Leave how) {
  Request& one = requests_[request];
  one.has_left = true;
  for (const JobId job : one.jobs) watch(job, jobs_.at(job).blocks);
  left_.push_back({request, kept_tokens(request, computed, how)});
}

bool OffloadingConnector::moved(RequestId request) {
  Request& one = requests_.at(request);
  const JobId job = one.jobs.front();
  one.jobs.pop_front();
  const auto found = jobs_.find(job);
  const Kind kind = found->second.kind;
  const bool awaited = kind == Kind::kLoad;
  if (kind == Kind::kStore) {
    pool_.complete_store(found->second.chunks);
  } else {
    pool_.complete_load(found->second.chunks);
    // In vLLM the end of a load within a step, too, though another load of it may be under way.
    for (const OffloadedChunk& chunk : found->second.chunks) loading_.erase(chunk.key);
  }
  if (!awaited) --num_unawaited_;
  if (one.has_left) {
    for (const BlockId block : found->second.blocks) {
      const auto watched = watched_.find(block);
      std::erase(watched->second, job);
      if (watched->second.empty()) watched_.erase(watched);
    }
  }
  jobs_.erase(found);
  const auto waits = [this, request](const Scheduled& gone) {
    return rules_.ends_with_step && gone.request == request;
  };
  if (one.has_left && one.jobs.empty() && std::ranges::none_of(left_, waits))
    requests_.erase(request);
  return awaited;
}

}  // namespace llmsim
