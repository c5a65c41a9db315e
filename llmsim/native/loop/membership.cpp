#include "loop/membership.h"

#include <algorithm>
#include <string>

#include "loop/simulation.h"

namespace llmsim {

void Simulation::add_group(const GroupAddition& addition) {
  check(addition.spec, groups_.size(), kv_transfers_ != nullptr);
  Group& group = make_group(addition.spec);
  if (!log_.share_place.empty()) group.shares = std::make_unique<DeviceShares>();
  if (kv_transfers_) kv_transfers_->add_group(group, addition.kv_nodes, addition.kv_routes);
  connect(group);
  frontend_->router().group_added(group);
  if (kv_transfers_) kv_transfers_->router().group_added(group);
  group.start(network_.get());
}

void Simulation::remove_group(std::int32_t index, Removal removal) {
  if (index < 0 || at(index) >= groups_.size())
    throw std::invalid_argument("group " + std::to_string(index) + " does not exist");
  Group& group = *groups_[at(index)];
  refuse_removal(group, removal);
  if (std::ranges::find(leaving_, index) == leaving_.end()) {
    leaving_.push_back(index);
    frontend_->remove_candidate(group);
    frontend_->router().group_removed(group);
    if (kv_transfers_) {
      kv_transfers_->remove_candidate(group);
      kv_transfers_->router().group_removed(group);
    }
  }
  if (removal == Removal::kHandBack) hand_back(group);
}

// Others wait for members of a lock-step group in every round; KV that is on its way has owners at
// both ends.
void Simulation::refuse_removal(const Group& group, Removal removal) const {
  const std::string name = "group " + std::to_string(group.config().index);
  const bool drains = std::ranges::find(leaving_, group.config().index) != leaving_.end();
  if (entities_[group.id()] == nullptr || (drains && removal == Removal::kDrain))
    throw std::invalid_argument(name + " has been removed");
  if (removal == Removal::kDrain) return;
  if (group.lockstep() != nullptr)
    throw std::invalid_argument(name + " runs in lock-step with others and can only be drained");
  if (group.config().role != Role::kBoth)
    throw std::invalid_argument(name + " sends or gets KV and can only be drained");
  if (group.tiers() != nullptr)
    throw std::invalid_argument(name + " recalls KV from tiers and can only be drained");
}

void Simulation::hand_back(Group& group) {
  entities_[group.id()] = nullptr;
  const std::vector<RequestId> requests = frontend_->take_back(group);
  group.hand_back(requests, now());
  frontend_->forget(requests);
  clients_->send_again(requests, now());
}

}  // namespace llmsim
