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

struct ContendedLinks {
  std::vector<NetworkNodeId> places;  // device t + tp * (stage + stages * member)
  // Those on shared links, hand-overs too; bytes of each.
  std::vector<CollectiveSpec> collectives;
};

class CollectiveFlows final : private TransferOwner {
 public:
  // From the start of an exchange to its end, and how long it takes when nobody else moves.
  struct Took {
    Ps ps = 0, alone = 0;
  };
  // `done` hears when the flows of a node have landed and what follows them is over, at `at`.
  using Done = std::function<void(const StepNode& node, Took took, Ps at, Ps now)>;
  CollectiveFlows(const Program& program, std::int32_t members, ContendedLinks links,
                  SharedNetwork& network, Done done);

  // Whether the operator's bytes are flows.
  bool carries(std::int32_t op) const { return specs_[at(op)] != nullptr; }
  // Starts the flows of what takes `ps` alone, at `at`; of a collective between members for all of
  // them. False when it is too short for its links' latency, so that none start.
  bool start(const StepNode& node, std::int64_t units, Ps ps, Ps at, Ps now);

 private:
  // Flows of one collective or hand-over.
  struct Exchange {
    StepNode node;
    std::int32_t stage = 0, member = -1, left = 0;  // member -1: a collective of all
    bool inside = false;        // a collective of that member's, not a hand-over
    std::array<Ps, 2> extra{};  // after the last flow of each part
    Ps begin = 0, alone = 0;
    Ps at = 0;  // when it ends, as far as is known
  };
  // How many bytes each flow of an exchange carries, and what follows; -1: even the latency is too
  // long.
  struct Fit {
    std::int64_t bytes = 0;
    Ps extra = 0;
  };
  // Flows alone on the links.
  struct Alone final : TransferOwner {
    Ps last = 0;
    void landed(TransferId, std::uint64_t, Ps now) override { last = now; }
  };
  struct Flow {
    NetworkNodeId from, to;
  };
  // What flows of an exchange join: its devices as a ring, or the ranks of all members as one; rows
  // on near or far ports.
  enum class Shape : std::uint8_t { kRing, kEveryone, kNear, kFar };
  // Flows of equal bytes; parts of an exchange use different links.
  struct Part {
    Shape shape = Shape::kRing;
    std::int64_t bytes = 0;
    std::vector<Flow> flows;
  };

  NetworkNodeId device(std::int32_t member, std::int32_t stage, std::int32_t rank) const {
    return links_.places[at(rank + tp_ * (stage + stages_ * member))];
  }
  std::int64_t bytes_of(const CollectiveSpec& spec, std::int64_t units, std::int32_t ranks);
  const astra_sim::model::Schedule& schedule_of(const CollectiveSpec& spec, std::int32_t ranks);
  void flows_between(const CollectiveSpec& spec, std::int64_t units, std::int32_t stage);
  void rows_of(const CollectiveSpec& spec, std::int64_t units, std::int32_t stage);
  Part& only_part(Shape shape, std::int64_t bytes);
  bool begin(Exchange exchange, Ps ps, Ps at, Ps now);
  Ps alone(std::span<const Flow> flows, std::int64_t bytes);
  const Fit& fit(const Exchange& exchange, const Part& part, Ps ps);
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;

  const Program& program_;
  std::int32_t members_, stages_, tp_;
  ContendedLinks links_;
  SharedNetwork& network_;
  Done done_;
  std::vector<const CollectiveSpec*> specs_;  // by operator
  std::vector<Exchange> exchanges_;
  std::vector<std::size_t> free_exchanges_;
  std::array<Part, 2> parts_;  // of the exchange that is being started
  std::size_t num_parts_ = 0;
  // By operator and ranks, of algorithms other than the ring.
  std::map<std::pair<std::int32_t, std::int32_t>, std::shared_ptr<const astra_sim::model::Schedule>>
      schedules_;
  std::vector<NetworkLinkId> crossed_;    // scratch
  std::unique_ptr<SharedNetwork> probe_;  // a network without anybody else, made when first needed
  Ps probed_ = 0;
  // By stage, member, whether it is inside, shape, bytes and time.
  std::map<std::tuple<std::int32_t, std::int32_t, bool, Shape, std::int64_t, Ps>, Fit> fits_;
};

}  // namespace llmsim
