// The cluster's shared network: its nodes, the links between them, and all transfers over them.
//
// What moves between groups and memories at run time (KV of disaggregated prefills, KV tiers) is a
// transfer here, so that all of it contends on the same links; so are collectives between
// data-parallel ranks and sends between pipeline stages, where KV uses their links too.
// Collectives inside a stage stay on its own links (dimension 0 of the cluster file) and are priced
// by its program.
//
// Contract
//
// - Links and nodes are given once (NetworkConfig) and never change. Links are directed; a memory
//   whose reads and writes share its bandwidth uses one link for both directions.
// - `transfer` starts moving bytes at the loop's present time and returns at once; its owner hears
//   `landed` when the last byte is there. All bytes of a transfer travel one route; an owner that
//   spreads data over several devices (tensor-parallel ranks) starts one transfer for each pair.
// - Contention, kFair: every transfer moves at its max-min fair share of its links
//   (astra-sim/engine/network/fair_share.h), and lands its route's latencies after its last byte
//   has left: n equal transfers that start together on one link all take n times as long.
// - Contention, kFifo: a link serves transfers in the order of their start; the next one begins
//   when the one before has left. A route is cut through, not stored and forwarded: the last of n
//   equal transfers takes n times as long.
// - Order: transfers are numbered by their start; what lands at one time is handed out in that
//   order, before arrivals and scheduling of that time. A transfer that starts at t on links
//   without latency, without bytes, or inside a node lands at t, in the next delta.
// - Equal calls give equal times: nothing here depends on hashes, addresses or floats.
// - Nothing is lost and nothing is cancelled: an owner that has lost interest ignores what lands.
// - A bundle is a set of flows that start together with equal bytes, of which the owner hears when
//   the last one has landed. Its times are those of as many transfers.
// - Counters per link (bytes, transfers, busy time) and per purpose are exact.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "base/columns.h"
#include "base/types.h"
#include "engine/network/fair_share.h"
#include "model/topology/topology.h"
#include "network/bundles.h"

namespace llmsim {

using NetworkNodeId = std::int32_t;
using NetworkLinkId = std::uint32_t;
using TransferId = std::int64_t;  // from 0, in order of start; never reused

inline constexpr NetworkLinkId kNoLink = astra_sim::model::kNone;
inline constexpr std::int32_t kEveryIsland = -1;

enum class Sharing : std::uint8_t { kFair, kFifo };

// What a transfer is for: counted apart.
enum class Purpose : std::uint8_t {
  kKvHandover,
  kKvTier,
  kWeights,
  kExperts,
  kCollective,
  kOther,
  kM2n  // rows between attention and FFN: leaving a device, or coming to one
};
inline constexpr std::size_t kNumPurposes = 7;

// Hears of its transfers. Called by the loop while it serves the time `now`; may start further
// transfers.
class TransferOwner {
 public:
  virtual ~TransferOwner() = default;
  // `token` is what the owner gave when it started the transfer.
  virtual void landed(TransferId transfer, std::uint64_t token, Ps now) = 0;
  // All bytes of a bundle have left, the last of which will be there at `lands`, whatever happens.
  // True: the owner has heard, and `landed` is not called.
  virtual bool left(std::uint64_t /*token*/, Ps /*lands*/, Ps /*now*/) { return false; }
};

// Knows what it moves over links without the network, as long as nobody else moves there.
class LinkWatcher {
 public:
  // Somebody is about to move over these links, or to look at them: what the watcher moves there
  // has to be in the network from now on. They are not watched any more.
  virtual void met(std::span<const NetworkLinkId> links, Ps now) = 0;

