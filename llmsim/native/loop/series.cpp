#include "loop/series.h"

namespace llmsim {

bool SeriesRecorder::look(Ps next_event) {
  while (next_look_ < next_event) {
    if (series_.time_ps.size() >= most_rows_) return false;
    const Ps time = next_look_;
    next_look_ += interval_;
    record(time);
  }
  return true;
}

void SeriesRecorder::finish(Ps now) {
  if (interval_ > 0 && last_look_ < now) record(now);
}

void SeriesRecorder::record(Ps time) {
  last_look_ = time;
  counted_.resize(groups_.size());
  for (std::size_t i = 0; i < groups_.size(); ++i) record(*groups_[i], counted_[i], time);
  if (tiers_ != nullptr) tiers_->sample(time);
  if (network_ == nullptr) return;
  network_->sample(time);
  network_->expect_look(next_look_);
}

void SeriesRecorder::record(const Group& group, Counted& last, Ps time) {
  const SchedulerCounters& c = group.scheduler().counters();
  const Gauges gauges = group.gauges();
  const PoolState& pool = gauges.pool;
  series_.time_ps.push_back(time);
  series_.group.push_back(static_cast<std::int16_t>(group.config().index));
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

}  // namespace llmsim
