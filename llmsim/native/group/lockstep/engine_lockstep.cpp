#include "group/lockstep/engine_lockstep.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace llmsim {

EngineLockstep::EngineLockstep(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor)
    : LockstepGroup(std::move(members), std::move(executor), /*idles_along=*/false) {
  if (!std::ranges::all_of(members_, &Group::runs_loop))
    throw std::invalid_argument("either all members of a lockstep run their own loop or none does");
}

bool EngineLockstep::agree(Ps now) {
  if (!std::ranges::all_of(members_, &Group::agrees)) return false;
  if (!some_have_requests()) end_wave(now);
  for (Group* member : members_) member->go_on_agreed();
  change_all();
  return true;
}

void EngineLockstep::run_loops(Ps now) {
  bool some_ran = true;
  while (some_ran) {
    some_ran = false;
    gather([&some_ran, now](Group& member) {
      some_ran |= member.run_loop(now);
      return true;
    });
  }
}

bool EngineLockstep::try_round(Ps now) {
  tell_first_iteration(now);
  run_loops(now);
  if (!std::ranges::all_of(members_, &Group::has_offer)) return agree(now);
  const bool work = std::ranges::any_of(members_, &Group::offers_requests);
  if (stands_still(work, some_have_requests())) return false;
  begin_round(now);
  return true;
}

}  // namespace llmsim
