// Who decides what the members of a lock-step group do next.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "group/lockstep/lockstep_group.h"

namespace llmsim {

// When members agree whether a wave has ended, where our model of vLLM decides.
struct Agreements {
  std::int32_t interval = 1;  // rounds from one to the next; 0: members never agree
  bool first = false;         // and one behind the first round of a wave
};

// Engines that run their own loop decide; else our model of theirs. The members join.
std::unique_ptr<LockstepGroup> make_lockstep(std::vector<Group*> members,
                                             std::unique_ptr<StepExecutor> executor,
                                             const Agreements& agreements);

}  // namespace llmsim
