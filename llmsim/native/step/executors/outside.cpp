#include "step/executors/outside.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

OutsideExecutor::OutsideExecutor(StepPricer pricer, OutsideTimes times)
    : pricer_(std::move(pricer)),
      alone_(folded_graphs(pricer_), std::make_unique<FoldedTiming>()),
      whole_(alone_.graphs().whole),
      halves_(alone_.graphs().halves),
      times_(std::move(times)),
      carry_(whole_.graph),
      starts_(pricer_.num_members()),
      ends_(pricer_.num_members()) {}

void OutsideExecutor::run(const Way& way, const StepStart& start, StepCarry& carry) {
  timing_.run(way.graph, way.prices, start, carry, starts_, ends_);
}

std::vector<Ps> OutsideExecutor::ends_alone(const Way& way) {
  StepCarry nothing_before(way.graph);
  run(way, {}, nothing_before);
  std::vector<Ps> ends;
  for (const std::int32_t mark : way.marks) ends.push_back(timing_.node_ends()[at(mark)]);
  return ends;
}

// Stage by stage: what a stage is longer moves those behind it, less what these wait for anyway.
void OutsideExecutor::correct(Way& way, const std::vector<Ps>& longer) {
  std::vector<Ps*> prices;
  for (const std::int32_t mark : way.marks)
    prices.push_back(&way.prices.ps[at(way.graph.nodes[at(mark)].price)]);
  const std::int32_t stages = way.graph.stages;
  const std::vector<Ps> without = stages > 1 ? ends_alone(way) : std::vector<Ps>{};
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    const std::vector<Ps> moved = stage > 0 ? ends_alone(way) : without;
    for (std::size_t unit = at(stage); unit < longer.size(); unit += at(stages))
      *prices[unit] = stages > 1 ? longer[unit] - (moved[unit] - without[unit]) : longer[unit];
  }
}

void OutsideExecutor::begin(std::span<const Batch* const> batches, const StepStart& start,
                            StepSink& sink) {
  step_.batches = batches;
  ++step_.number;
  step_.passes.clear();
  for (std::size_t m = 0; m < batches.size(); ++m) {
    const Drafter::Usage& usage = pricer_.member(m).drafter_usage();
    step_.passes.push_back({usage.first.steps, usage.next.steps});
  }
  const bool may_split = pricer_.begin(batches, start.at);
  StepCarry nothing_before(whole_.graph);
  const StepTimer::Timed timed = alone_.run(pricer_, may_split, {}, nothing_before);
  Way& way = &timed.graph == &alone_.graphs().halves ? halves_ : whole_;
  const std::vector<Ps> longer = times_(step_);
  if (longer.size() != way.marks.size())
    throw std::invalid_argument("a time for each stage of each member is needed");
  pricer_.fill(way.graph, way.prices);
  correct(way, longer);
  run(way, start, carry_);
  launches_of(way.graph, timing_.node_ends(), starts_, launched_);
  const auto stages = at(way.graph.stages);
  for (std::size_t m = 0; m < batches.size(); ++m) {
    OpenStep step = pricer_.open(m, timed.graph, timed.prices);
    step.slow_down(std::max(longer[m * stages + stages - 1], -step.communication));
    const StepTimes times = pricer_.close(m, step, starts_[m], ends_[m], launched_[m]);
    sink.timed(m, times, start.now);
  }
}

}  // namespace llmsim
