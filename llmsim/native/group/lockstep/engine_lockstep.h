// Data-parallel ranks whose engines run their own loop.
#pragma once

#include <memory>
#include <vector>

#include "group/lockstep/lockstep_group.h"

namespace llmsim {

// Each member's engine says itself when it runs a batch or a dummy, when it agrees with the others,
// and when it idles (`EngineLoop`); here the loops only wait for each other.
class EngineLockstep final : public LockstepGroup {
 public:
  EngineLockstep(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor);
  bool rests(const Group& member) const override { return member.looks(); }

 private:
  bool try_round(Ps now) override;
  // All members wait for an agreement: they go on with it.
  bool agree(Ps now);
  // Lets the members' loops go on as far as they can: one may wake another.
  void run_loops(Ps now);
};

}  // namespace llmsim
