// Groups that come and go while a run goes on, and what decides about them: an autoscaler,
// failures, a switch of layouts.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "events/entity.h"
#include "loop/group_spec.h"

namespace llmsim {

// What becomes of the requests of a group that is removed. Either way it gets no new ones, and its
// columns stay.
enum class Removal : std::uint8_t {
  // It serves what it has received to the end. KV transfers from and to it go on.
  kDrain,
  // It stops at once. Steps in flight are cut, and what they compute is lost. All its requests are
  // routed again and
  // begin anew; tokens that clients have received already come a second time.
  kHandBack,
};

// Nodes and routes lie on the network of the simulation, which does not change.
struct GroupAddition {
  GroupSpec spec;                       // its index is the next one: indices only grow
  std::vector<NetworkNodeId> kv_nodes;  // of its ranks, where it computes prompts or answers alone
  std::vector<KvRoute> kv_routes;       // those from it, and to it
};

class Membership {
 public:
  virtual ~Membership() = default;
  // The group takes requests from now on. Throws std::invalid_argument that begins with the path of
  // the field.
  virtual void add_group(const GroupAddition& addition) = 0;
  // Throws std::invalid_argument for a group that has been removed, and where it cannot leave in
  // this way.
  virtual void remove_group(std::int32_t index, Removal removal) = 0;
  virtual const std::vector<std::unique_ptr<Group>>& groups() const = 0;
};

// Acts at its events of phase kControl, before the arrivals of their time.
class Controller : public Entity {
 public:
  // Called once, before the first event: it posts the first time at which it acts.
  virtual void begin(Membership& membership) = 0;
};

using ControllerMaker = std::function<std::unique_ptr<Controller>()>;

}  // namespace llmsim
