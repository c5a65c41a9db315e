// Turns cables into directed links, blocking switches into pairs of vertices, and finds the routes.
#include "model/topology/topology_builder.h"

#include <map>
#include <string>
#include <utility>

#include "model/base/errors.h"

namespace astra_sim::model {

namespace {
constexpr std::uint32_t kMaxListedDevices = 1U << 16;
constexpr std::size_t kMaxCables = std::size_t{1} << 24;
}  // namespace

VertexId TopologyBuilder::add_switch(BytesPerSecond bisection_bytes_per_s, std::uint32_t divisor) {
  bisections_.push_back(bisection_bytes_per_s);
  divisors_.push_back(divisor);
  return num_devices_ + static_cast<VertexId>(bisections_.size()) - 1;
}

std::uint32_t TopologyBuilder::add_link(VertexId a, VertexId b,
                                        BytesPerSecond bandwidth_bytes_per_s, Ps latency_ps) {
  cables_.push_back({a, b, bandwidth_bytes_per_s, latency_ps});
  return static_cast<std::uint32_t>(cables_.size() - 1);
}

void TopologyBuilder::check() const {
  if (num_devices_ < 1 || num_devices_ > kMaxListedDevices || cables_.size() > kMaxCables) {
    throw InvalidTopology(
        "an explicit network of " + std::to_string(num_devices_) + " devices and " +
        std::to_string(cables_.size()) +
        " links is out of range: 1 to 65,536 devices and 2^24 links are possible");
  }
  const std::size_t vertices = num_devices_ + bisections_.size();
  for (std::size_t i = 0; i < bisections_.size(); ++i) {
    if (bisections_[i] < 0) {
      throw InvalidTopology("switch " + std::to_string(num_devices_ + i) + " has a bisection of " +
                            std::to_string(bisections_[i]) +
                            " bytes/s: 0 (does not block) or more is possible");
    }
  }
  for (std::size_t i = 0; i < cables_.size(); ++i) {
    const Cable& cable = cables_[i];
    const std::string name = "link " + std::to_string(i) + " (" + std::to_string(cable.a) + " to " +
                             std::to_string(cable.b) + ")";
    if (cable.a >= vertices || cable.b >= vertices || cable.a == cable.b) {
      throw InvalidTopology(name + " has to join two different of the " + std::to_string(vertices) +
                            " devices and switches");
    }
    if (cable.bandwidth <= 0 || cable.latency < 0 || cable.latency > kMaxSpan) {
      throw InvalidTopology(name + " has " + std::to_string(cable.bandwidth) +
                            " bytes/s and a latency of " + std::to_string(cable.latency) +
                            " ps: at least 1 byte/s and 0 to 2^60 ps are possible");
    }
  }
}

std::shared_ptr<const Topology> TopologyBuilder::build() const {
  check();
  std::shared_ptr<Topology> topology(new Topology);
  topology->shape_ = Topology::Shape::kListed;
  topology->num_devices_ = num_devices_;
  const auto vertices = num_devices_ + static_cast<std::uint32_t>(bisections_.size());
  // A switch that blocks ends links at its own number and begins them at a vertex after all others.
  std::vector<VertexId> exit(vertices);
  std::vector<std::uint32_t> divisors(divisors_);
  for (VertexId vertex = 0; vertex < vertices; ++vertex) {
    exit[vertex] = vertex;
    if (vertex < num_devices_ || bisections_[vertex - num_devices_] == 0) continue;
    exit[vertex] = static_cast<VertexId>(divisors.size());
    divisors.push_back(divisors_[vertex]);
  }
  topology->num_vertices_ = static_cast<std::uint32_t>(divisors.size());
  std::vector<Link>& links = topology->links_;
  for (const Cable& cable : cables_) {
    links.push_back({exit[cable.a], cable.b, cable.bandwidth, cable.latency});
    links.push_back({exit[cable.b], cable.a, cable.bandwidth, cable.latency});
  }
  for (VertexId vertex = 0; vertex < vertices; ++vertex) {
    if (exit[vertex] != vertex)
      links.push_back({vertex, exit[vertex], bisections_[vertex - num_devices_], 0});
  }
  topology->routes_ =
      Routes(num_devices_, topology->num_vertices_, links, devices_relay_, std::move(divisors));
  if (!given_.empty()) give_routes(links, exit, topology->routes_);
  for (DeviceId from = 0; from < num_devices_; ++from) {
    for (DeviceId to = 0; to < num_devices_; ++to) {
      if (topology->routes_.reaches(from, from, to)) continue;
      throw InvalidTopology("no route leads from device " + std::to_string(from) + " to device " +
                            std::to_string(to) + (devices_relay_ ? "" : " (devices do not relay)"));
    }
  }
  return topology;
}

void TopologyBuilder::give_routes(std::span<const Link> links, std::span<const VertexId> exit,
                                  Routes& routes) const {
  std::map<std::pair<VertexId, VertexId>, LinkId> by_ends;  // the first of several
  for (LinkId link = 0; link < links.size(); ++link)
    by_ends.try_emplace({links[link].from, links[link].to}, link);
  for (const std::vector<VertexId>& given : given_) {
    if (given.size() < 2 || given.front() >= num_devices_ || given.back() >= num_devices_) {
      throw InvalidTopology("a given route has to lead from one device to another");
    }
    std::vector<LinkId> route;
    const auto follow = [&](VertexId from, VertexId to) {
      const auto found = by_ends.find({from, to});
      if (found == by_ends.end()) {
        throw InvalidTopology("a given route goes from " + std::to_string(from) + " to " +
                              std::to_string(to) + ", but no link joins them");
      }
      route.push_back(found->second);
    };
    for (std::size_t i = 0; i + 1 < given.size(); ++i) {
      if (given[i] >= exit.size()) {
        throw InvalidTopology("a given route visits " + std::to_string(given[i]) +
                              ", which does not exist");
      }
      if (exit[given[i]] != given[i]) follow(given[i], exit[given[i]]);
      follow(exit[given[i]], given[i + 1]);
    }
    routes.set(links, given.front(), given.back(), std::move(route));
  }
}

}  // namespace astra_sim::model
