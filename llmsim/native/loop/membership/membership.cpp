#include "loop/membership/membership.h"

#include <algorithm>
#include <string>

#include "loop/simulation.h"

namespace llmsim {

void Simulation::add_group(const GroupAddition& addition) {
  check(addition.spec, groups_.size(), kv_transfers_ != nullptr);
  const bool apart = addition.spec.config.role != Role::kBoth;
  if (apart && (addition.kv_nodes.empty() || addition.kv_routes.empty()))
    throw std::invalid_argument("group " + std::to_string(addition.spec.config.index) +
                                " computes prompts or answers alone and needs nodes and routes");
  Group& group = make_group(addition.spec);
  watch(group);
  if (kv_transfers_) {
    kv_transfers_->add_group(group, addition.kv_nodes);
    kv_transfers_->add_routes(addition.kv_routes);
  }
  connect(group);
  frontend_->router().group_added(group);
  if (kv_transfers_) kv_transfers_->router().group_added(group);
  group.start(network_.get(), now());
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

// Groups first, then what is between them, then who sends them requests.
std::int32_t Simulation::add_layout(const LayoutSpec& layout) {
  const std::size_t first = groups_.size();
  for (GroupSpec spec : layout.groups) {
    spec.config.index = static_cast<std::int32_t>(groups_.size());
    check(spec, groups_.size(), kv_transfers_ != nullptr);
    watch(make_group(spec));
  }
  build_together(layout, first);
  if (kv_transfers_) add_kv_transfers(layout, first);
  for (std::size_t i = 0; i < layout.groups.size(); ++i) {
    Group& group = *groups_[first + i];
    if (kv_tiers_) {
      kv_tiers_->add_group(layout.tiers[i]);
      use_tiers(group);
    }
    if (offloading_copies_) use_copies(group, layout.offloading[i]);
    connect(group);
    frontend_->router().group_added(group);
    if (kv_transfers_) kv_transfers_->router().group_added(group);
  }
  return static_cast<std::int32_t>(first);
}

// Flows that groups start together form new components, for which the network has to know that
// nothing moves.
void Simulation::start_layout(std::int32_t first) {
  if (network_) network_->settle(now());
  const auto is_new = [first](const Group& group) { return group.config().index >= first; };
  for (const auto& lockstep : lockstep_groups_)
    if (is_new(*lockstep->members().front())) lockstep->start(network_.get(), now());
  for (const auto& group : groups_)
    if (is_new(*group)) group->start(network_.get(), now());
}

void Simulation::build_together(const LayoutSpec& layout, std::size_t first) {
  for (LockstepSpec lockstep : layout.lockstep) {
    for (std::size_t& member : lockstep.groups) member += first;
    build_lockstep(lockstep);
  }
  for (ContentionSpec contention : layout.contention) {
    for (std::size_t& group : contention.groups) group += first;
    build_contention(contention);
  }
}

void Simulation::add_kv_transfers(const LayoutSpec& layout, std::size_t first) {
  const KvTransferConfig& config = layout.kv_transfer;
  for (std::size_t i = 0; i < layout.groups.size(); ++i)
    kv_transfers_->add_group(*groups_[first + i], config.places[i]);
  const std::int32_t table = kv_transfers_->add_tables(config.tables);
  const auto offset = static_cast<std::int32_t>(first);
  std::vector<KvRoute> routes = config.routes;
  for (KvRoute& route : routes)
    route = {route.prefill_group + offset, route.decode_group + offset, route.table + table};
  kv_transfers_->add_routes(routes);
}

void Simulation::hold_transfers(StepEnds& landed) {
  if (kv_transfers_) kv_transfers_->hold(true);
  if (network_) network_->report_quiet_to([&landed](Ps now) { landed.step_ended(now); });
}

void Simulation::release_transfers() {
  if (kv_transfers_) kv_transfers_->hold(false);
  if (network_) network_->report_quiet_to(nullptr);
}

HeldKv Simulation::holder(RequestId request) const {
  if (kv_transfers_ && kv_transfers_->has(request)) {
    const auto [group, tokens] = kv_transfers_->holder(request);
    return {group, tokens};
  }
  return {log_.group[request], sequences_[request].num_computed};
}

// The groups whose engines have the request.
std::vector<Group*> Simulation::working_for(RequestId request) const {
  if (!kv_transfers_ || !kv_transfers_->has(request))
    return {groups_[at(log_.group[request])].get()};
  const KvTransfer& kv_transfer = kv_transfers_->of(request);
  std::vector<Group*> working;
  if (kv_transfer.at_prefill && kv_transfer.prefilled == kNever)
    working.push_back(groups_[at(kv_transfer.prefill_group)].get());
  if (kv_transfer.decode_group >= 0) working.push_back(groups_[at(kv_transfer.decode_group)].get());
  return working;
}

Displaced Simulation::displace(const std::vector<std::int32_t>& indices, bool keep_answers) {
  Displaced displaced;
  first_move_ = log_.moves.size();
  if (kv_transfers_) kv_transfers_->abandon(now());
  for (const std::int32_t index : indices) {
    Group& group = *groups_[at(index)];
    retire(group);
    entities_[group.id()] = nullptr;
    const std::vector<RequestId> requests = frontend_->take_back(group);
    displaced.requests.insert(displaced.requests.end(), requests.begin(), requests.end());
  }
  const auto by_arrival = [this](RequestId request) {
    return std::pair(sequences_[request].arrival, request);
  };
  std::ranges::sort(displaced.requests, {}, by_arrival);
  std::vector<std::vector<RequestId>> of(groups_.size());
  for (const RequestId request : displaced.requests) {
    displaced.kv.push_back(holder(request));
    for (const Group* group : working_for(request))
      of[at(group->config().index)].push_back(request);
  }
  for (const std::int32_t index : indices) {
    groups_[at(index)]->hand_back(of[at(index)], now(), keep_answers);
    if (kv_tiers_) kv_tiers_->leave(index);
  }
  keep_answers ? frontend_->keep_answers(displaced.requests)
               : frontend_->forget(displaced.requests);
  if (kv_transfers_) kv_transfers_->displaced(displaced.requests, keep_answers);
  return displaced;
}

HeldKv Simulation::kv_brought(RequestId request) const {
  if (kv_transfers_ && kv_transfers_->of(request).prefill_group >= 0)
    return {kv_transfers_->of(request).prefill_group, prompts_->sequences[request].kv_brought};
  return {log_.group[request], sequences_[request].kv_brought};
}

void Simulation::place(const Displaced& displaced, bool with_kv) {
  frontend_->hold(false);
  for (std::size_t i = 0; i < displaced.requests.size(); ++i) {
    const RequestId request = displaced.requests[i];
    const bool seen = log_.queued[request] != kNever || !log_.tokenized.empty() ||
                      (prompts_ && prompts_->log.queued[request] != kNever);
    log_.moved(request, seen ? now() : sequences_[request].arrival, now());
    if (with_kv) {
      Sequence& s = sequences_[request];
      s.kv_brought = std::min(displaced.kv[i].tokens, s.num_tokens - 1);
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
  if (group.moves() != nullptr)
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
