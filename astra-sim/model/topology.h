// Devices, switches and directed links; immutable once made, shared by engines and threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/types.h"

namespace astra_sim::model {

enum class TopologyKind : std::uint8_t { ring, switched, fully_connected };

const char* name_of(TopologyKind kind);

// One dimension of a regular network; latency is per link (a switch is two links away from itself).
struct Dimension {
  TopologyKind kind;
  std::uint32_t num_devices;
  BytesPerSecond bandwidth_bytes_per_s;
  Ps latency_ps;
};

// One direction of a full-duplex link.
struct Link {
  VertexId from;
  VertexId to;
  BytesPerSecond bandwidth_bytes_per_s;
  Ps latency_ps;
};

// Routing is a question asked hop by hop (`next_link`), so that grids of several dimensions and explicit link lists
// can join without a change to the networks. Nobody may change a Topology: the factories return it sealed.
class Topology {
 public:
  // A regular network; dimension 0 varies fastest in the device number. Throws InvalidTopology when a number is out
  // of range, or for more than one dimension (not yet supported).
  static std::shared_ptr<const Topology> grid(std::span<const Dimension> dimensions);
  static std::shared_ptr<const Topology> single(TopologyKind kind, std::uint32_t num_devices,
                                                BytesPerSecond bandwidth_bytes_per_s, Ps latency_ps);

  std::uint32_t num_devices() const { return num_devices_; }
  std::uint32_t num_vertices() const { return num_vertices_; }
  std::span<const Link> links() const { return links_; }
  std::span<const Dimension> dimensions() const { return dimensions_; }

  // The link that a message at vertex `at` takes next towards device `to`; needs at != to, both valid.
  // Ring: the shorter way, clockwise (ascending) when tied.
  LinkId next_link(VertexId at, DeviceId to) const {
    const std::uint32_t n = num_devices_;
    switch (kind_) {
      case TopologyKind::ring: {
        const std::uint32_t clockwise = to >= at ? to - at : to + n - at;
        return 2 * clockwise <= n ? at : n + at;
      }
      case TopologyKind::switched:
        return at == n ? n + to : at;
      case TopologyKind::fully_connected:
        return at * (n - 1) + (to < at ? to : to - 1);
    }
    return kNone;
  }

  // Appends the links from `from` to `to`, in order; nothing when they are equal.
  void route(DeviceId from, DeviceId to, std::vector<LinkId>& out) const;
  std::uint32_t hops(DeviceId from, DeviceId to) const;

 private:
  explicit Topology(std::vector<Dimension> dimensions);
  void add_ring();
  void add_switch();
  void add_fully_connected();

  std::vector<Dimension> dimensions_;
  TopologyKind kind_;
  std::uint32_t num_devices_;
  std::uint32_t num_vertices_;
  std::vector<Link> links_;
};

}  // namespace astra_sim::model
