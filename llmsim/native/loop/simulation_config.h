// What a simulation is made of: one tree, given once to the constructor of Simulation and never
// changed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "frontend/clients.h"
#include "frontend/frontend.h"
#include "frontend/live_requests.h"
#include "group/group.h"
#include "group/lockstep/lockstep_group.h"
#include "kv/offloading/copies.h"
#include "kv/tiers/kv_tiers.h"
#include "kv_transfer/kv_transfer.h"
#include "loop/membership/layouts.h"
#include "loop/membership/membership.h"
#include "network/shared_network.h"
#include "router/router.h"

namespace llmsim {

using RouterMaker = std::function<std::unique_ptr<Router>(RouterContext)>;
using AdmissionMaker = std::function<Admission(const RouterContext&)>;

struct FrontendConfig {
  RouterMaker make_router;         // null: no model has several groups that take its requests
  RouterMaker make_decode_router;  // null: no model has several decode groups
  AdmissionMaker make_admission;   // null: every request is taken in
};

struct ObserversConfig {
  Ps series_interval = 0;      // between two samples of the series; 0: none is recorded
  bool device_shares = false;  // every group notes how long its devices worked for which request
  bool check_every_step =
      false;  // recounts the blocks of every tier whenever a group has acted (invariant 4); slow
  bool transfers = false;  // keeps every transfer of the network
};

struct LimitsConfig {
  Ps horizon = kEndOfTime;  // the run ends then, whatever is still to be done
};

struct SimulationConfig {
  std::shared_ptr<const Source> source;  // null: requests are live
  std::optional<LiveConfig> live;
  std::vector<GroupSpec> groups;  // by index
  std::vector<LockstepSpec> lockstep;
  std::optional<NetworkConfig> network;
  std::vector<ContentionSpec> contention;
  std::optional<KvTiersConfig> kv_tiers;
  std::vector<GroupCopiesConfig> kv_offloading;  // by group; none: nobody does
  std::optional<KvTransferConfig> kv_transfer;
  FrontendConfig frontend;
  ObserversConfig observers;
  LimitsConfig limits;
  std::vector<ControllerMaker> controllers;
  std::shared_ptr<const LayoutsConfig> layouts;  // null: the groups stay as they are
};

// Throws std::invalid_argument that begins with the path of the field, where parts do not fit.
void check(const SimulationConfig& config);
// The same for one group, which is number `index`.
void check(const GroupSpec& group, std::size_t index, bool any_kv_transfer);

}  // namespace llmsim
