// Network: moves messages between devices and reports arrivals; one interface, several models of
// congestion.
#pragma once

#include <memory>
#include <vector>

#include "engine/events/events.h"
#include "engine/network/fair_share.h"
#include "model/base/types.h"
#include "model/graph/results.h"
#include "model/topology/topology.h"

namespace astra_sim::engine {

using model::Bytes;
using model::DeviceId;
using model::LinkCounters;
using model::Topology;

enum class NetworkKind : std::uint8_t {
  kCongestionUnaware,  // latencies + one serialisation on the slowest link; messages never wait for
                       // each other
  kCongestionAware,    // FIFO links, store and forward of whole messages
  kFairShare,          // flows that share links max-min fairly; latencies once
};

inline constexpr std::uint64_t kNobody = ~std::uint64_t{0};
inline constexpr Ps kOnItsWay = -1;

// One message. Timing and counting differ by the padding of equal chunks (execution rules:
// model/base/arithmetic.h).
struct Parcel {
  model::VertexId from;  // device; with a link also a switch
  model::VertexId to;
  Bytes timing_bytes;
  Bytes exact_bytes;
  std::uint64_t token;                // a packed Token, handed back on arrival
  std::uint64_t sender = kNobody;     // a packed Token for Departures
  model::LinkId link = model::kNone;  // crosses this link only, from its one end to the other
  std::uint32_t via = model::kNone;   // crosses the links of this entry of the route table
};

// Routes that no topology knows: to memory tiers. Entries are only added.
using RouteTable = std::vector<std::vector<model::LinkId>>;

// Hears of messages for which `send` could not say when they leave; called while an event is
// served.
class Departures {
 public:
  virtual ~Departures() = default;
  virtual void left(std::uint64_t sender, Ps now) = 0;
};

// What a fair-share network did; `deferred` re-solves mean that its times are approximate (see
// RateQuantum).
struct FairShareCounters {
  std::uint64_t flows = 0;  // in motion now
  std::uint64_t solves = 0;
  std::uint64_t visits = 0;
  std::uint64_t deferred = 0;
  std::uint64_t overflows =
      0;  // messages whose start left more than its buffer at a switch (Incast)
};

class Network {
 public:
  virtual ~Network() = default;
  // Takes the parcel at `now` (never earlier than a previous call) and posts its arrival, later or
  // now, as an event. Returns when it has left the sender's port, or kOnItsWay: then `Departures`
  // hears of it. Needs from != to.
  virtual Ps send(Ps now, const Parcel& parcel) = 0;
  // Continues what a hop event with this token stands for.
  virtual void pass_on(Ps now, std::uint64_t token) = 0;
  // Forgets the parcels with these tokens that are in motion: where messages share links, theirs
  // leave them now and count as far as they got; elsewhere a message is sent to the end of the link
  // it was given to and goes no further. The caller takes arrivals out of the queue, and asks
  // `forget_hop` for every hop event. Returns the senders of those that left a link early.
  virtual std::vector<std::uint64_t> forget(Ps, const TokenSet&) { return {}; }
  // True: this hop event belongs to such a parcel and has to leave the queue.
  virtual bool forget_hop(std::uint64_t, const TokenSet&) { return false; }
  // Everything that happens at `now` has happened.
  virtual void settle(Ps) {}
  // One entry per link of the topology and the memory tiers, as of `now`.
  virtual std::vector<LinkCounters> counters(Ps now) const = 0;
  virtual FairShareCounters fair_share() const { return {}; }

  virtual void tell(Departures* departures) { departures_ = departures; }

 protected:
  Departures* departures_ = nullptr;
};

// Links are those of the topology, then `more`. `queue` and `routes` must outlive the network; the
// arrival of every message between devices is delayed by endpoint_delay_ps at the receiver.
std::unique_ptr<Network> make_network(NetworkKind kind, std::shared_ptr<const Topology> topology,
                                      EventQueue& queue, Ps endpoint_delay_ps, RateQuantum quantum,
                                      std::span<const model::Link> more, const RouteTable& routes,
                                      const Incast& incast = {});

}  // namespace astra_sim::engine
