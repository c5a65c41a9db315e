// Who gives up its memory to whom.
#include <algorithm>
#include <tuple>

#include "scheduler/bookkeeping.h"
#include "scheduler/impl/vllm_v1/vllm_v1.h"

namespace llmsim {

bool VllmV1::make_room(RequestId request, std::int32_t tokens, Batch& batch, StepBudget& budget,
                       std::size_t& index) {
  do {
    const std::size_t victim_index = choose_victim(request);
    const RequestId victim = running_[victim_index];
    if (config_.rules.spares_busy_victims && defer_block_free() && late_.writes(victim))
      return false;
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(victim_index));
    const bool ran = unschedule(victim, batch, budget);
    // 0.24 keeps its place only behind victims that ran in this step.
    if (config_.rules.counts_every_victim ? victim_index < index : ran) --index;
    preempt(victim);
    batch.preempted.push_back(victim);
    if (victim == request) return false;
  } while (!kv_.grow(request, tokens));
  return true;
}

// By priority, a victim may have been scheduled in this very step: its tokens go back to the
// budget.
bool VllmV1::unschedule(RequestId request, Batch& batch, StepBudget& budget) {
  const auto item =
      std::find_if(batch.items.begin(), batch.items.end(),
                   [request](const Item& scheduled) { return scheduled.request == request; });
  if (item == batch.items.end()) return false;
  budget.give_back(item->tokens);
  encoder_.unschedule(request);
  sequences_[request].num_computed -= item->tokens;  // they never ran
  if (config_.async_scheduling && !sequences_[request].in_prompt)
    sequences_[request].num_in_flight -= 1 + item->drafts;
  batch.items.erase(item);
  return true;
}

std::size_t VllmV1::choose_victim(RequestId needy) const {
  if (config_.victim) {
    std::vector<SequenceView> running;
    for (const RequestId request : running_) running.push_back(view_of(sequences_, request));
    const std::int64_t chosen = config_.victim(running, view_of(sequences_, needy));
    if (chosen >= 0 && chosen < static_cast<std::int64_t>(running.size()))
      return static_cast<std::size_t>(chosen);
    throw BadPolicy("preemption victim answered " + std::to_string(chosen) +
                    "; an index from 0 to " + std::to_string(running.size() - 1) + " is needed");
  }
  if (ranker_ != nullptr && ranker_->lists().victims) {
    const auto last = std::ranges::max_element(
        running_, [this](RequestId a, RequestId b) { return ranker_->before(a, b); });
    return static_cast<std::size_t>(last - running_.begin());
  }
  if (config_.queue.order != QueueOrder::kPriority) return running_.size() - 1;
  std::size_t worst = 0;
  for (std::size_t i = 1; i < running_.size(); ++i) {
    const Sequence &a = sequences_[running_[i]], &b = sequences_[running_[worst]];
    // vLLM takes the first of equals. Prompts that run alone would take turns, so there the queue's
    // order decides.
    const RequestId row = config_.prefill_first ? running_[i] : 0,
                    other = config_.prefill_first ? running_[worst] : 0;
    if (std::tuple(a.priority, a.arrival, row) > std::tuple(b.priority, b.arrival, other))
      worst = i;
  }
  return worst;
}

void VllmV1::preempt(RequestId request) {
  Sequence& s = sequences_[request];
  s.stale += s.num_computed - s.processed();
  release(request, /*preempted=*/true);
  encoder_.release(request);
  note_preemption(request, s, log_, counters_);
  s.num_drafts = 0;
  if (!ahead_.empty()) ahead_[at(request)] = {};
  if (config_.rules.awaits_output || drops_stale()) s.num_in_flight = 0;
  std::erase(partly_prefilled_, request);
  waiting_.push_front(request);
}

}  // namespace llmsim
