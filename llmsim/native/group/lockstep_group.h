// What executes together: the data-parallel ranks of an expert domain, in lock-step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "group/group.h"
#include "step/contended.h"
#include "step/lockstep_step.h"

namespace llmsim {

// vLLM's data-parallel wave. A round is one batch of every member; it starts when all have offered
// theirs, and a member without work joins with a dummy of one token. When nobody has work the
// rounds go on until the ranks agree that the wave has ended, which they do in every
// `sync_interval`-th round of it.
class LockstepGroup {
 public:
  LockstepGroup(std::vector<Group*> members, std::unique_ptr<RoundExecutor> executor,
                std::int32_t sync_interval);
  // Builds what members can build, and starts the rounds for which all are there.
  void pump(Ps now);
  std::span<Group* const> members() const { return members_; }
  RoundExecutor& executor() { return *executor_; }
  // From now on the members meet over shared links.
  void share_links(std::unique_ptr<ContendedRound> shared) { shared_ = std::move(shared); }

 private:
  // Rounds that the members may spend so; then nothing but an event from outside changes what they
  // can run.
  static constexpr std::int64_t kMostIdleRounds = 100'000;
  bool try_round(Ps now);
  bool waits_for_nothing() const;

  std::vector<Group*> members_;
  std::unique_ptr<RoundExecutor> executor_;
  std::unique_ptr<ContendedRound> shared_;  // null: executor_ times the rounds
  std::int32_t sync_interval_;
  std::int64_t rounds_ = 0;  // of this wave; 0: none runs
  std::int64_t idle_rounds_ =
      0;  // in a row in which nobody ran a request although some wait, and for no KV
  std::vector<const Batch*> batches_;
  std::vector<StepTimes> times_;
};

}  // namespace llmsim
