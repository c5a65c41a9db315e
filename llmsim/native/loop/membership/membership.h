// Groups that come and go while a run goes on, and what decides about them: an autoscaler,
// failures, a switch of layouts.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "events/entity.h"
#include "loop/membership/layout_spec.h"

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

// Tokens of KV that a group holds for a request.
struct HeldKv {
  std::int32_t group = -1, tokens = 0;
};

// Requests that were in groups which have left, and what those held for them.
struct Displaced {
  std::vector<RequestId> requests;  // by arrival, then by row
  std::vector<HeldKv> kv;           // by request
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

  // For switches of layouts: all groups of one, with what they do together. Returns the index of
  // the first one.
  virtual std::int32_t add_layout(const LayoutSpec& layout) = 0;
  // Its groups from the first one on have their weights: copies that run ahead of steps begin.
  virtual void start_layout(std::int32_t first) = 0;
  // Arrivals wait in front of the router until they are released.
  virtual void hold_arrivals() = 0;
  virtual void release_arrivals() = 0;
  virtual std::int32_t num_held() const = 0;
  // No KV begins to move between groups until it is released; `landed` hears when what moves, of KV
  // or anything else, has landed.
  virtual void hold_transfers(StepEnds& landed) = 0;
  virtual void release_transfers() = 0;
  virtual bool anything_moves() const = 0;
  // These groups, of which no step is in flight, leave together. Their requests keep the tokens of
  // their answers, or begin anew.
  virtual Displaced displace(const std::vector<std::int32_t>& indices, bool keep_answers) = 0;
  // They are routed again, ahead of what is held, and may bring their KV along.
  virtual void place(const Displaced& displaced, bool with_kv) = 0;
  // What KV of a request came along to the group that took it.
  virtual HeldKv kv_brought(RequestId request) const = 0;
  // The groups that took what was placed open now.
  virtual void opened(Ps until) = 0;
  // Requests that have neither been answered nor given up, and all requests.
  virtual std::int64_t num_open() const = 0;
  virtual std::int64_t num_requests() const = 0;
};

// Acts at its events of phase kControl, before the arrivals of their time.
class Controller : public Entity {
 public:
  // Called once, before the first event: it posts the first time at which it acts.
  virtual void begin(Membership& membership) = 0;
};

using ControllerMaker = std::function<std::unique_ptr<Controller>()>;

}  // namespace llmsim