 protected:
  ~LinkWatcher() = default;
};

struct NetworkLink {
  std::int64_t bytes_per_s = 0;
  Ps latency = 0;
};

// How a place sends and receives; kNoLink: it does not.
struct Port {
  NetworkLinkId out = kNoLink, in = kNoLink;
};

inline constexpr Ps kOfReader = -1;  // a latency: that of the link by which the reader is reached

// A device's memory, a host's, or a pool. Places of one island (a node) reach each other by their
// `near` ports, through a switch that does not block; others by their `far` ports (network cards).
// A pool on kEveryIsland is near to all. Devices reach places `below` them on their island by their
// `host` ports. Two places that are devices of the config's topology use its route instead.
struct NetworkNode {
  std::int32_t island = 0;
  Port near, far;
  astra_sim::model::DeviceId device = astra_sim::model::kNone;
  // Of a memory whose own link serves reads and writes: latency of the cluster's link that reads
  // cross, too. Writes pay it on the way out of the device that sends them.
  Ps near_latency = 0, far_latency = 0;
  Port host;
  Ps host_latency = 0;  // of the link that what comes from places below crosses
  bool below = false;
};

struct NetworkLinkCounters {
  std::int64_t bytes = 0, transfers = 0;  // bytes that have left; with kFifo those that will, too
  Ps busy = 0;                            // with at least one transfer in motion
};

// Every transfer of a run, in the order of their numbers.
struct TransferTable {
  std::vector<NetworkNodeId> sender, receiver;
  std::vector<std::int64_t> bytes;
  std::vector<std::int32_t> purpose;
  std::vector<Ps> start_ps, end_ps;  // when the last byte is there; -1: it is not

  static constexpr auto columns() {
    return std::tuple{
        Column{"sender", &TransferTable::sender},     Column{"receiver", &TransferTable::receiver},
        Column{"bytes", &TransferTable::bytes},       Column{"purpose", &TransferTable::purpose},
        Column{"start_ps", &TransferTable::start_ps}, Column{"end_ps", &TransferTable::end_ps},
    };
  }
};

// What links carried between two samples; links that nothing used have no row.
struct LinkSeries {
  std::vector<Ps> time_ps;  // end of the interval
  std::vector<std::int32_t> link;
  std::vector<std::int64_t> bytes;
  std::vector<Ps> busy_ps;

  static constexpr auto columns() {
    return std::tuple{
        Column{"time_ps", &LinkSeries::time_ps},
        Column{"link", &LinkSeries::link},
        Column{"bytes", &LinkSeries::bytes},
        Column{"busy_ps", &LinkSeries::busy_ps},
    };
  }
};

struct PurposeCounters {
  std::int64_t bytes = 0, transfers = 0;
};

// A flow of a bundle.
struct FlowEnds {
  NetworkNodeId from, to;
};

// A flow over a part of the way between two places, such as one's port alone; its owner charges
// latencies.
struct PartialFlow {
  FlowEnds ends;
  std::vector<NetworkLinkId> links;
};

struct NetworkConfig {
  Sharing sharing = Sharing::kFair;
  std::vector<NetworkLink> links;
  std::vector<NetworkNode> places;
  std::shared_ptr<const astra_sim::model::Topology> topology{};  // or none
  NetworkLinkId first_of_topology = 0;  // its links are links of the network, from here on
  astra_sim::engine::Incast incast{};   // of links that leave a switch of the topology; kFair

  void add_topology(std::shared_ptr<const astra_sim::model::Topology> added);
};

class SharedNetwork {
 public:
  // Throws std::invalid_argument for a link that cannot exist and for a place that names an unknown
  // one.
  explicit SharedNetwork(NetworkConfig config);

  // The links from one place to another, in order, until the next call; empty for a place and
  // itself. Throws std::invalid_argument when there is no way.
  std::span<const NetworkLinkId> route(NetworkNodeId from, NetworkNodeId to);

  // Latency of a cluster's link that the route's links do not charge; its caller starts the
  // transfer so much later.
  Ps way_out(NetworkNodeId from, NetworkNodeId to) const;

  // How long so many bytes take if nobody else moves; and the most bytes, up to `bytes`, that take
  // at most `ps`, or -1 where even the latency is longer.
  Ps alone(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes);
  const NetworkConfig& config() const { return config_; }
  std::int64_t most_within(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes, Ps ps);

  // Needs now >= every time given before. `owner` must outlive the transfer.
  TransferId transfer(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes, Ps now,
                      TransferOwner& owner, std::uint64_t token, Purpose purpose);

