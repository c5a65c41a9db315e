// Runs the steps of attention and FFN members on links that nobody else uses.
#pragma once

#include <memory>

#include "afd/afd_pricer.h"
#include "step/folded.h"

namespace llmsim {

class AfdExecutor final : public StepExecutor {
 public:
  // `graph` is one of `afd_graph`, as the timing wants it.
  AfdExecutor(AfdPricer pricer, StepGraph graph, std::unique_ptr<StepTiming> timing);
  void begin(std::span<const Batch* const> batches, const StepStart& start,
             StepSink& sink) override;

 private:
  void run_without_transfers(Ps now);

  AfdPricer pricer_;
  StepGraph graph_;
  std::unique_ptr<StepTiming> timing_;
  StepPrices prices_;
  StepCarry carry_;
  std::vector<Ps> starts_, ends_;  // by member
  std::vector<Ps> ends_at_once_;   // if everything were there at once
};

// Of the members of a lock-step group: folded, or with `exact` every unit's nodes in the engine.
std::unique_ptr<StepExecutor> afd_executor(std::vector<GroupCosts*> members, AfdConfig config,
                                           bool exact);

}  // namespace llmsim
