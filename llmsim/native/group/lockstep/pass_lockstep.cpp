#include "group/lockstep/pass_lockstep.h"

#include <algorithm>
#include <string>
#include <utility>

namespace llmsim {

PassLockstep::PassLockstep(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor,
                           bool never_agrees)
    : LockstepGroup(std::move(members), std::move(executor), /*idles_along=*/never_agrees) {
  has_waves_ = false;
}

// All members have looked: they form their batches, of which some may wait for KV below.
bool PassLockstep::all_offer(Ps now) {
  if (!gather([now](Group& member) { return member.look(now); })) return false;
  for (Group* member : members_) member->offer(now, rounds_, /*rounds_ahead=*/1);
  return std::ranges::all_of(
      members_, [](const Group* member) { return member->has_offer() || member->may_join_idle(); });
}

bool PassLockstep::offer_withheld(Ps now) {
  for (Group* member : members_) member->offer_withheld(now);
  return some_have_work();
}

// Nobody has work: the wave is over when all have ended what they did, and members that may find
// something in the next pass have all others pass along.
bool PassLockstep::passes_again(Ps now) {
  for (Group* member : members_) member->end_pass();
  stir_all();
  if (!std::ranges::all_of(members_, &Group::idle)) return false;
  rounds_ = 0;
  if (!std::ranges::any_of(members_, &Group::asks_again)) return false;
  if (passed_at_ != std::exchange(passed_at_, now)) idle_passes_ = 0;
  if (++idle_passes_ > kMostEmptyBuilds)
    throw Stalled("the ranks of a lock-step group passed " + std::to_string(idle_passes_) +
                  " times at " + std::to_string(now) + " ps");
  return true;
}

bool PassLockstep::try_round(Ps now) {
  if (!all_offer(now)) return false;
  if (!some_have_work() && !offer_withheld(now)) return passes_again(now);
  for (Group* member : members_) member->keep_back();
  begin_round(now);
  return true;
}

}  // namespace llmsim
