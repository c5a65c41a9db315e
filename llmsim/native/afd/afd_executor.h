// Runs the steps of attention and FFN members on links that nobody else uses.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "afd/afd_pricer.h"
#include "step/executors/folded.h"

namespace llmsim {

// What one step says of its members, once their starts and ends are known.
class AfdStep {
 public:
  // Of the step that the pricer has begun.
  explicit AfdStep(const AfdPricer& pricer);
  // `at_once`: its end if everything were there at once; kNever: as it was.
  StepTimes times(const AfdPricer& pricer, std::size_t member, Ps start, Ps end, Ps at_once) const;
  // Counts the step's time, in which all members have the given starts and ends.
  void count(const AfdPricer& pricer, std::span<const Ps> starts, std::span<const Ps> ends) const;

 private:
  std::vector<OpenStep> open_;  // by member
  Ps ffn_busy_ = 0;
};

// Steps as they were if nothing between attention and FFN took time.
class AtOnce {
 public:
  AtOnce(const StepGraph& graph, std::size_t members);
  // The members' ends in a step with these prices, from `now` on, after one that left `carry`;
  // kNever where nothing travels.
  std::span<const Ps> ends(const StepGraph& graph, const StepPrices& prices, const StepStart& start,
                           const StepCarry& carry, StepTiming& timing);

 private:
  std::vector<std::size_t> travelling_;  // prices of what is on its way
  StepPrices prices_;
  StepCarry carry_;
  std::vector<Ps> starts_, ends_;  // by member
};

class AfdExecutor final : public StepExecutor {
 public:
  // `graph` is one of `afd_graph`, as the timing wants it.
  AfdExecutor(AfdPricer pricer, StepGraph graph, std::unique_ptr<StepTiming> timing);
  void begin(std::span<const Batch* const> batches, const StepStart& start,
             StepSink& sink) override;

 private:
  AfdPricer pricer_;
  StepGraph graph_;
  std::unique_ptr<StepTiming> timing_;
  StepPrices prices_;
  StepCarry carry_;
  AtOnce at_once_;
  std::vector<Ps> starts_, ends_;  // by member
  std::int64_t steps_ = 0;         // so far
};

// Of the members of a lock-step group: folded, or with `exact` every unit's nodes in the engine.
// With ports that others use, too, what crosses these lasts until the network says so.
std::unique_ptr<StepExecutor> afd_executor(std::vector<GroupCosts*> members, AfdConfig config,
                                           bool exact, std::vector<SharedPort> ports = {});

}  // namespace llmsim
