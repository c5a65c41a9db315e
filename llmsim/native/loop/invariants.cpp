// What is watched while a simulation runs: its series, its invariants, and whether everybody was
// served.
#include "loop/simulation.h"

namespace llmsim {

std::int64_t Simulation::num_rejected() const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < sequences_.size(); ++i)
    count += sequences_[static_cast<RequestId>(i)].status ==
             static_cast<std::uint8_t>(Status::kRejected);
  return count;
}

void Simulation::check_finished() const {
  std::string stuck;
  for (const auto& group : groups_) {
    if (!group->unfinished() && group->scheduler().gauges().bound == 0) continue;
    stuck += " group " + std::to_string(group->config().index) + " has " +
             std::to_string(group->num_running()) + " running and " +
             std::to_string(group->num_waiting()) + " waiting requests (" +
             std::to_string(group->scheduler().gauges().bound) +
             " whose KV another group fills or reads) with " +
             std::to_string(group->scheduler().pool().free) + " free KV blocks;";
  }
  if (!stuck.empty())
    throw Stalled("no event is left at " + std::to_string(now_) + " ps but" + stuck);
}

// A group that gets on, and KV on its way to an idle one, may still change what those that run in
// circles hold.
void Simulation::check_circles() const {
  const bool anything_lands = network_ && network_->num_in_flight() > 0;
  std::string circular;
  for (const auto& group : groups_) {
    if (!group->unfinished() || (group->idle() && !anything_lands)) continue;
    if (!group->circles()) return;
    circular += (circular.empty() ? "" : ", ") + std::to_string(group->config().index);
  }
  throw Circular(circular);
}

void Simulation::check_blocks(const Group& group) const {
  const std::string when = " at " + std::to_string(now_) + " ps";
  if (!group.scheduler().pool_consistent())
    throw Violated("invariant 4: the KV blocks of group " + std::to_string(group.config().index) +
                   " do not add up" + when);
  if (kv_tiers_ && !kv_tiers_->consistent())
    throw Violated(
        "invariant 4: the chunks of the KV tiers, and what is on its way to and from them, do not "
        "add up" +
        when);
}

bool Simulation::sampled_until(Ps last, std::size_t most_rows) {
  while (series_interval_ > 0 && next_sample_ <= last) {
    if (series_.time_ps.size() >= most_rows) return false;
    record_series();
  }
  return true;
}

void Simulation::record_series() {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Scheduler& scheduler = groups_[i]->scheduler();
    const SchedulerCounters& c = scheduler.counters();
    const Gauges gauges = groups_[i]->gauges();
    const PoolState& pool = gauges.pool;
    Sampled& last = sampled_[i];
    series_.time_ps.push_back(next_sample_);
    series_.group.push_back(static_cast<std::int16_t>(i));
    series_.running.push_back(gauges.running);
    series_.waiting.push_back(gauges.waiting);
    series_.kv_blocks_used.push_back(pool.total - 1 - pool.free);
    series_.kv_blocks_cached.push_back(pool.cached);
    series_.preemptions.push_back(static_cast<std::int32_t>(c.preemptions - last.preemptions));
    series_.prompt_tokens.push_back(c.prompt_tokens - last.prompt);
    series_.generation_tokens.push_back(c.generation_tokens - last.generation);
    series_.hit_tokens.push_back(c.prefix_hit_tokens - last.hit);
    series_.queried_tokens.push_back(c.prefix_queried_tokens - last.queried);
    last = {c.prompt_tokens, c.generation_tokens, c.prefix_hit_tokens, c.prefix_queried_tokens,
            c.preemptions};
  }
  if (kv_tiers_) kv_tiers_->sample(next_sample_);
  last_sample_ = next_sample_;
  next_sample_ += series_interval_;
}

}  // namespace llmsim
