// Our model of vLLM's data-parallel ranks that share experts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "group/lockstep/lockstep_group.h"

namespace llmsim {

// vLLM's data-parallel wave. A member without work joins a round with a dummy, which it calls for
// as soon as it has found nothing to run. When nobody has work the rounds go on until the ranks
// agree that the wave has ended, which they do in every `sync_interval`-th round of it, and in
// releases that sync first also in the first one.
class WaveLockstep final : public LockstepGroup {
 public:
  WaveLockstep(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor,
               std::int32_t sync_interval, bool syncs_first);
  bool about_to_agree() const override { return !agreed_ && syncs(rounds_); }
  bool rests(const Group&) const override { return rounds_ == 0; }
  // A request that a member has taken begins a wave.
  bool runs_dummies() const override { return rounds_ > 0 || some_have_requests(); }

 private:
  bool try_round(Ps now) override;
  bool all_offer(Ps now);
  // Whether the members agree behind this round of a wave.
  bool syncs(std::int64_t round) const {
    return round > 0 && ((syncs_first_ && round == 1) || round % sync_interval_ == 0);
  }
  // False: they are about to agree, and some have still to end what they do in this round. With
  // nobody's work left the wave ends.
  bool agree(Ps now);
  // For how many rounds behind this one a member may build batches: up to the next agreement.
  std::int64_t rounds_ahead() const;

  std::int32_t sync_interval_;
  bool syncs_first_;
  bool agreed_ = false;  // behind this round
};

}  // namespace llmsim
