// Devices, switches and directed links; immutable once made, shared by engines and threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/base/types.h"
#include "model/topology/routes.h"

namespace astra_sim::model {

enum class TopologyKind : std::uint8_t { kRing, kSwitched, kFullyConnected };

const char* name_of(TopologyKind kind);

// One dimension of a regular network; latency is per link (a switch is two links away from itself).
// A bisection of 0 says that the dimension's switches do not block; else all that crosses one of
// them shares this bandwidth, as if it passed a link of that speed and no latency inside (only for
// `switched`).
struct Dimension {
  TopologyKind kind;
  std::uint32_t num_devices;
  BytesPerSecond bandwidth_bytes_per_s;
  Ps latency_ps;
  BytesPerSecond bisection_bytes_per_s = 0;
};

// Routing is a question asked hop by hop (`next_link`). Nobody may change a Topology: grid, single
// and TopologyBuilder return it sealed.
class Topology {
 public:
  // A regular network of one or more dimensions; dimension 0 varies fastest in the device number. A
  // message crosses every dimension in which its ends differ, dimension 0 first. Throws
  // InvalidTopology when a number is out of range.
  static std::shared_ptr<const Topology> grid(std::span<const Dimension> dimensions);
  static std::shared_ptr<const Topology> single(TopologyKind kind, std::uint32_t num_devices,
                                                BytesPerSecond bandwidth_bytes_per_s,
                                                Ps latency_ps);

  std::uint32_t num_devices() const { return num_devices_; }
  std::uint32_t num_vertices() const { return num_vertices_; }
  std::span<const Link> links() const { return links_; }
  // Empty for an explicit network.
  std::span<const Dimension> dimensions() const { return dimensions_; }
  // True for one dimension whose switches do not block: what the closed forms of collectives know.
  bool is_plain() const { return shape_ != Shape::kGrid && shape_ != Shape::kListed; }
  std::string describe() const;  // e.g. `ring network of 8 devices`

  // The link that a message from device `from` to device `to` takes at vertex `at` of its route;
  // needs at != to. Ring: the shorter way, clockwise (ascending) when tied. Explicit: see Routes.
  LinkId next_link(VertexId at, DeviceId from, DeviceId to) const {
    const std::uint32_t n = num_devices_;
    switch (shape_) {
      case Shape::kRing: {
        const std::uint32_t clockwise = to >= at ? to - at : to + n - at;
        return 2 * clockwise <= n ? at : n + at;
      }
      case Shape::kSwitched:
        return at == n ? n + to : at;
      case Shape::kFullyConnected:
        return at * (n - 1) + (to < at ? to : to - 1);
      case Shape::kGrid:
        return next_in_grid(at, to);
      case Shape::kListed:
        return routes_.next_link(at, from, to);
    }
    return kNone;
  }

  // Appends the links from `from` to `to`, in order; nothing when they are equal.
  void route(DeviceId from, DeviceId to, std::vector<LinkId>& out) const;
  std::uint32_t hops(DeviceId from, DeviceId to) const;

 private:
  friend class TopologyBuilder;
  enum class Shape : std::uint8_t { kRing, kSwitched, kFullyConnected, kGrid, kListed };
  // Where a dimension's links and switches are; a line is a set of devices that differ in this
  // dimension only.
  struct Axis {
    TopologyKind kind;
    bool blocks;
    std::uint32_t num_devices;
    std::uint32_t stride;
    std::uint32_t num_lines;
    VertexId first_vertex;
    LinkId first_link;
    std::uint32_t coordinate(DeviceId device) const { return device / stride % num_devices; }
    DeviceId device(std::uint32_t line, std::uint32_t at) const {
      return line / stride * stride * num_devices + line % stride + at * stride;
    }
    std::uint32_t line(DeviceId device) const {
      return device / (stride * num_devices) * stride + device % stride;
    }
  };
  Topology() = default;
  void add_axis(const Dimension& dimension, std::uint32_t stride);
  void add_links(const Axis& axis, const Dimension& dimension);
  LinkId next_in_grid(VertexId at, DeviceId to) const;

  Shape shape_ = Shape::kGrid;
  std::uint32_t num_devices_ = 0;
  std::uint32_t num_vertices_ = 0;
  std::vector<Dimension> dimensions_;
  std::vector<Axis> axes_;
  std::vector<Link> links_;
  Routes routes_;
};

}  // namespace astra_sim::model