  // The same at a later time. Numbered by the call, so that it comes before what is started at that
  // time itself.
  TransferId transfer_at(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes, Ps at, Ps now,
                         TransferOwner& owner, std::uint64_t token, Purpose purpose);

  // Flows that may start together; before the first transfer of any bundle.
  BundleId add_bundle(std::vector<FlowEnds> flows);
  // Throws std::invalid_argument for an unknown link.
  BundleId add_bundle(const std::vector<PartialFlow>& flows);
  // Starts all flows of a bundle, of so many bytes each, as transfer_at does. Its owner hears once,
  // of the last of them.
  TransferId start_at(BundleId bundle, std::int64_t bytes, Ps at, Ps now, TransferOwner& owner,
                      std::uint64_t token, Purpose purpose);

  // Bundles that nobody meets need no transfers: each of their flows has links of its own, whose
  // slowest one is at least as fast as the bundle's rate. Not where transfers are recorded, and not
  // where links take them in turn.
  bool known_alone(std::span<const BundleId> bundles, std::span<const std::int64_t> rates) const;
  // Whether nothing moves on the bundles' links.
  bool silent(std::span<const BundleId> bundles) const;
  // From now on the watcher hears, once for each of the bundles' links, before anybody uses it.
  // False: something moves there, and it does not.
  bool watch(std::span<const BundleId> bundles, LinkWatcher& watcher, Ps now);
  // Nobody watches the bundle's links any more.
  void forget(BundleId bundle);
  // Counts what a bundle has moved `times` times without the network, alone.
  void count_alone(BundleId bundle, std::int64_t bytes, std::int64_t times, Purpose purpose);
  // Goes on with a bundle that began before now and was alone. Its owner hears when it has landed;
  // false: it has landed, and no one hears.
  bool go_on(BundleId bundle, std::int64_t bytes, Ps began, Ps now, TransferOwner& owner,
             std::uint64_t token, Purpose purpose);
  // The owner hears at that time, as of a transfer that lands.
  void call_at(Ps at, Ps now, TransferOwner& owner, std::uint64_t token);
  // All that watchers have moved by now is in the network, and counted.
  void catch_up(Ps now);

  // Somebody looks at the links then, and not before. What a watcher moves has to have ended by
  // then, or to be in the network.
  void expect_look(Ps at) { next_look_ = at; }
  void expect_end(Ps at) { end_ = at; }
  Ps next_look() const { return std::min(next_look_, end_); }

  // The end of an interval at `now`, of which nothing has happened later.
  void sample(Ps now);
  LinkSeries take_series() { return std::exchange(series_, {}); }

  // From the first transfer on, all are kept.
  void record_transfers() { recorded_ = std::make_unique<TransferTable>(); }
  // Null: they are not recorded.
  const TransferTable* recorded() const { return recorded_.get(); }

  // For the loop. `wake` is called at the first transfer of a time; the loop then calls `settle`
  // when all else of that time has happened, and `advance` at `next_event`.
  void on_start(std::function<void(Ps)> wake) { wake_ = std::move(wake); }
  void settle(Ps now);
  // When something may land or a rate may change; kEndOfTime while nothing moves. As of the last
  // settle.
  Ps next_event() const;
  // Who hears when nothing moves any more; null: nobody.
  void report_quiet_to(std::function<void(Ps)> quiet) { quiet_ = std::move(quiet); }
  // Hands out what lands at `now`; afterwards the loop settles again.
  void advance(Ps now);

  std::int64_t num_in_flight() const { return in_flight_; }
  std::size_t num_places() const { return config_.places.size(); }
  std::size_t num_links() const { return config_.links.size(); }
  NetworkLinkCounters link_counters(NetworkLinkId link, Ps now) const;
  const PurposeCounters& purpose_counters(Purpose purpose) const {
    return purposes_[static_cast<std::size_t>(purpose)];
  }

 private:
  struct Cargo {
    TransferId id = 0;
    std::uint64_t token = 0;
    TransferOwner* owner = nullptr;
    Ps latency = 0;
  };
  struct Landing {
    Ps at;
    Cargo cargo;
    bool operator>(const Landing& other) const {
      return at != other.at ? at > other.at : cargo.id > other.cargo.id;
    }
  };

