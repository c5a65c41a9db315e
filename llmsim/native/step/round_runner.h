// Times rounds of a lock-step group whose batches somebody else forms: schedulers of real engines.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "network/outside_network.h"
#include "step/executors/executor.h"

namespace llmsim {

// The devices of a lock-step group, or of one group, without their schedulers. Rounds take what
// those of the groups would take. Where their transfers meet others on a network, that has to move
// on for a round to end.
class RoundRunner final : private StepSink {
 public:
  using ExecutorMaker = std::function<std::unique_ptr<StepExecutor>(std::vector<GroupCosts*>)>;
  struct Timed {
    std::size_t member;
    StepTimes times;
  };

  // `costs` by member. `network`: null where nothing of a round meets other transfers.
  RoundRunner(std::vector<GroupCosts> costs, const ExecutorMaker& make_executor,
              std::shared_ptr<OutsideNetwork> network);
  RoundRunner(const RoundRunner&) = delete;  // the executor refers to the costs
  RoundRunner& operator=(const RoundRunner&) = delete;

  // The next round: a batch of every member, a dummy where it has none. Rounds run in the order of
  // the calls. Throws std::invalid_argument for another number of them.
  void run(std::span<const Batch> batches, const StepStart& start);
  // The steps whose times are known since the last call; those of a member in their order.
  std::vector<Timed> take_timed() { return std::exchange(timed_, {}); }

 private:
  void timed(std::size_t member, const StepTimes& times, Ps /*now*/) override {
    timed_.push_back({member, times});
  }

  std::vector<GroupCosts> costs_;
  std::shared_ptr<OutsideNetwork> network_;
  std::unique_ptr<StepExecutor> executor_;
  std::vector<Timed> timed_;
};

}  // namespace llmsim
