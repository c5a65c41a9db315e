#include "group/lockstep/make_lockstep.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "group/lockstep/engine_lockstep.h"
#include "group/lockstep/pass_lockstep.h"
#include "group/lockstep/wave_lockstep.h"

namespace llmsim {

std::unique_ptr<LockstepGroup> make_lockstep(std::vector<Group*> members,
                                             std::unique_ptr<StepExecutor> executor,
                                             const Agreements& agreements) {
  if (agreements.interval < 0)
    throw std::invalid_argument("the sync interval of a lockstep must be at least 0");
  if (std::ranges::any_of(members, &Group::runs_loop))
    return std::make_unique<EngineLockstep>(std::move(members), std::move(executor));
  const bool never_agree = agreements.interval == 0;
  if (never_agree || std::ranges::any_of(members, &Group::idles_along))
    return std::make_unique<PassLockstep>(std::move(members), std::move(executor), never_agree);
  return std::make_unique<WaveLockstep>(std::move(members), std::move(executor),
                                        agreements.interval, agreements.first);
}

}  // namespace llmsim
