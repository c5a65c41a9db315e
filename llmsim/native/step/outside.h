// Steps whose nodes another program times, such as a stock ASTRA-sim.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "step/folded.h"

namespace llmsim {

// How much longer each member's step is there than its folded graph; negative: shorter. Called with
// the batches and the step's number, from 1.
using OutsideTimes =
    std::function<std::vector<Ps>(std::span<const Batch* const> batches, std::int64_t step)>;

// Runs the steps of a group, or of a lock-step group, of one pipeline stage. A step lasts as long
// as the other program says, and what the host adds to the folded graph.
class OutsideExecutor final : public StepExecutor {
 public:
  // Throws std::invalid_argument for several stages.
  OutsideExecutor(StepPricer pricer, OutsideTimes times);
  // Throws std::invalid_argument where the times are not one for each member; and what they throw.
  void begin(std::span<const Batch* const> batches, const StepStart& start,
             StepSink& sink) override;

 private:
  StepPricer pricer_;
  StepTimer timer_;
  OutsideTimes times_;
  std::vector<Ps> free_;  // by member, when its devices have done all steps so far
  std::int64_t step_ = 0;
};

}  // namespace llmsim
