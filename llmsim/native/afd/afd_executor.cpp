#include "afd/afd_executor.h"

#include <algorithm>

#include "afd/afd_graph.h"
#include "afd/contended_afd.h"
#include "afd/wide/timing.h"
#include "step/executors/expanded.h"
#include "step/executors/folded.h"

namespace llmsim {

namespace {

std::vector<const Program*> programs_of(const AfdPricer& pricer) {
  std::vector<const Program*> programs;
  for (std::size_t m = 0; m < pricer.num_members(); ++m)
    programs.push_back(&pricer.member(m).program());
  return programs;
}

bool drafts(const AfdPricer& pricer) { return pricer.member(0).drafter() != nullptr; }

bool travels(const PriceKey& key) {
  return key.role == NodeRole::kM2nSend || key.role == NodeRole::kM2nReceive ||
         key.role == NodeRole::kM2nLatency;
}

// Node by node: as its timing wants the graph, and with spans of nodes where these are recorded.
class NodeTimer final : public AfdTimer {
 public:
  NodeTimer(StepGraph graph, std::unique_ptr<StepTiming> timing)
      : graph_(std::move(graph)), timing_(std::move(timing)), carry_(graph_), before_(graph_) {}

  void run(const AfdPricer& pricer, const StepStart& start, AfdTimes& times) override {
    pricer.fill(graph_, prices_);
    before_ = carry_;
    run_at_once(pricer, start, times);
    timing_->run(graph_, prices_, start, carry_, times.starts, times.ends);
    note_spans(pricer, steps_++, graph_, prices_, *timing_, timing_->node_ends(), false);
  }

 private:
  void run_at_once(const AfdPricer& pricer, const StepStart& start, AfdTimes& times) {
    StepPrices prices = prices_;
    Ps moved = 0;
    for (std::size_t i = 0; i < graph_.prices.size(); ++i)
      if (travels(graph_.prices[i])) moved += std::exchange(prices.ps[i], 0);
    if (moved > 0 && pricer.config().splits_waiting) {
      timing_->run(graph_, prices, start, before_, times.starts, times.at_once);
    } else {
      std::ranges::fill(times.at_once, kNever);
    }
  }

  StepGraph graph_;
  std::unique_ptr<StepTiming> timing_;
  StepPrices prices_;
  StepCarry carry_, before_;
  std::int64_t steps_ = 0;  // so far
};

class WideTimer final : public AfdTimer {
 public:
  explicit WideTimer(const AfdPricer& pricer)
      : graphs_(pricer.config(), programs_of(pricer), false, drafts(pricer)),
        timing_(graphs_),
        at_once_(graphs_, pricer.config().splits_waiting),
        free_(graphs_.num_streams(), 0) {}

  void run(const AfdPricer& pricer, const StepStart& start, AfdTimes& times) override {
    pricer.fill(graphs_.kinds(), graphs_.keys(), graphs_.segments(), prices_);
    const auto at_once = at_once_.ends(prices_, start, free_, timing_);
    std::ranges::copy(at_once, times.at_once.begin());
    timing_.run(prices_, start, free_, times.starts, times.ends);
  }

 private:
  WideGraphs graphs_;
  WideTiming timing_;
  AtOnce at_once_;
  AfdPrices prices_;
  std::vector<Ps> free_;  // StepCarry::free
};

}  // namespace

AfdStep::AfdStep(const AfdPricer& pricer) : ffn_busy_(pricer.ffn_busy()) {
  for (std::size_t m = 0; m < pricer.num_members(); ++m) {
    open_.push_back(pricer.open(m));
    serves_.push_back(pricer.serves(m));
  }
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
    if (!serves_[m]) counters.computing_dummies += open_[m].busy;
  }
}

AfdExecutor::AfdExecutor(AfdPricer pricer, std::unique_ptr<AfdTimer> timer)
    : pricer_(std::move(pricer)), timer_(std::move(timer)), times_(pricer_.num_members()) {}

void AfdExecutor::begin(std::span<const Batch* const> batches, const StepStart& start,
                        StepSink& sink) {
  if (timer_ == nullptr && pricer_.member(0).spans() == nullptr)
    timer_ = std::make_unique<WideTimer>(pricer_);
  if (timer_ == nullptr)
    timer_ = std::make_unique<NodeTimer>(
        afd_graph(pricer_.config(), programs_of(pricer_), false, drafts(pricer_)),
        std::make_unique<FoldedTiming>());
  pricer_.begin(batches);
  timer_->run(pricer_, start, times_);
  const AfdStep step(pricer_);
  step.count(pricer_, times_.starts, times_.ends);
  for (std::size_t m = 0; m < batches.size(); ++m) {
    const StepTimes times =
        step.times(pricer_, m, times_.starts[m], times_.ends[m], times_.at_once[m]);
    sink.timed(m, times, start.now);
  }
}

std::unique_ptr<StepExecutor> afd_executor(std::vector<GroupCosts*> members, AfdConfig config,
                                           bool exact, std::vector<SharedPort> ports) {
  const auto program = members.front()->shared_program();
  AfdPricer pricer(std::move(members), std::move(config));
  if (!ports.empty()) {
    auto graphs =
        std::make_unique<WideGraphs>(pricer.config(), programs_of(pricer), exact, drafts(pricer));
    return std::make_unique<ContendedAfdExecutor>(std::move(pricer), std::move(graphs),
                                                  std::move(ports), exact);
  }
  if (!exact) return std::make_unique<AfdExecutor>(std::move(pricer), nullptr);
  StepGraph graph = afd_graph(pricer.config(), programs_of(pricer), true, drafts(pricer));
  auto timing = std::make_unique<ExpandedTiming>(program, graph.units, nullptr);
  return std::make_unique<AfdExecutor>(
      std::move(pricer), std::make_unique<NodeTimer>(std::move(graph), std::move(timing)));
}

}  // namespace llmsim
