// An engine that runs nothing. SGLang's loop passes without end then, and a pass takes no time
// here: at one time it passes until it finds nothing new, and goes on when anything happens.
#include "scheduler/impl/sglang/sglang.h"

namespace llmsim {

// What the pass has changed that has just ended without a batch. With stages the micro-batches pass
// one after the other, and a round of them is one look.
bool Sglang::finds_more(Ps now) {
  if (turn_ + 1 < micro_batches_.size()) return true;
  if (std::ssize(preempted_) > before_.preempted && !waits_for_copies_) return true;
  if (memory_.host() != nullptr && memory_.host()->asks()) return true;
  if (memory_.storage() != nullptr && memory_.storage()->passes_again(waiting_)) return true;
  return touches_later(now);
}

// One of the passes that follow counts what the queue holds of the cache as used. False where the
// last ones did so. Behind a second pass that found nothing those up to it change nothing.
bool Sglang::touches_later(Ps now) {
  const std::int64_t due = (before_.touches + kTouchInterval - 1) / kTouchInterval * kTouchInterval;
  if (touches_ == before_.touches || due < touches_) return false;
  if (!staged() && quiet_at_ == now) touches_ = due;
  quiet_at_ = now;
  return true;
}

// It looks for what has ended whenever something has; nothing changes in between.
void Sglang::pass_idle(Ps now) {
  if (!idle_ || last_output_ < 0) return;
  for (Ps at = last_output_; at < now; at = memory_.host()->next_copy()) pass_alone(at);
}

void Sglang::pass_alone(Ps at) {
  memory_.host()->begin_pass(at);
  memory_.host()->poll(at);
  if (memory_.host()->settled()) ratio_ = first_ratio_;
}

// A rank without requests passes in front of each round; between the waves all ranks pass together,
// as those of an idle engine do.
void Sglang::set_round(std::int64_t round, Ps now) {
  in_rounds_ = true;
  SglangHostCache* host = memory_.host();
  if (round == 0 && idle_ && (host == nullptr || host->settled())) ratio_ = first_ratio_;
  if (host == nullptr) return;
  if (round == 0 && idle_)
    for (Ps at = host->next_copy(); at < now; at = host->next_copy()) pass_alone(at);
  if (has_requests()) return;
  host->begin_pass(now);
  host->poll(now);
}

}  // namespace llmsim
