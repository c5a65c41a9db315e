// Collects devices, switches and cables of an explicit network; `build` checks and seals it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/base/types.h"
#include "model/topology/topology.h"

namespace astra_sim::model {

// Devices have the numbers 0 .. num_devices - 1, switches those after them in the order of
// add_switch. Devices pass on messages of others only when `devices_relay`.
class TopologyBuilder {
 public:
  TopologyBuilder(std::uint32_t num_devices, bool devices_relay = false)
      : num_devices_(num_devices), devices_relay_(devices_relay), divisors_(num_devices, 0) {}

  // A bisection of 0 says that the switch does not block, see Dimension. With a divisor the choice
  // among equal shortest paths is destination / divisor modulo their number; 0: a hash of (source,
  // destination).
  VertexId add_switch(BytesPerSecond bisection_bytes_per_s = 0, std::uint32_t divisor = 0);
  // A full-duplex cable: two links, numbered 2c (a to b) and 2c + 1 for the c-th cable. Returns c.
  std::uint32_t add_link(VertexId a, VertexId b, BytesPerSecond bandwidth_bytes_per_s,
                         Ps latency_ps);
  // The route of an ordered pair of devices, as the vertices from `route.front()` to
  // `route.back()`; between two vertices with several cables the first is taken.
  void add_route(std::vector<VertexId> route) { given_.push_back(std::move(route)); }

  // The links inside blocking switches follow those of the cables. Throws InvalidTopology naming
  // what is wrong: counts, ends, bandwidths, latencies, routes, or a pair of devices without a
  // route.
  std::shared_ptr<const Topology> build() const;

 private:
  struct Cable {
    VertexId a;
    VertexId b;
    BytesPerSecond bandwidth;
    Ps latency;
  };
  void check() const;
  void give_routes(std::span<const Link> links, std::span<const VertexId> exit,
                   Routes& routes) const;

  std::uint32_t num_devices_;
  bool devices_relay_;
  std::vector<BytesPerSecond> bisections_;  // by switch
  std::vector<std::uint32_t> divisors_;     // by vertex
  std::vector<Cable> cables_;
  std::vector<std::vector<VertexId>> given_;
};

}  // namespace astra_sim::model
