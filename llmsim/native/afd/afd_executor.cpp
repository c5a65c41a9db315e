#include "afd/afd_executor.h"

#include <algorithm>

#include "afd/afd_graph.h"
#include "step/expanded.h"

namespace llmsim {

namespace {

bool travels(const PriceKey& key) {
  return key.role == NodeRole::kM2nSend || key.role == NodeRole::kM2nReceive ||
         key.role == NodeRole::kM2nLatency;
}

}  // namespace

AfdExecutor::AfdExecutor(AfdPricer pricer, StepGraph graph, std::unique_ptr<StepTiming> timing)
    : pricer_(std::move(pricer)),
      graph_(std::move(graph)),
      timing_(std::move(timing)),
      carry_(graph_),
      starts_(pricer_.num_members()),
      ends_(pricer_.num_members()),
      ends_at_once_(pricer_.num_members()) {}

// What transfers cost the step: how much earlier it would end if they took no time.
void AfdExecutor::run_without_transfers(Ps now) {
  StepPrices prices = prices_;
  Ps moved = 0;
  for (std::size_t i = 0; i < graph_.prices.size(); ++i)
    if (travels(graph_.prices[i])) moved += std::exchange(prices.ps[i], 0);
  ends_at_once_.assign(ends_.size(), kNever);
  if (moved == 0) return;
  StepCarry carry = carry_;
  timing_->run(graph_, prices, now, carry, starts_, ends_at_once_);
}

void AfdExecutor::begin(std::span<const Batch* const> batches, const StepStart& start,
                        StepSink& sink) {
  pricer_.begin(batches);
  pricer_.fill(graph_, prices_);
  run_without_transfers(start.at);
  timing_->run(graph_, prices_, start.at, carry_, starts_, ends_);
  // FFN members are free, and begin, while the attention still samples the step before.
  Ps began = starts_.front();
  for (std::size_t m = 1; m < batches.size(); ++m)
    if (pricer_.attends(m)) began = std::min(began, starts_[m]);
  const Ps span = std::ranges::max(ends_) - began;
  for (std::size_t m = 0; m < batches.size(); ++m) {
    const OpenStep step = pricer_.open(m);
    StepTimes times = step.ended(starts_[m], ends_[m]);
    M2nCounters& counters = pricer_.member(m).m2n;
    counters.span += span;
    counters.computing += step.busy;
    if (pricer_.attends(m)) {
      if (ends_at_once_[m] != kNever)
        times.m2n = std::clamp<Ps>(ends_[m] - ends_at_once_[m], 0, times.waiting);
      // While the FFN of the batch is computed, the step computes.
      times.waiting = std::max<Ps>(0, times.waiting - times.m2n - pricer_.ffn_busy());
    }
    sink.timed(m, times, start.now);
  }
}

std::unique_ptr<StepExecutor> afd_executor(std::vector<GroupCosts*> members, AfdConfig config,
                                           bool exact) {
  std::vector<const Program*> programs;
  for (const GroupCosts* member : members) programs.push_back(&member->program());
  std::unique_ptr<StepTiming> timing = std::make_unique<FoldedTiming>();
  StepGraph graph = afd_graph(config, programs, exact);
  if (exact)
    timing =
        std::make_unique<ExpandedTiming>(members.front()->shared_program(), graph.units, nullptr);
  return std::make_unique<AfdExecutor>(AfdPricer(std::move(members), std::move(config)),
                                       std::move(graph), std::move(timing));
}

}  // namespace llmsim
