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
// theirs, and a member without work joins with a dummy of one token, which it calls for as soon as
// it has found nothing to run. When nobody has work the rounds go on until the ranks agree that the
// wave has ended, which they do in every `sync_interval`-th round of it, and in releases that sync
// first also in the first one. SGLang's ranks agree on that in front of every round, so that none
// runs without work.
class LockstepGroup final : private StepSink {
 public:
  // Interval 0: members take part in a round only where some have work, and never agree. They join.
  LockstepGroup(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor,
                std::int32_t sync_interval, bool syncs_first);
  // Builds what members can build, and starts the rounds for which all are there. Then members
  // expect what comes next: all of them behind a round or an agreement, else those that were asked,
  // and the one that pumps.
  void pump(std::size_t pumping, Ps now);
  // The member has completed a batch, or is to hear of something: it is asked again for its offer.
  void stir(std::size_t member);
  std::span<Group* const> members() const { return members_; }
  // A wave's first round has begun, and its end is not known.
  bool runs_rounds() const { return rounds_ > 0; }
  // Of this wave, that have begun, and how many waves have ended.
  std::int64_t rounds() const { return rounds_; }
  std::int64_t waves() const { return waves_; }
  // Whether members wait for each other to agree whether the wave has ended.
  bool about_to_agree() const { return !idle_along_ && !agreed_ && syncs(rounds_); }
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
  // The first member from `m` on that is stirred; their number: none.
  std::size_t next_stirred(std::size_t m) const;
  void stir_all();
  // Asks for offers; whether all are there.
  bool gather(Ps now);
  bool all_offer(Ps now);
  bool try_round(Ps now);
  bool passes_again(Ps now);
  // Whether the members agree behind this round of a wave.
  bool syncs(std::int64_t round) const {
    return round > 0 && ((syncs_first_ && round == 1) || round % sync_interval_ == 0);
  }
  // False: they are about to agree, and some have still to end what they do in this round. With
  // nobody's work left the wave ends.
  bool agree(Ps now);
  void tell(WaveNews news, Ps now) const;
  // The first rank has ended its first iteration of this wave.
  void tell_first_iteration(Ps now);
  // For how many rounds behind this one a member may build batches: up to the next agreement.
  std::int64_t rounds_ahead() const;
  bool some_have_requests() const;
  bool waits_for_nothing() const;

  std::vector<Group*> members_;
  std::unique_ptr<StepExecutor> executor_;
  std::int32_t sync_interval_;
  bool syncs_first_;
  bool idle_along_ = false;  // its members take part in every round in which others have work
  bool agreed_ = false;      // behind this round
  bool work_left_ = false;   // as the members say who agree
  std::int64_t rounds_ = 0;  // of this wave; 0: none runs
  std::int64_t waves_ = 0;   // that have ended
  bool tells_first_iteration_ = false;  // when it has ended
  std::int64_t idle_rounds_ =
      0;               // in a row in which nobody ran a request although some wait, and for no KV
  Ps passed_at_ = -1;  // when members last found nothing to run
  std::int64_t idle_passes_ = 0;  // at that time
  std::vector<const Batch*> batches_;
  // Who may have another answer than when it was asked last: a bit of each member. The others have
  // nothing to hear of, and either have offered a batch or have no place for one.
  std::vector<std::uint64_t> stirred_;
  std::vector<std::size_t> asked_;  // since members last expected something
  bool all_changed_ = false;        // since then a round has begun, or the members have agreed
  std::size_t num_full_ = 0;        // of the others: those without a place
};

}  // namespace llmsim
