#include "scheduler/impl/static_batching.h"

#include "scheduler/reservation.h"

namespace llmsim {

static const RegisterScheduler kStaticBatching(kind_of<StaticBatching>("static"));

void StaticBatching::form(Ps now, Batch& batch) {
  const bool begins = running_.empty();
  if (config_.kv_consumer) {
    if (begins) admit_arrived();
    take_over(now, reserved_tokens(kv_));
  }
  for (const RequestId request : running_) run(request, 1, batch);
  if (!begins || !running_.empty()) return;
  std::int32_t budget = config_.max_num_scheduled_tokens;
  while (!waiting_.empty() && num_running() < config_.max_num_seqs) {
    const RequestId request = waiting_.front(now);
    if (sequences_[request].remote_kv) return;
    const std::int32_t cached = find_cached(request);
    const std::int32_t tokens = sequences_[request].num_tokens - cached;
    if (tokens > budget || !start(now, request, cached, tokens, {reserved_tokens(kv_)}, batch))
      return;
    waiting_.pop_front();
    running_.push_back(request);
    budget -= tokens;
  }
}

void StaticBatching::completed() {
  if (!running_.empty()) return;
  for (const RequestId request : left_) kv_.release(request, /*preempted=*/false);
  left_.clear();
}

}  // namespace llmsim
