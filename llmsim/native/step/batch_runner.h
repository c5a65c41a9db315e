// Times batches that somebody else forms: the scheduler of a real engine, whose devices are ours.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "step/executors/executor.h"

namespace llmsim {

// The devices of one group without its scheduler. Steps take what those of the group would take.
class BatchRunner final : private StepSink {
 public:
  // Null where the group's steps follow its program.
  using ExecutorMaker = std::function<std::unique_ptr<StepExecutor>(GroupCosts&)>;

  BatchRunner(GroupCosts costs, const ExecutorMaker& make_executor)
      : costs_(std::move(costs)), executor_(make_executor(costs_)) {}
  BatchRunner(const BatchRunner&) = delete;  // the executor refers to the costs
  BatchRunner& operator=(const BatchRunner&) = delete;

  // The next step, which its host has at `now`, and which may start when its input tokens are
  // `known`. Steps run in the order of the calls.
  StepTimes run(const Batch& batch, Ps now, Ps known);

 private:
  void timed(std::size_t /*member*/, const StepTimes& times, Ps /*now*/) override {
    times_ = times;
  }

  GroupCosts costs_;
  std::unique_ptr<StepExecutor> executor_;
  FoldedChain chain_;
  StepTimes times_;
};

}  // namespace llmsim
