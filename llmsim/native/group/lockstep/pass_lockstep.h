// Our model of SGLang's data-parallel ranks, and of groups that take part where others have work.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "group/lockstep/lockstep_group.h"

namespace llmsim {

// SGLang's ranks agree in front of every round, so that none runs without work: in a pass all look
// at what has come, then all form their batches. Members without one idle along.
class PassLockstep final : public LockstepGroup {
 public:
  // `never_agrees`: members take part in a round only where some have work, whatever their
  // schedulers say.
  PassLockstep(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor,
               bool never_agrees);

 private:
  bool try_round(Ps now) override;
  bool all_offer(Ps now);
  bool offer_withheld(Ps now);
  bool passes_again(Ps now);

  Ps passed_at_ = -1;             // when members last found nothing to run
  std::int64_t idle_passes_ = 0;  // at that time
};

}  // namespace llmsim
