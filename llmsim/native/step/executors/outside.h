// Steps whose nodes another program times, such as a stock ASTRA-sim.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "step/executors/folded.h"

namespace llmsim {

// A step that another program is to time.
struct OutsideStep {
  // Of a member's drafter, before the step.
  struct Passes {
    std::int64_t first = 0, next = 0;
  };
  std::span<const Batch* const> batches;  // by member
  std::int64_t number = 0;                // from 1
  std::vector<Passes> passes;             // by member
};

// How much later each unit (a stage of a member) is done there than in the step's graph, if nothing
// ran before; negative: earlier.
using OutsideTimes = std::function<std::vector<Ps>(const OutsideStep& step)>;

// Runs the steps of a group, or of a lock-step group. A step that nothing runs before lasts as long
// as the other program says, and what the host adds to the graph. What steps share (stages of a
// pipeline, copies that run ahead) is timed by the graph, whose units are as much longer.
class OutsideExecutor final : public StepExecutor {
 public:
  OutsideExecutor(StepPricer pricer, OutsideTimes times);
  // Throws std::invalid_argument where the times are not one for each unit; and what they throw.
  void begin(std::span<const Batch* const> batches, const StepStart& start,
             StepSink& sink) override;

 private:
  // A graph with corrections, and the step at hand.
  struct Way {
    explicit Way(const StepGraph& full) : graph(corrected(full, marks)) {}
    std::vector<std::int32_t> marks;  // by unit: its last node
    StepGraph graph;
    StepPrices prices;
  };

  void run(const Way& way, const StepStart& start, StepCarry& carry);
  std::vector<Ps> ends_alone(const Way& way);
  void correct(Way& way, const std::vector<Ps>& longer);

  StepPricer pricer_;
  StepTimer alone_;
  Way whole_, halves_;
  FoldedTiming timing_;
  OutsideTimes times_;
  StepCarry carry_;
  std::vector<Ps> starts_, ends_, launched_;  // by member
  OutsideStep step_;                          // at hand, or the last one
};

}  // namespace llmsim
