#include "group/observers.h"

#include <algorithm>

namespace llmsim {

std::size_t StepRecorder::record(std::int32_t index, Ps scheduled, const Batch& batch,
                                 const Scheduler& scheduler) {
  const Features& f = batch.features;
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  group.push_back(static_cast<std::int16_t>(index));
  schedule_ps.push_back(scheduled);
  start_ps.push_back(kNever);
  end_ps.push_back(kNever);
  tokens.push_back(narrow(batch.scheduled_tokens()));
  padded_tokens.push_back(0);
  prefill_tokens.push_back(narrow(f.prefill_tokens));
  sequences.push_back(narrow(f.sequences));
  decode_sequences.push_back(narrow(batch.empty() ? 0 : f.decode_sequences));
  const Gauges gauges = scheduler.gauges();
  running.push_back(gauges.running);
  waiting.push_back(gauges.waiting);
  free_blocks.push_back(gauges.pool.free);
  preempted.push_back(narrow(static_cast<std::int64_t>(batch.preempted.size())));
  return group.size() - 1;
}

void StepRecorder::timed(std::size_t row, const StepTimes& times) {
  start_ps[row] = times.start;
  end_ps[row] = times.end;
  padded_tokens[row] = static_cast<std::int32_t>(times.padded_tokens);
}

void StepTokens::ends(const Batch& batch, const RequestLog& log) {
  emitted_.clear();
  for (const Item& item : batch.items) emitted_.push_back(log.emitted_tokens[item.request]);
}

void StepTokens::ended(const Batch& batch, const RequestLog& log, const SequenceTable& sequences) {
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const RequestId request = batch.items[i].request;
    const std::int32_t more = log.emitted_tokens[request] - emitted_[i];
    tokens += more;
    if (more > 0 && emitted_[i] == 0)
      tokens += std::max(0, sequences[request].prompt_tokens - log.began_with(request));
  }
  if (tokens > 0) ++steps_[tokens];
}

void DeviceShares::record(const Batch& batch, Ps duration, std::vector<std::int32_t>& place) {
  std::int64_t tokens = 0;
  for (const Item& item : batch.items) tokens += item.tokens;
  std::int64_t before = 0;
  Ps given = 0;
  for (const Item& item : batch.items) {
    auto at = static_cast<std::size_t>(place[item.request]);
    if (at >= request.size() || request[at] != item.request) {
      at = request.size();
      request.push_back(item.request);
      ps.push_back(0);
      place[item.request] = static_cast<std::int32_t>(at);
    }
    before += item.tokens;
    const Ps until = static_cast<Ps>(static_cast<int128>(duration) * before / tokens);
    ps[at] += until - given;
    given = until;
  }
}

void ScheduleRecorder::built(Ps now, const Scheduler& scheduler, const Batch& batch) {
  if (batch.empty() && batch.preempted.empty())
    return;  // bookkeeping without an effect is not a step
  time_ps.push_back(now);
  const Gauges gauges = scheduler.gauges();
  running.push_back(gauges.running);
  waiting.push_back(gauges.waiting);
  free_blocks.push_back(gauges.pool.free);
  free_states.push_back(gauges.free_states);
  drafts_after.push_back(batch.drafts_after);
  const auto adapters = batch.features.lora.counts();
  adapter_use.insert(adapter_use.end(), adapters.begin(), adapters.end());
  adapter_use.push_back(batch.features.encoder.tokens);
  adapter_use.push_back(batch.features.encoder.pairs);
  for (const RequestId victim : batch.preempted) {
    preempted_step.push_back(static_cast<std::int32_t>(time_ps.size()) - 1);
    preempted_request.push_back(victim);
  }
  for (const Item& item : batch.items) {
    item_request.push_back(item.request);
    item_tokens.push_back(item.tokens);
    item_computed.push_back(item.computed_before);
    item_drafts.push_back(item.drafts);
  }
  item_offsets.push_back(static_cast<std::int64_t>(item_request.size()));
  end_ps.push_back(kNever);
  free_blocks_after.push_back(-1);
  free_states_after.push_back(-1);
  if (!batch.empty()) in_flight_.push_back(static_cast<std::int32_t>(time_ps.size()) - 1);
}

void ScheduleRecorder::completed(Ps now, const Scheduler& scheduler,
                                 std::span<const RequestId> finished) {
  const std::int32_t step = in_flight_.front();
  in_flight_.pop_front();
  end_ps[static_cast<std::size_t>(step)] = now;
  const Gauges gauges = scheduler.gauges();
  free_blocks_after[static_cast<std::size_t>(step)] = gauges.pool.free;
  free_states_after[static_cast<std::size_t>(step)] = gauges.free_states;
  for (const RequestId request : finished) {
    finished_step.push_back(step);
    finished_request.push_back(request);
  }
}

}  // namespace llmsim
