// Collectives and hidden states over the cluster's shared links.
//
// A collective, between members or inside a stage, and a hand-over between stages, is one flow for
// each pair of devices on the network that exchange something, so that it meets KV on its way on
// the same links. Alone on them it takes exactly what its table says: the flows carry the bytes of
// the plan that its library takes for its size, or else those of a ring, and what the table has
// beyond that (the other messages' latencies) follows; where its flows would take longer than the
// table, all carry less. Others on the links stretch the flows by their fair shares. Operators that
// do not use shared links are priced as ever.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "model/collective/schedule.h"
#include "network/shared_network.h"
#include "step/executors/expanded.h"

namespace llmsim {

// Flows that start together, each with the same part of a collective's vector.
struct PlanPart {
  std::vector<FlowEnds> flows;
  std::int64_t share = 1, of = 1;  // bytes of a flow: share / of of the vector, rounded up
};

// What a collective moves by the plan that its library takes from so many units on.
struct PlannedCollective {
  std::int32_t op = 0, member = 0;  // of all members: 0
  std::int64_t from_units = 0;
  std::vector<PlanPart> parts;
};

struct ContendedLinks {
  std::vector<NetworkNodeId> places;  // device t + tp * (stage + stages * member)
  // Those on shared links, hand-overs too; bytes of each.
  std::vector<CollectiveSpec> collectives;
  // By operator and member, in the order of their units; collectives without are rings in the order
  // of the ranks.
  std::vector<PlannedCollective> planned;
};

class CollectiveFlows final : private TransferOwner {
 public:
  // From the start of an exchange to its end, and how long it takes when nobody else moves.
  struct Took {
    Ps ps = 0, alone = 0;
  };
  // `done` hears when the flows of a node have landed and what follows them is over, at `at`.
  using Done = std::function<void(const StepNode& node, Took took, Ps at, Ps now)>;
  // Before the first transfer.
  CollectiveFlows(const Program& program, std::int32_t members, ContendedLinks links,
                  SharedNetwork& network, Done done);

  // Whether the operator's bytes are flows.
  bool carries(std::int32_t op) const { return specs_[at(op)] != nullptr; }
  // Starts the flows of what takes `ps` alone, at `at`; of a collective between members for all of
  // them. False when it is too short for its links' latency, so that none start.
  bool start(const StepNode& node, std::int64_t units, Ps ps, Ps at, Ps now);

 private:
  // What the flows of an exchange join: the devices of a stage as a ring; these and those of the
  // next stage; the members' like devices as rings, or all of their devices as one; devices by
  // their near or far ports; who sends to whom in a plan.
  enum class Shape : std::uint8_t { kInside, kSend, kMembers, kEveryone, kNear, kFar, kPlanned };
  // How many bytes each flow of an exchange carries, and what follows; -1: even the latency is too
  // long.
  struct Fit {
    std::int64_t bytes = 0;
    Ps extra = 0;
  };
  static constexpr std::size_t kMostRings = 64;  // of an exchange
  // Flows of equal bytes that start together.
  struct Ring {
    Shape shape = Shape::kInside;
    std::int64_t share = 1, of = 1;   // of what is planned
    BundleId bundle = 0, probed = 0;  // on the network, and on one without anybody else
    std::vector<FlowEnds> flows;
  };
  // Rings that start together: all that an exchange moves.
  struct Moves {
    std::int64_t from_units = 0;
    std::vector<std::size_t> rings;
    bool apart = true;  // no two of them have a link in common
    // By units and time.
    std::map<std::pair<std::int64_t, Ps>, std::vector<Fit>> fits;
    std::pair<std::int64_t, Ps> last{-1, -1};  // the newest, which is often the next
    const std::vector<Fit>* last_fit = nullptr;
  };
  // An operator's collective or hand-over that is on its way.
  struct Exchange {
    StepNode node;
    std::size_t left = 0;                      // rings
    const std::vector<Fit>* fitted = nullptr;  // of each
    Ps begin = 0, alone = 0;
    Ps at = 0;  // when it ends, as far as is known
  };
  // Rings alone on the links.
  struct Alone final : TransferOwner {
    std::vector<Ps> ends;
    void landed(TransferId, std::uint64_t ring, Ps now) override { ends[ring] = now; }
  };

  NetworkNodeId device(std::int32_t member, std::int32_t stage, std::int32_t rank) const {
    return links_.places[at(rank + tp_ * (stage + stages_ * member))];
  }
  void add_moves(const CollectiveSpec& spec);
  std::size_t moves_by(const PlannedCollective& planned);
  std::size_t moves_of(std::vector<std::size_t> rings);
  std::size_t ring(Shape shape, const CollectiveSpec& spec, std::int32_t member);
  std::size_t add_ring(Shape shape, std::vector<FlowEnds> flows);
  std::vector<FlowEnds> flows_of(Shape shape, std::int32_t stage, std::int32_t member,
                                 std::int32_t per_node) const;
  Moves& moves_at(const StepNode& node, std::int64_t units);
  std::int64_t bytes_on(const Ring& ring, const CollectiveSpec& spec, std::int64_t units);
  std::int32_t ranks_of(const CollectiveSpec& spec) const;
  std::int64_t bytes_of(const CollectiveSpec& spec, std::int64_t units, std::int32_t ranks);
  const astra_sim::model::Schedule& schedule_of(const CollectiveSpec& spec, std::int32_t ranks);
  std::vector<NetworkLinkId> crossed_by(std::span<const std::size_t> rings);
  std::vector<Ps> alone(std::span<const std::size_t> rings, std::span<const std::int64_t> bytes);
  const std::vector<Fit>& fit(Moves& moves, const CollectiveSpec& spec, std::int64_t units, Ps ps);
  void fit_together(std::span<const std::size_t> rings, std::vector<std::int64_t> bytes, Ps ps,
                    std::span<Fit> fits);
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;
  bool left(std::uint64_t token, Ps lands, Ps now) override;

  const Program& program_;
  std::int32_t members_, stages_, tp_;
  ContendedLinks links_;
  SharedNetwork& network_;
  Done done_;
  std::vector<const CollectiveSpec*> specs_;  // by operator
  std::vector<Ring> rings_;
  // By shape, stage, member and members of a node.
  std::map<std::tuple<Shape, std::int32_t, std::int32_t, std::int32_t>, std::size_t> ring_of_;
  std::deque<Moves> moves_;
  // By operator and member, by ascending units; empty: nothing moves.
  std::vector<std::vector<std::vector<std::size_t>>> moves_of_;
  std::vector<Exchange> exchanges_;
  std::vector<std::size_t> free_exchanges_;
  // By operator and ranks, of algorithms other than the ring.
  std::map<std::pair<std::int32_t, std::int32_t>, std::shared_ptr<const astra_sim::model::Schedule>>
      schedules_;
  std::unique_ptr<SharedNetwork> probe_;  // a network without anybody else, made when first needed
  Ps probed_ = 0;
};

}  // namespace llmsim
