// Times rounds of a lock-step group whose batches somebody else forms: schedulers of real engines.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "network/outside_network.h"
#include "step/executors/executor.h"

namespace llmsim {

// The devices of a lock-step group without its schedulers. Rounds take what those of the group
// would take; where they meet others on a network, that is known when their last bytes are there.
class RoundRunner final : private StepSink {
 public:
  using ExecutorMaker = std::function<std::unique_ptr<StepExecutor>(std::vector<GroupCosts*>)>;
  // One member's step of a round.
  struct Timed {
    std::size_t member = 0;
    StepTimes times;
  };

  // `costs` by member; `network`: where their transfers meet others, null: nowhere.
  RoundRunner(std::vector<GroupCosts> costs, const ExecutorMaker& make_executor,
              std::shared_ptr<OutsideNetwork> network = nullptr);
  RoundRunner(const RoundRunner&) = delete;  // the executor refers to the costs
  RoundRunner& operator=(const RoundRunner&) = delete;

  // The next round, which hosts prepare from `now` on, and which may start at `ready`: a batch of
  // every member, a dummy where it has none. Rounds run in the order of the calls. Throws
  // std::invalid_argument for another number of them.
  void begin(std::span<const Batch> batches, Ps now, Ps ready);
  // What has become known since this was asked last; of each member in the order of its steps.
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
