// When a schedule of messages ends on links that no two of its channels share: a walk over its
// items in an order that its waits allow, without an event queue.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/network/network.h"
#include "model/collective/schedule.h"
#include "model/topology/topology.h"

namespace astra_sim::engine {

// Equal to a simulation of the schedule alone, all ranks starting together, where no link is used
// by two channels (`uses_are_private`), and on the congestion-unaware network always.
class ScheduleTimes {
 public:
  ScheduleTimes(const Topology& topology, NetworkKind network, Ps endpoint_delay_ps,
                std::shared_ptr<const model::Schedule> schedule,
                std::span<const model::DeviceId> group);
  // From the start until the last rank ends. Throws OutOfRange beyond the horizon.
  Ps duration(Bytes bytes);

 private:
  struct Hop {
    Ps latency;
    model::BytesPerSecond bandwidth;
    Ps free_at;
    Bytes last_bytes;  // collectives repeat sizes
    Ps last_ps;
  };
  struct Passage {
    Ps left, there;
  };
  void add_route(const Topology& topology, const model::Message& message,
                 std::span<const model::DeviceId> group);
  void order_items();
  Passage pass(std::uint32_t message, Bytes bytes, Ps now);

  NetworkKind network_;
  Ps endpoint_delay_ps_;
  std::shared_ptr<const model::Schedule> schedule_;
  std::vector<model::Message> messages_;
  std::vector<std::uint32_t> order_;      // of items: messages, and gates behind them
  std::vector<std::uint32_t> first_hop_;  // by message, into route_; one more at the end
  std::vector<std::uint32_t> route_;      // into hops_
  std::vector<Hop> hops_;                 // by link
  std::vector<Ps> released_;              // scratch, by item
};

}  // namespace astra_sim::engine
