// What is watched while a simulation runs: its series, its invariants, and whether everybody was
// served.
#include "loop/simulation.h"

namespace llmsim {

std::int64_t Simulation::num_rejected() const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < sequences_.size(); ++i)
    count += sequences_[static_cast<RequestId>(i)].status ==
             static_cast<std::uint8_t>(Status::kRejected);
  return count;
}

void Simulation::check_finished() const {
  std::string stuck;
  for (const Entity* entity : entities_)
    if (entity != nullptr) stuck += entity->unfinished();
  if (!stuck.empty())
    throw Stalled("no event is left at " + std::to_string(now()) + " ps but" + stuck);
}

bool Simulation::anything_from_outside() const {
  return events_.pending(Phase::kArrival) + events_.pending(Phase::kGiveUp) +
             events_.pending(Phase::kClientIdle) + events_.pending(Phase::kControl) >
         0;
}

// A group that gets on, and KV on its way to an idle one, may still change what those that run in
// circles hold.
void Simulation::check_circles() const {
  const bool anything_lands = network_ && network_->num_in_flight() > 0;
  std::string circular;
  for (const auto& group : groups_) {
    if (!group->has_requests() || (group->idle() && !anything_lands)) continue;
    if (group->waits_for_others()) continue;
    if (!group->circles()) return;
    circular += (circular.empty() ? "" : ", ") + std::to_string(group->config().index);
  }
  throw Circular(circular);
}

}  // namespace llmsim
