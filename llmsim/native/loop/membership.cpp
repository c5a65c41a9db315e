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
  if (std::ranges::find(leaving_, index) == leaving_.end()) retire(group);
  if (removal == Removal::kHandBack) hand_back(group);
}

void Simulation::retire(Group& group) {
  leaving_.push_back(group.config().index);
  frontend_->remove_candidate(group);
  frontend_->router().group_removed(group);
  if (!kv_transfers_) return;
  kv_transfers_->remove_candidate(group);
  kv_transfers_->router().group_removed(group);
}

void Simulation::add_lockstep(const LockstepSpec& spec) {
  build_lockstep(spec);
  lockstep_groups_.back()->start(network_.get());
}

Displaced Simulation::displace(const std::vector<std::int32_t>& indices, bool keep_answers) {
  Displaced displaced;
  std::vector<std::pair<RequestId, std::size_t>> in;
  first_move_ = log_.moves.size();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    Group& group = *groups_[at(indices[i])];
    retire(group);
    entities_[group.id()] = nullptr;
    const std::vector<RequestId> requests = frontend_->take_back(group);
    displaced.kv_tokens.push_back(0);
    for (const RequestId request : requests) {
      in.emplace_back(request, i);
      displaced.kv_tokens.back() += group.kv_tokens(request);
    }
  }
  const auto by_arrival = [this](const auto& one) {
    return std::pair(sequences_[one.first].arrival, one.first);
  };
  std::ranges::sort(in, {}, by_arrival);
  std::vector<std::vector<RequestId>> of(indices.size());
  for (const auto& [request, group] : in) {
    displaced.requests.push_back(request);
    displaced.left.push_back(group);
    displaced.kv_of.push_back(groups_[at(indices[group])]->kv_tokens(request));
    of[group].push_back(request);
  }
  for (std::size_t i = 0; i < indices.size(); ++i)
    groups_[at(indices[i])]->hand_back(of[i], now(), keep_answers);
  keep_answers ? frontend_->keep_answers(displaced.requests)
               : frontend_->forget(displaced.requests);
  return displaced;
}

std::vector<std::int64_t> Simulation::kv_brought(const Displaced& displaced,
                                                 const std::vector<std::int32_t>& indices) const {
  std::vector<std::int64_t> tokens(indices.size(), 0);
  for (const RequestId request : displaced.requests) {
    const auto found = std::ranges::find(indices, std::int32_t{log_.group[request]});
    if (found != indices.end())
      tokens[static_cast<std::size_t>(found - indices.begin())] += sequences_[request].kv_brought;
  }
  return tokens;
}

void Simulation::place(const Displaced& displaced, bool with_kv) {
  frontend_->hold(false);
  for (std::size_t i = 0; i < displaced.requests.size(); ++i) {
    const RequestId request = displaced.requests[i];
    const bool seen = log_.queued[request] != kNever;
    log_.moved(request, seen ? now() : sequences_[request].arrival, now());
    if (with_kv) {
      Sequence& s = sequences_[request];
      s.kv_brought = std::min(displaced.kv_of[i], s.num_tokens - 1);
    }
    clients_->send_again({&request, 1}, now());
  }
  frontend_->hold(true);
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
