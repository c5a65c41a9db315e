// What executes together: the data-parallel ranks of an expert domain, in lock-step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "group/group.h"
#include "step/executors/executor.h"

namespace llmsim {

// vLLM's data-parallel wave. A round is one batch of every member; it starts when all have offered
// theirs, and a member without work joins with a dummy of one token. When nobody has work the
// rounds go on until the ranks agree that the wave has ended, which they do in every
// `sync_interval`-th round of it. SGLang's ranks agree on that in front of every round, so that
// none runs without work.
class LockstepGroup final : private StepSink {
 public:
  LockstepGroup(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor,
                std::int32_t sync_interval);
  // Builds what members can build, and starts the rounds for which all are there.
  void pump(Ps now);
  // The member has completed a batch, or is to hear of something: it is asked again for its offer.
  void stir(std::size_t member);
  std::span<Group* const> members() const { return members_; }
  // Runs the rounds from now on; before the first one.
  void use_executor(std::unique_ptr<StepExecutor> executor) { executor_ = std::move(executor); }
  bool report_layers() { return executor_->report_layers(); }
  // Before the first round; the network may be null.
  void start(SharedNetwork* network, Ps now) { executor_->start(network, now); }

 private:
  // Rounds that the members may spend so; then nothing but an event from outside changes what they
  // can run.
  static constexpr std::int64_t kMostIdleRounds = 100'000;
  void timed(std::size_t member, const StepTimes& times, Ps now) override {
    members_[member]->timed(0, times, now);
  }
  void attended(std::size_t member, std::int32_t behind, std::int32_t layer, Ps at,
                Ps now) override {
    members_[member]->attended(0, behind, layer, at, now);
  }
  // Asks for offers; whether all are there.
  bool gather(Ps now);
  bool try_round(Ps now);
  // Whether no round begins, for lack of work; `unfinished`: some members hold requests.
  bool rests(bool work, bool unfinished) const;
  bool waits_for_nothing() const;
  bool idle_along() const { return std::ranges::any_of(members_, &Group::idles_along); }

  std::vector<Group*> members_;
  std::unique_ptr<StepExecutor> executor_;
  std::int32_t sync_interval_;
  std::int64_t rounds_ = 0;  // of this wave; 0: none runs
  std::int64_t idle_rounds_ =
      0;  // in a row in which nobody ran a request although some wait, and for no KV
  std::vector<const Batch*> batches_;
  // Who may have another answer than when it was asked last. The others have nothing to hear of,
  // and either have offered a batch or have no place for one.
  std::vector<bool> stirred_;
  std::size_t num_full_ = 0;  // of the others: those without a place
};

}  // namespace llmsim
