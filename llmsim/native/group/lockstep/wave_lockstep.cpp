#include "group/lockstep/wave_lockstep.h"

#include <algorithm>
#include <utility>

namespace llmsim {

WaveLockstep::WaveLockstep(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor,
                           std::int32_t sync_interval, bool syncs_first)
    : LockstepGroup(std::move(members), std::move(executor), /*idles_along=*/false),
      sync_interval_(sync_interval),
      syncs_first_(syncs_first) {}

// vLLM's DPEngineCoreProc._has_global_unfinished_reqs: each says whether it has requests when it
// has called for its batch or dummy and, with its queue of batches full, has the oldest output.
// What it has just called for has not ended then.
bool WaveLockstep::agree(Ps now) {
  if (!about_to_agree()) return true;
  if (std::ranges::any_of(members_, &Group::full)) return false;
  agreed_ = true;
  if (!some_have_requests()) end_wave(now);
  change_all();
  return true;
}

std::int64_t WaveLockstep::rounds_ahead() const {
  if (rounds_ == 0 && syncs_first_) return 1;
  return sync_interval_ - rounds_ % sync_interval_;
}

bool WaveLockstep::all_offer(Ps now) {
  const std::int64_t ahead = rounds_ahead();
  return gather([this, ahead, now](Group& member) {
    member.offer(now, rounds_, ahead);
    if (rounds_ > 0 && !member.has_offer() && member.may_join_idle()) member.join_idle(now);
    return member.has_offer() || member.joins_idle() || member.may_join_idle();
  });
}

// Requests that wait for their KV keep the wave going, and start one, as in vLLM: all ranks run
// dummies.
bool WaveLockstep::try_round(Ps now) {
  if (!agree(now)) return false;
  tell_first_iteration(now);
  if (!all_offer(now)) return false;
  const bool work = some_have_work();
  const bool unfinished = some_have_requests();
  if (!work && !unfinished && rounds_ == 0) return false;
  if (stands_still(work, unfinished)) return false;
  agreed_ = false;
  begin_round(now);
  return true;
}

}  // namespace llmsim
