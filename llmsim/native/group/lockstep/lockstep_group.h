// What executes together: groups whose steps are rounds, of which each has a batch of every member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "group/group.h"
#include "step/executors/executor.h"

namespace llmsim {

// A round starts when all members have offered their batch or joined with a dummy of one token.
// When that is so is said by those who decide what a member does next, of which each kind is a
// class: our model of vLLM's ranks (WaveLockstep), of SGLang's (PassLockstep), and engines that run
// their own loop (EngineLockstep).
class LockstepGroup : private StepSink {
 public:
  // They join; `idles_along` as `Group::join`.
  LockstepGroup(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor,
                bool idles_along);
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
  virtual bool about_to_agree() const { return false; }
  // Whether the member's engine waits for messages, whatever its dummies in flight.
  virtual bool rests(const Group&) const { return false; }
  // Whether members without work run dummies.
  virtual bool runs_dummies() const { return true; }
  // Runs the rounds from now on; before the first one.
  void use_executor(std::unique_ptr<StepExecutor> executor) { executor_ = std::move(executor); }
  bool report_layers() { return executor_->report_layers(); }
  // Before the first round; the network may be null.
  void start(SharedNetwork* network, Ps now) { executor_->start(network, now); }

 protected:
  // Whether it has begun a round, or something else has changed for which to try again.
  virtual bool try_round(Ps now) = 0;
  // Asks the stirred members; whether all are there, and have a place.
  template <typename Ask>
  bool gather(const Ask& is_there);
  // Whether some offer a batch.
  bool some_have_work() const;
  // Whether some have unfinished requests; copies of those that have ended may still go on.
  bool some_have_requests() const;
  // Whether members have run nobody for too many rounds although some have requests: nothing but an
  // event from outside changes what they can run. Asked before each round.
  bool stands_still(bool work, bool unfinished);
  void begin_round(Ps now);
  // No round of the wave follows; the coordinator hears of it, and that the first rank has ended
  // its first iteration.
  void end_wave(Ps now);
  void tell_first_iteration(Ps now);
  // Something has changed for all members.
  void change_all();
  void stir_all();

  std::vector<Group*> members_;
  std::int64_t rounds_ = 0;  // of this wave; 0: none runs
  bool has_waves_ = true;    // of which a coordinator hears

 private:
  void timed(std::size_t member, const StepTimes& times, Ps now) override {
    members_[member]->timed(0, times, now);
  }
  void attended(std::size_t member, std::int32_t behind, std::int32_t layer, Ps at,
                Ps now) override {
    members_[member]->attended(0, behind, layer, at, now);
  }
  // The first member from `m` on that is stirred; their number: none.
  std::size_t next_stirred(std::size_t m) const;
  void settle(std::size_t member);
  void tell(WaveNews news, Ps now) const;
  bool waits_for_nothing() const;

  std::unique_ptr<StepExecutor> executor_;
  std::int64_t idle_rounds_ =
      0;  // in a row in which nobody ran a request although some wait, and for no KV
  std::int64_t waves_ = 0;              // that have ended
  bool tells_first_iteration_ = false;  // when it has ended
  std::vector<const Batch*> batches_;
  // Who may have another answer than when it was asked last: a bit of each member. The others have
  // nothing to hear of, and either have offered a batch or have no place for one.
  std::vector<std::uint64_t> stirred_;
  std::vector<std::size_t> asked_;  // since members last expected something
  bool all_changed_ = false;        // since then a round has begun, or the members have agreed
  std::size_t num_full_ = 0;        // of the others: those without a place
};

// In a large group most members wait for a few: who waits is not asked again.
template <typename Ask>
bool LockstepGroup::gather(const Ask& is_there) {
  bool all_there = true;
  for (std::size_t m = next_stirred(0); m < members_.size(); m = next_stirred(m + 1)) {
    asked_.push_back(m);
    all_there &= is_there(*members_[m]);
    if (members_[m]->settled()) settle(m);
  }
  return all_there && num_full_ == 0;
}

}  // namespace llmsim
