#include "scheduler/impl/sarathi.h"

#include <algorithm>

#include "scheduler/phase.h"

namespace llmsim {

static const RegisterScheduler kSarathi(kind_of<Sarathi>("sarathi"));

void Sarathi::form(Ps now, Batch& batch) {
  if (config_.kv_consumer) {
    admit_arrived();
    take_over(now, 0, running_.empty() ? 0 : config_.watermark_blocks);
  }
  schedule_decodes(batch);
  std::int32_t chunk =
      config_.max_num_scheduled_tokens - static_cast<std::int32_t>(batch.items.size());
  for (std::size_t i = 0; i < running_.size() && chunk > 0; ++i) {
    const RequestId request = running_[i];
    if (in_flight(request) || !prefilling(sequences_[request])) continue;
    const std::int32_t tokens = std::min(tokens_left(request), chunk);
    run(request, tokens, batch);
    chunk -= tokens;
  }
  while (batch.preempted.empty() && chunk > 0 && !waiting_.empty() &&
         num_running() < config_.max_num_seqs) {
    const RequestId request = waiting_.front(now);
    if (sequences_[request].remote_kv) return;
    const std::int32_t known = sequences_[request].num_tokens;
    const std::int32_t cached = find_cached(request);
    const std::int32_t tokens = std::min(known - cached, chunk);
    const std::int32_t spare = running_.empty() ? 0 : config_.watermark_blocks;
    if (!start(now, request, cached, tokens, {known, spare}, batch)) return;
    waiting_.pop_front();
    running_.push_back(request);
    chunk -= tokens;
  }
}

// Whoever is behind a decode in the list has not been scheduled in this step, so the youngest can
// be restarted at once.
void Sarathi::schedule_decodes(Batch& batch) {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const RequestId request = running_[i];
    if (in_flight(request) || prefilling(sequences_[request])) continue;
    RequestId victim = -1;
    while (victim != request && !kv_.grow(request, sequences_[request].num_tokens))
      victim = preempt_youngest(batch);
    if (victim == request) {
      --i;  // another one has its place
    } else {
      run(request, 1, batch);
    }
  }
}

}  // namespace llmsim