  struct Departure {
    Ps at;
    Cargo cargo;
    FlowEnds ends;    // of a transfer
    BundleId bundle;  // or Bundles::kNone
    std::int64_t bytes;
    Purpose purpose;
    bool operator>(const Departure& other) const {
      return at != other.at ? at > other.at : cargo.id > other.cargo.id;
    }
  };

  // Hears of the flows of bundles, and tells the owner of the last one.
  class Gathering final : public TransferOwner {
   public:
    struct Open {
      TransferId first = 0;
      TransferOwner* owner = nullptr;
      std::uint64_t token = 0;
      std::size_t left = 0;  // landings
    };
    void landed(TransferId transfer, std::uint64_t bundle, Ps now) override;
    std::vector<Open> open;  // by bundle
  };

  BundleId add(std::vector<FlowEnds> ends, std::vector<Bundles::Flow> flows);
  TransferId enter(const Departure& departure, std::span<const FlowEnds> flows, Ps now);
  Ps latency_of(std::span<const NetworkLinkId> route) const;
  void count(Purpose purpose, std::int64_t bytes, std::int64_t flows);
  Ps time_alone(const Bundles::Flow& flow, std::int64_t bytes) const;
  void count_on_links(const Bundles::Flow& flow, std::int64_t bytes, std::int64_t times, Ps busy);
  void meet(std::span<const NetworkLinkId> route, Ps now);
  void tell_watcher(std::span<const NetworkLinkId> links, LinkWatcher& watcher, Ps now);
  void depart(const Departure& departure);
  void depart_together(const Departure& departure);
  void move(const Departure& departure, const Cargo& cargo, std::span<const NetworkLinkId> route);
  // Whether the flows of a component may start in it again.
  bool silent(std::uint32_t component) const;
  // The component of a bundle whose shares are cached; Bundles::kNone: its flows are transfers.
  std::uint32_t cached(BundleId bundle, Ps now);
  void build_bundles(Ps now);
  void leave_to_all(NetworkLinkId link, Ps now);
  void dissolve(std::uint32_t component, Ps now);
  void wake(Ps now);
  void land_at(Ps at, const Cargo& cargo) { landings_.push({at, cargo}); }
  void land(const Bundles::Landing& landing, Ps now);
  void take(astra_sim::engine::FlowId flow, const Cargo& cargo);
  Ps leave_fifo(Ps now, std::int64_t bytes, std::span<const NetworkLinkId> route);
  bool fair() const { return config_.sharing == Sharing::kFair; }

  NetworkConfig config_;
  std::vector<NetworkLinkCounters> counters_;
  std::array<PurposeCounters, kNumPurposes> purposes_{};
  std::function<void(Ps)> wake_, quiet_;
  bool unsettled_ = false;
  std::unique_ptr<TransferTable> recorded_;
  LinkSeries series_;
  std::vector<NetworkLinkCounters> sampled_;  // by link, at the last sample
  TransferId next_id_ = 0;
  std::int64_t in_flight_ = 0;
  Bundles bundles_;
  std::vector<std::vector<FlowEnds>> ends_;  // by bundle
  Gathering gathering_;
  std::vector<LinkWatcher*> watchers_;  // by link; empty: nobody watches
  Ps next_look_ = kEndOfTime, end_ = kEndOfTime;
  std::vector<Bundles::Landing> together_;               // scratch
  std::vector<NetworkLinkId> route_;                     // scratch
  std::unique_ptr<astra_sim::engine::FairShare> share_;  // kFair
  std::vector<Cargo> moving_;                            // kFair: by flow
  std::vector<Ps> free_at_;                              // kFifo: by link
  std::vector<astra_sim::engine::FlowId> ended_;         // scratch
  std::priority_queue<Landing, std::vector<Landing>, std::greater<>> landings_;
  std::priority_queue<Departure, std::vector<Departure>, std::greater<>>
      departures_;  // in the future
};

}  // namespace llmsim
