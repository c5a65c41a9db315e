#include "scheduler/impl/mlfq.h"

#include <algorithm>

namespace llmsim {

std::int32_t Mlfq::iterations(std::int32_t tokens) const {
  return static_cast<std::int32_t>(ceil_div(tokens, config_.mlfq_tokens_per_iteration));
}

Mlfq::Rank Mlfq::rank(RequestId request) const {
  const Job& job = jobs_.at(request);
  return {job.level, job.place, request};
}

// Running is who is in the current batch; paused requests wait.
Gauges Mlfq::gauges() const {
  Gauges gauges = BatchScheduler::gauges();
  gauges.waiting = static_cast<std::int32_t>(ready_.size()) - gauges.running;
  return gauges;
}

void Mlfq::add(RequestId request) {
  Sequence& s = sequences_[request];
  s.status = static_cast<std::uint8_t>(Status::kWaiting);
  const std::int32_t first = config_.decode_only ? 1 : iterations(s.prompt_tokens);
  std::int32_t level = 0;
  while (level + 1 < config_.mlfq_levels && (std::int64_t{1} << level) < first) ++level;
  jobs_[request] = {level, 0, next_place_++, log_.queued[request]};
  ready_.insert(rank(request));
  not_running_.insert({log_.queued[request], request});
}

void Mlfq::form(Ps now, Batch& batch) {
  promote_starved(now);
  std::vector<RequestId> before;
  before.swap(running_);
  std::int32_t budget = config_.max_num_scheduled_tokens;
  for (const Rank& rank : ready_) {
    if (num_running() == config_.max_num_seqs || !run_job(now, rank, budget, batch)) break;
    running_.push_back(std::get<2>(rank));
    budget -= batch.items.back().tokens;
  }
  update_waiting(now, before);
}

bool Mlfq::run_job(Ps now, const Rank& rank, std::int32_t budget, Batch& batch) {
  const RequestId request = std::get<2>(rank);
  const Sequence& s = sequences_[request];
  const std::int32_t blocks =
      kv_.blocks_for(s.num_tokens) - static_cast<std::int32_t>(s.blocks.size());
  if (!s.blocks.empty()) {
    if (tokens_left(request) > budget || !make_room(rank, blocks, batch)) return false;
    kv_.grow(request, s.num_tokens);
    run(request, tokens_left(request), batch);
    return true;
  }
  const std::int32_t cached = find_cached(request);
  const std::int32_t tokens = s.num_tokens - cached;
  if (tokens > budget) return false;
  if (!start(now, request, cached, tokens, {s.num_tokens}, batch) &&
      (!make_room(rank, blocks, batch) ||
       !start(now, request, cached, tokens, {s.num_tokens}, batch)))
    return false;
  holders_.insert(rank);
  return true;
}

bool Mlfq::make_room(const Rank& rank, std::int32_t blocks, Batch& batch) {
  std::int64_t reachable = kv_.pool().num_free();
  if (reachable >= blocks) return true;
  for (auto holder = holders_.rbegin();
       holder != holders_.rend() && *holder > rank && reachable < blocks; ++holder)
    reachable += static_cast<std::int64_t>(sequences_[std::get<2>(*holder)].blocks.size());
  if (reachable < blocks) return false;
  // Blocks that requests share are free only when the last of them is dropped, so this may go
  // further than counted.
  while (kv_.pool().num_free() < blocks) {
    const auto lowest = std::prev(holders_.end());
    if (holders_.empty() || !(*lowest > rank)) return false;
    drop(std::get<2>(*lowest), batch);
    holders_.erase(lowest);
  }
  return true;
}

void Mlfq::update_waiting(Ps now, const std::vector<RequestId>& before) {
  for (const RequestId request : before)
    sequences_[request].status = static_cast<std::uint8_t>(Status::kWaiting);
  for (const RequestId request : running_) {
    sequences_[request].status = static_cast<std::uint8_t>(Status::kRunning);
    not_running_.erase({jobs_.at(request).waits_since, request});
  }
  for (const RequestId request : before) {
    if (sequences_[request].status == static_cast<std::uint8_t>(Status::kRunning)) continue;
    jobs_.at(request).waits_since = now;
    not_running_.insert({now, request});
  }
}

void Mlfq::promote_starved(Ps now) {
  while (!not_running_.empty() && not_running_.begin()->first + config_.mlfq_starvation <= now) {
    const RequestId request = not_running_.begin()->second;
    not_running_.erase(not_running_.begin());
    jobs_.at(request).waits_since = now;
    not_running_.insert({now, request});
    move(request, 0);
  }
}

// To the end of a level, with its whole quantum.
void Mlfq::move(RequestId request, std::int32_t level) {
  Job& job = jobs_.at(request);
  const Rank old = rank(request);
  ready_.erase(old);
  const bool holds = holders_.erase(old) > 0;
  job.level = level;
  job.used = 0;
  job.place = next_place_++;
  ready_.insert(rank(request));
  if (holds) holders_.insert(rank(request));
}

void Mlfq::served(const Item& item) {
  Job& job = jobs_.at(item.request);
  job.used += iterations(item.tokens);
  if (job.used >= (1 << job.level))
    move(item.request, std::min(job.level + 1, config_.mlfq_levels - 1));
}

void Mlfq::leave_queue(RequestId request) {
  not_running_.erase({jobs_.at(request).waits_since, request});
  leave(request);
}

void Mlfq::leave(RequestId request) {
  ready_.erase(rank(request));
  holders_.erase(rank(request));
  jobs_.erase(request);
  kv_.release(request, /*preempted=*/false);
}

}  // namespace llmsim
