#include "step/outside.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

OutsideExecutor::OutsideExecutor(StepPricer pricer, OutsideTimes times)
    : pricer_(std::move(pricer)),
      timer_(folded_graphs(pricer_), std::make_unique<FoldedTiming>()),
      times_(std::move(times)),
      free_(pricer_.num_members(), 0) {
  if (timer_.graphs().whole.stages > 1)
    throw std::invalid_argument("steps of several stages are not timed outside");
}

void OutsideExecutor::begin(std::span<const Batch* const> batches, const StepStart& start,
                            StepSink& sink) {
  const bool may_split = pricer_.begin(batches);
  StepCarry nothing_before(timer_.graphs().whole);
  const StepTimer::Timed timed = timer_.run(pricer_, may_split, 0, nothing_before);
  const std::vector<Ps> longer = times_(batches, ++step_);
  if (longer.size() != batches.size())
    throw std::invalid_argument("a time for each member is needed");
  for (std::size_t m = 0; m < batches.size(); ++m) {
    const OpenStep step = pricer_.open(m, timed.graph, timed.prices);
    const Ps began = std::max(start.at, free_[m]) + timed.starts[m];
    free_[m] = began + std::max<Ps>(1, timed.ends[m] - timed.starts[m] + longer[m]);
    sink.timed(m, step.ended(began, free_[m]), start.now);
  }
}

}  // namespace llmsim
