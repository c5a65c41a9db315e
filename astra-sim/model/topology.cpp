// Builds the links of regular networks and answers routing questions.
#include "model/topology.h"

#include <string>
#include <utility>

#include "model/errors.h"

namespace astra_sim::model {

namespace {

// A fully connected network has n * (n - 1) links with state and counters each: keep that below a few GB.
constexpr std::uint32_t kMaxDevices = 1U << 20;
constexpr std::uint32_t kMaxFullyConnected = 4096;

void check(const Dimension& dimension) {
  const auto complain = [](const std::string& what) { throw InvalidTopology(what); };
  const std::uint32_t limit = dimension.kind == TopologyKind::fully_connected ? kMaxFullyConnected : kMaxDevices;
  if (dimension.num_devices < 1 || dimension.num_devices > limit) {
    complain("a " + std::string(name_of(dimension.kind)) + " network of " + std::to_string(dimension.num_devices) +
             " devices is out of range: 1 to " + std::to_string(limit) + " are possible");
  }
  if (dimension.bandwidth_bytes_per_s <= 0) {
    complain("link bandwidth is " + std::to_string(dimension.bandwidth_bytes_per_s) +
             " bytes/s: it has to be at least 1");
  }
  if (dimension.latency_ps < 0 || dimension.latency_ps > kMaxSpan) {
    complain("link latency is " + std::to_string(dimension.latency_ps) + " ps: it has to be between 0 and 2^60");
  }
}

}  // namespace

const char* name_of(TopologyKind kind) {
  switch (kind) {
    case TopologyKind::ring:
      return "ring";
    case TopologyKind::switched:
      return "switch";
    case TopologyKind::fully_connected:
      return "fully connected";
  }
  return "unknown";
}

std::shared_ptr<const Topology> Topology::grid(std::span<const Dimension> dimensions) {
  if (dimensions.size() != 1) {
    throw InvalidTopology("the network has " + std::to_string(dimensions.size()) +
                          " dimensions: this version of the engine supports exactly one");
  }
  check(dimensions[0]);
  return std::shared_ptr<const Topology>(new Topology({dimensions.begin(), dimensions.end()}));
}

std::shared_ptr<const Topology> Topology::single(TopologyKind kind, std::uint32_t num_devices,
                                                 BytesPerSecond bandwidth_bytes_per_s, Ps latency_ps) {
  const Dimension dimension{kind, num_devices, bandwidth_bytes_per_s, latency_ps};
  return grid({&dimension, 1});
}

Topology::Topology(std::vector<Dimension> dimensions)
    : dimensions_(std::move(dimensions)),
      kind_(dimensions_[0].kind),
      num_devices_(dimensions_[0].num_devices),
      num_vertices_(num_devices_) {
  switch (kind_) {
    case TopologyKind::ring:
      add_ring();
      break;
    case TopologyKind::switched:
      add_switch();
      break;
    case TopologyKind::fully_connected:
      add_fully_connected();
      break;
  }
}

// Link i leads clockwise from i; link n + i anticlockwise. A ring of two has one cable, hence one link each way.
void Topology::add_ring() {
  const std::uint32_t n = num_devices_;
  const auto [bandwidth, latency] = std::pair(dimensions_[0].bandwidth_bytes_per_s, dimensions_[0].latency_ps);
  for (DeviceId i = 0; n > 1 && i < n; ++i) links_.push_back({i, (i + 1) % n, bandwidth, latency});
  for (DeviceId i = 0; n > 2 && i < n; ++i) links_.push_back({i, (i + n - 1) % n, bandwidth, latency});
}

// Link i leads up from device i, link n + i down to it; the switch is vertex n and does not block.
void Topology::add_switch() {
  const std::uint32_t n = num_devices_;
  const auto [bandwidth, latency] = std::pair(dimensions_[0].bandwidth_bytes_per_s, dimensions_[0].latency_ps);
  num_vertices_ = n + 1;
  for (DeviceId i = 0; i < n; ++i) links_.push_back({i, n, bandwidth, latency});
  for (DeviceId i = 0; i < n; ++i) links_.push_back({n, i, bandwidth, latency});
}

void Topology::add_fully_connected() {
  const std::uint32_t n = num_devices_;
  const auto [bandwidth, latency] = std::pair(dimensions_[0].bandwidth_bytes_per_s, dimensions_[0].latency_ps);
  links_.reserve(static_cast<std::size_t>(n) * (n - 1));
  for (DeviceId from = 0; from < n; ++from) {
    for (DeviceId to = 0; to < n; ++to) {
      if (from != to) links_.push_back({from, to, bandwidth, latency});
    }
  }
}

void Topology::route(DeviceId from, DeviceId to, std::vector<LinkId>& out) const {
  for (VertexId at = from; at != to;) {
    const LinkId link = next_link(at, to);
    out.push_back(link);
    at = links_[link].to;
  }
}

std::uint32_t Topology::hops(DeviceId from, DeviceId to) const {
  std::uint32_t count = 0;
  for (VertexId at = from; at != to; at = links_[next_link(at, to)].to) ++count;
  return count;
}

}  // namespace astra_sim::model
