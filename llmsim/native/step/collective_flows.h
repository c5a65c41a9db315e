// Collectives and hidden states over the cluster's shared links.
//
// A collective, between members or inside a stage, and a hand-over between stages, is one flow for
// each pair of devices on the network, so that it meets KV on its way on the same links. Alone on
// them it takes exactly what its table says: the flows carry the bytes that a ring sends, and what
// the table has beyond that (the other messages' latencies) follows; where its flows share links
// and would take longer than the table, they carry less. Others on the links stretch the flows by
// their fair shares. Operators that do not use shared links are priced as ever.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "model/collective/schedule.h"
#include "network/shared_network.h"
#include "step/expanded.h"

namespace llmsim {

// Who sends to whom in a collective whose ranks are on several servers: rails from server to
// server, and neighbours inside each of them. Channels begin at each of `per_server` ranks, so that
// a rail carries one of so many parts of what a ring of all ranks carries, and neighbours all but
// one.
struct Rails {
  std::int32_t op = 0, member = 0;  // of all members: 0
  std::vector<FlowEnds> between, inside;
  std::int64_t per_server = 1;
};

struct ContendedLinks {
  std::vector<NetworkNodeId> places;  // device t + tp * (stage + stages * member)
  // Those on shared links, hand-overs too; bytes of each.
  std::vector<CollectiveSpec> collectives;
  std::vector<Rails> rails;  // collectives without are rings in the order of the ranks
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
  // their near or far ports; servers by their rails, and neighbours inside of them.
  enum class Shape : std::uint8_t {
    kInside,
    kSend,
    kMembers,
    kEveryone,
    kNear,
    kFar,
    kRails,
    kServers
  };
  // How many bytes each flow of an exchange carries, and what follows; -1: even the latency is too
  // long.
  struct Fit {
    std::int64_t bytes = 0;
    Ps extra = 0;
  };
  // Flows of equal bytes that start together.
  struct Ring {
    Shape shape = Shape::kInside;
    std::int64_t per_server = 1;      // of rails
    BundleId bundle = 0, probed = 0;  // on the network, and on one without anybody else
    std::vector<FlowEnds> flows;
    std::map<std::pair<std::int64_t, Ps>, Fit> fits;  // by bytes and time
    std::pair<std::int64_t, Ps> last{-1, -1};         // of the newest, which is often the next
    Fit last_fit;
  };
  using Rings = std::array<std::size_t, 2>;  // on different links; kNoRing: none
  static constexpr std::size_t kNoRing = ~std::size_t{0};
  // An operator's collective or hand-over that is on its way.
  struct Exchange {
    StepNode node;
    std::int32_t left = 0;      // rings
    std::array<Ps, 2> extra{};  // after the last flow of each
    Ps begin = 0, alone = 0;
    Ps at = 0;  // when it ends, as far as is known
  };
  // Flows alone on the links.
  struct Alone final : TransferOwner {
    Ps last = 0;
    void landed(TransferId, std::uint64_t, Ps now) override { last = now; }
  };

  NetworkNodeId device(std::int32_t member, std::int32_t stage, std::int32_t rank) const {
    return links_.places[at(rank + tp_ * (stage + stages_ * member))];
  }
  void add_rings(const CollectiveSpec& spec);
  Rings rings_on(const Rails& rails);
  std::size_t ring(Shape shape, const CollectiveSpec& spec, std::int32_t member);
  std::size_t add_ring(Shape shape, std::vector<FlowEnds> flows);
  std::vector<FlowEnds> flows_of(Shape shape, std::int32_t stage, std::int32_t member,
                                 std::int32_t per_node) const;
  std::int64_t bytes_on(const Ring& ring, const CollectiveSpec& spec, std::int64_t units);
  std::int32_t ranks_of(const CollectiveSpec& spec) const;
  std::int64_t bytes_of(const CollectiveSpec& spec, std::int64_t units, std::int32_t ranks);
  const astra_sim::model::Schedule& schedule_of(const CollectiveSpec& spec, std::int32_t ranks);
  Ps alone(const Ring& ring, std::int64_t bytes);
  Fit fit(Ring& ring, std::int64_t bytes, Ps ps);
  Fit find_fit(const Ring& ring, std::int64_t bytes, Ps ps);
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;

  const Program& program_;
  std::int32_t members_, stages_, tp_;
  ContendedLinks links_;
  SharedNetwork& network_;
  Done done_;
  std::vector<const CollectiveSpec*> specs_;  // by operator
  std::vector<Ring> rings_;
  // By shape, stage, member and members of a node.
  std::map<std::tuple<Shape, std::int32_t, std::int32_t, std::int32_t>, std::size_t> ring_of_;
  std::vector<std::vector<Rings>> rings_of_;  // by operator and member
  std::vector<Exchange> exchanges_;
  std::vector<std::size_t> free_exchanges_;
  // By operator and ranks, of algorithms other than the ring.
  std::map<std::pair<std::int32_t, std::int32_t>, std::shared_ptr<const astra_sim::model::Schedule>>
      schedules_;
  std::vector<NetworkLinkId> crossed_;    // scratch
  std::unique_ptr<SharedNetwork> probe_;  // a network without anybody else, made when first needed
  Ps probed_ = 0;
};

}  // namespace llmsim
