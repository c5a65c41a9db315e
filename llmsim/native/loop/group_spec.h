// The description of one group, of which groups are made before and during a run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "group/group.h"
#include "group/lockstep/lockstep_group.h"
#include "kv_transfer/kv_transfer.h"
#include "step/executors/contended.h"

namespace llmsim {

// One group and what makes its parts. A maker is called once for each group that is made of it.
struct GroupSpec {
  GroupConfig config;
  std::function<std::unique_ptr<Scheduler>(SequenceTable&, RequestLog&)> make_scheduler;
  std::function<GroupCosts()> make_costs;
  // Null where the group's steps follow its program.
  std::function<std::unique_ptr<StepExecutor>(Group&)> make_executor;
  bool record_steps = false, record_schedule = false;
};

// Groups that run in lock-step, by index.
struct LockstepSpec {
  std::vector<std::size_t> groups;
  // Rounds between two agreements that a wave has ended; 0: no round runs without work.
  std::int32_t sync_interval = 1;
  std::function<std::unique_ptr<StepExecutor>(const std::vector<Group*>&)> make_executor;
  bool syncs_first = false;  // and one behind the first round of a wave
};

// The members of a lock-step group, or one group whose stages overlap, send over links of the
// network.
struct ContentionSpec {
  std::vector<std::size_t> groups;
  ContendedLinks links;
};

}  // namespace llmsim
