#include "afd/afd_executor.h"

#include <algorithm>

#include "afd/afd_graph.h"
#include "afd/contended_afd.h"
#include "step/executors/expanded.h"

namespace llmsim {

namespace {

bool travels(const PriceKey& key) {
  return key.role == NodeRole::kM2nSend || key.role == NodeRole::kM2nReceive ||
         key.role == NodeRole::kM2nLatency;
}

}  // namespace

AfdStep::AfdStep(const AfdPricer& pricer) : ffn_busy_(pricer.ffn_busy()) {
  for (std::size_t m = 0; m < pricer.num_members(); ++m) open_.push_back(pricer.open(m));
}

StepTimes AfdStep::times(const AfdPricer& pricer, std::size_t member, Ps start, Ps end,
                         Ps at_once) const {
  StepTimes times = open_[member].ended(start, end);
  if (!pricer.attends(member)) return times;
  if (at_once != kNever) times.m2n = std::clamp<Ps>(end - at_once, 0, times.waiting);
  // While the FFN of the batch is computed, the step computes.
  times.waiting = std::max<Ps>(0, times.waiting - times.m2n - ffn_busy_);
  return times;
}

// FFN members are free, and begin, while the attention still samples the step before.
void AfdStep::count(const AfdPricer& pricer, std::span<const Ps> starts,
                    std::span<const Ps> ends) const {
  Ps began = starts.front();
  for (std::size_t m = 1; m < starts.size(); ++m)
    if (pricer.attends(m)) began = std::min(began, starts[m]);
  const Ps span = std::ranges::max(ends) - began;
  for (std::size_t m = 0; m < starts.size(); ++m) {
    M2nCounters& counters = pricer.member(m).m2n;
    counters.span += span;
    counters.computing += open_[m].busy;
  }
}

AtOnce::AtOnce(const StepGraph& graph, std::size_t members)
    : carry_(graph), starts_(members), ends_(members) {
  for (std::size_t i = 0; i < graph.prices.size(); ++i)
    if (travels(graph.prices[i])) travelling_.push_back(i);
}

std::span<const Ps> AtOnce::ends(const StepGraph& graph, const StepPrices& prices,
                                 const StepStart& start, const StepCarry& carry,
                                 StepTiming& timing) {
  prices_ = prices;
  Ps moved = 0;
  for (const std::size_t price : travelling_) moved += std::exchange(prices_.ps[price], 0);
  if (moved == 0) {
    ends_.assign(ends_.size(), kNever);
    return ends_;
  }
  carry_ = carry;
  timing.run(graph, prices_, start, carry_, starts_, ends_);
  return ends_;
}

AfdExecutor::AfdExecutor(AfdPricer pricer, StepGraph graph, std::unique_ptr<StepTiming> timing)
    : pricer_(std::move(pricer)),
      graph_(std::move(graph)),
      timing_(std::move(timing)),
      carry_(graph_),
      at_once_(graph_, pricer_.num_members()),
      starts_(pricer_.num_members()),
      ends_(pricer_.num_members()) {}

void AfdExecutor::begin(std::span<const Batch* const> batches, const StepStart& start,
                        StepSink& sink) {
  pricer_.begin(batches);
  pricer_.fill(graph_, prices_);
  const auto at_once = at_once_.ends(graph_, prices_, start, carry_, *timing_);
  timing_->run(graph_, prices_, start, carry_, starts_, ends_);
  note_spans(pricer_, steps_++, graph_, prices_, *timing_, timing_->node_ends(), false);
  const AfdStep step(pricer_);
  step.count(pricer_, starts_, ends_);
  for (std::size_t m = 0; m < batches.size(); ++m)
    sink.timed(m, step.times(pricer_, m, starts_[m], ends_[m], at_once[m]), start.now);
}

std::unique_ptr<StepExecutor> afd_executor(std::vector<GroupCosts*> members, AfdConfig config,
                                           bool exact, std::vector<SharedPort> ports) {
  std::vector<const Program*> programs;
  for (const GroupCosts* member : members) programs.push_back(&member->program());
  const bool drafts = members.front()->drafter() != nullptr;
  StepGraph graph = afd_graph(config, programs, exact, drafts);
  const auto shared = members.front()->shared_program();
  AfdPricer pricer(std::move(members), std::move(config));
  if (!ports.empty())
    return std::make_unique<ContendedAfdExecutor>(std::move(pricer), std::move(graph),
                                                  std::move(ports), exact);
  std::unique_ptr<StepTiming> timing = std::make_unique<FoldedTiming>();
  if (exact) timing = std::make_unique<ExpandedTiming>(shared, graph.units, nullptr);
  return std::make_unique<AfdExecutor>(std::move(pricer), std::move(graph), std::move(timing));
}

}  // namespace llmsim
