#include "scheduler/impl/orca.h"

#include "scheduler/reservation.h"

namespace llmsim {

static const RegisterScheduler kOrca(kind_of<Orca>("orca"));

void Orca::form(Ps now, Batch& batch) {
  if (config_.kv_consumer) {
    admit_arrived();
    take_over(now, reserved_tokens(kv_));
  }
  for (const RequestId request : running_)
    if (!in_flight(request)) run(request, 1, batch);
  std::int32_t budget =
      config_.max_num_scheduled_tokens - static_cast<std::int32_t>(batch.items.size());
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

}  // namespace llmsim
