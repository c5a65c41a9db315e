// Builds the links of regular networks and answers routing questions.
#include "model/topology/topology.h"

#include <string>
#include <utility>

#include "model/base/errors.h"

namespace astra_sim::model {

namespace {

// A fully connected network has n * (n - 1) links with state and counters each: keep that below a
// few GB.
constexpr std::uint32_t kMaxDevices = 1U << 20;
constexpr std::uint32_t kMaxFullyConnected = 4096;
constexpr std::uint64_t kMaxLinks = std::uint64_t{1} << 26;

void check(const Dimension& dimension) {
  const auto complain = [](const std::string& what) { throw InvalidTopology(what); };
  const std::uint32_t limit =
      dimension.kind == TopologyKind::kFullyConnected ? kMaxFullyConnected : kMaxDevices;
  if (dimension.num_devices < 1 || dimension.num_devices > limit) {
    complain("a " + std::string(name_of(dimension.kind)) + " network of " +
             std::to_string(dimension.num_devices) + " devices is out of range: 1 to " +
             std::to_string(limit) + " are possible");
  }
  if (dimension.bandwidth_bytes_per_s <= 0) {
    complain("link bandwidth is " + std::to_string(dimension.bandwidth_bytes_per_s) +
             " bytes/s: it has to be at least 1");
  }
  if (dimension.latency_ps < 0 || dimension.latency_ps > kMaxSpan) {
    complain("link latency is " + std::to_string(dimension.latency_ps) +
             " ps: it has to be between 0 and 2^60");
  }
  const bool limited = dimension.bisection_bytes_per_s != 0;
  if (dimension.bisection_bytes_per_s < 0 ||
      (limited && dimension.kind != TopologyKind::kSwitched)) {
    complain("a " + std::string(name_of(dimension.kind)) + " dimension has a bisection limit of " +
             std::to_string(dimension.bisection_bytes_per_s) +
             " bytes/s: only switches can have one, and it has to be at least 1");
  }
}

}  // namespace

const char* name_of(TopologyKind kind) {
  switch (kind) {
    case TopologyKind::kRing:
      return "ring";
    case TopologyKind::kSwitched:
      return "switch";
    case TopologyKind::kFullyConnected:
      return "fully connected";
  }
  return "unknown";
}

std::shared_ptr<const Topology> Topology::grid(std::span<const Dimension> dimensions) {
  if (dimensions.empty())
    throw InvalidTopology("the network has no dimensions: it needs at least one");
  std::uint64_t devices = 1;
  std::uint64_t ports = 0;  // links per device, at most
  for (const Dimension& dimension : dimensions) {
    check(dimension);
    devices *= dimension.num_devices;
    ports += dimension.kind == TopologyKind::kFullyConnected ? dimension.num_devices : 3;
    if (devices > kMaxDevices || devices * ports > kMaxLinks) {
      throw InvalidTopology("a network of " + std::to_string(dimensions.size()) +
                            " dimensions has " + std::to_string(devices) +
                            " or more devices: at most 2^20 devices and 2^26 links are possible");
    }
  }
  std::shared_ptr<Topology> topology(new Topology);
  topology->num_devices_ = static_cast<std::uint32_t>(devices);
  topology->num_vertices_ = topology->num_devices_;
  topology->dimensions_.assign(dimensions.begin(), dimensions.end());
  if (dimensions.size() == 1 && dimensions[0].bisection_bytes_per_s == 0) {
    topology->shape_ = static_cast<Shape>(dimensions[0].kind);
  }
  std::uint32_t stride = 1;
  for (const Dimension& dimension : dimensions) {
    topology->add_axis(dimension, stride);
    stride *= dimension.num_devices;
  }
  return topology;
}

std::shared_ptr<const Topology> Topology::single(TopologyKind kind, std::uint32_t num_devices,
                                                 BytesPerSecond bandwidth_bytes_per_s,
                                                 Ps latency_ps) {
  const Dimension dimension{kind, num_devices, bandwidth_bytes_per_s, latency_ps};
  return grid({&dimension, 1});
}

std::string Topology::describe() const {
  const std::string rest = "network of " + std::to_string(num_devices_) + " devices";
  if (shape_ == Shape::kListed) return "explicit " + rest;
  if (dimensions_.size() > 1) return std::to_string(dimensions_.size()) + "-dimensional " + rest;
  return std::string(name_of(dimensions_[0].kind)) + " " + rest;
}

void Topology::add_axis(const Dimension& dimension, std::uint32_t stride) {
  const Axis axis{dimension.kind,
                  dimension.bisection_bytes_per_s != 0,
                  dimension.num_devices,
                  stride,
                  num_devices_ / dimension.num_devices,
                  num_vertices_,
                  static_cast<LinkId>(links_.size())};
  if (axis.kind == TopologyKind::kSwitched) num_vertices_ += axis.num_lines * (axis.blocks ? 2 : 1);
  add_links(axis, dimension);
  axes_.push_back(axis);
}

// In every dimension, device by device. Ring: clockwise links, then anticlockwise ones; a ring of
// two has one cable, hence one link each way. Switch: links up, links down, then those inside
// switches that block (from the vertex where links end to the one where they begin). Fully
// connected: a device's links by the other end.
void Topology::add_links(const Axis& axis, const Dimension& dimension) {
  const std::uint32_t n = axis.num_devices;
  const auto add = [&](VertexId from, VertexId to) {
    links_.push_back({from, to, dimension.bandwidth_bytes_per_s, dimension.latency_ps});
  };
  const auto neighbour = [&](DeviceId device, std::uint32_t at) {
    return axis.device(axis.line(device), at % n);
  };
  switch (axis.kind) {
    case TopologyKind::kRing:
      for (DeviceId i = 0; n > 1 && i < num_devices_; ++i)
        add(i, neighbour(i, axis.coordinate(i) + 1));
      for (DeviceId i = 0; n > 2 && i < num_devices_; ++i)
        add(i, neighbour(i, axis.coordinate(i) + n - 1));
      return;
    case TopologyKind::kSwitched: {
      const VertexId exits = axis.first_vertex + (axis.blocks ? axis.num_lines : 0);
      for (DeviceId i = 0; i < num_devices_; ++i) add(i, axis.first_vertex + axis.line(i));
      for (DeviceId i = 0; i < num_devices_; ++i) add(exits + axis.line(i), i);
      for (std::uint32_t line = 0; axis.blocks && line < axis.num_lines; ++line) {
        links_.push_back(
            {axis.first_vertex + line, exits + line, dimension.bisection_bytes_per_s, 0});
      }
      return;
    }
    case TopologyKind::kFullyConnected:
      for (DeviceId i = 0; i < num_devices_; ++i) {
        for (std::uint32_t at = 0; at < n; ++at) {
          if (at != axis.coordinate(i)) add(i, neighbour(i, at));
        }
      }
      return;
  }
}

LinkId Topology::next_in_grid(VertexId at, DeviceId to) const {
  if (at >= num_devices_) {
    std::size_t index = axes_.size() - 1;
    while (axes_[index].first_vertex > at || axes_[index].kind != TopologyKind::kSwitched) --index;
    const Axis& axis = axes_[index];
    const std::uint32_t place = at - axis.first_vertex;
    if (axis.blocks && place < axis.num_lines) return axis.first_link + 2 * num_devices_ + place;
    const std::uint32_t line = place % axis.num_lines;
    return axis.first_link + num_devices_ + axis.device(line, axis.coordinate(to));
  }
  for (const Axis& axis : axes_) {
    const std::uint32_t n = axis.num_devices;
    const std::uint32_t here = axis.coordinate(at);
    const std::uint32_t there = axis.coordinate(to);
    if (here == there) continue;
    switch (axis.kind) {
      case TopologyKind::kRing: {
        const std::uint32_t clockwise = there >= here ? there - here : there + n - here;
        return axis.first_link + (2 * clockwise <= n ? at : num_devices_ + at);
      }
      case TopologyKind::kSwitched:
        return axis.first_link + at;
      case TopologyKind::kFullyConnected:
        return axis.first_link + at * (n - 1) + (there < here ? there : there - 1);
    }
  }
  return kNone;
}

void Topology::route(DeviceId from, DeviceId to, std::vector<LinkId>& out) const {
  for (VertexId at = from; at != to;) {
    const LinkId link = next_link(at, from, to);
    out.push_back(link);
    at = links_[link].to;
  }
}

std::uint32_t Topology::hops(DeviceId from, DeviceId to) const {
  std::uint32_t count = 0;
  for (VertexId at = from; at != to; at = links_[next_link(at, from, to)].to) ++count;
  return count;
}

}  // namespace astra_sim::model
