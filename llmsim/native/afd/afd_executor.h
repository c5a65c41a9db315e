// Runs the steps of attention and FFN members on links that nobody else uses.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "afd/afd_pricer.h"
#include "step/executors/executor.h"

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
  std::vector<bool> serves_;  // by member: the step has requests of its own, or of those it serves
  Ps ffn_busy_ = 0;
};

// Starts and ends of a step by member, and its ends if nothing between attention and FFN took time;
// kNever where nothing travels.
struct AfdTimes {
  explicit AfdTimes(std::size_t members) : starts(members), ends(members), at_once(members) {}
  std::vector<Ps> starts, ends, at_once;
};

// Times the steps that a pricer has begun, one after the other.
class AfdTimer {
 public:
  virtual ~AfdTimer() = default;
  virtual void run(const AfdPricer& pricer, const StepStart& start, AfdTimes& times) = 0;
};

class AfdExecutor final : public StepExecutor {
 public:
  // `timer`: null where the pricer's members are timed class by class.
  AfdExecutor(AfdPricer pricer, std::unique_ptr<AfdTimer> timer);
  void begin(std::span<const Batch* const> batches, const StepStart& start,
             StepSink& sink) override;

 private:
  AfdPricer pricer_;
  std::unique_ptr<AfdTimer> timer_;  // null: before the first step
  AfdTimes times_;
};

// Of the members of a lock-step group: folded, or with `exact` every unit's nodes in the engine.
// With ports that others use, too, what crosses these lasts until the network says so.
std::unique_ptr<StepExecutor> afd_executor(std::vector<GroupCosts*> members, AfdConfig config,
                                           bool exact, std::vector<SharedPort> ports = {});

}  // namespace llmsim
