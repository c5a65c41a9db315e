// Times rounds of a lock-step group whose batches somebody else forms: schedulers of real engines.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "step/executors/executor.h"

namespace llmsim {

// The devices of a lock-step group without its schedulers. Rounds take what those of the group
// would take.
class RoundRunner final : private StepSink {
 public:
  using ExecutorMaker = std::function<std::unique_ptr<StepExecutor>(std::vector<GroupCosts*>)>;

  // `costs` by member.
  RoundRunner(std::vector<GroupCosts> costs, const ExecutorMaker& make_executor);
  RoundRunner(const RoundRunner&) = delete;  // the executor refers to the costs
  RoundRunner& operator=(const RoundRunner&) = delete;

  // The next round, which hosts prepare from `now` on, and which may start at `ready`: a batch of
  // every member, a dummy where it has none. Rounds run in the order of the calls. Throws
  // std::invalid_argument for another number of them.
  std::span<const StepTimes> run(std::span<const Batch> batches, Ps now, Ps ready);

 private:
  void timed(std::size_t member, const StepTimes& times, Ps /*now*/) override {
    times_[member] = times;
  }

  std::vector<GroupCosts> costs_;
  std::unique_ptr<StepExecutor> executor_;
  std::vector<StepTimes> times_;
};

}  // namespace llmsim
