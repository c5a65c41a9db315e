// Builds the tables of Routes: one breadth-first search per destination.
#include "model/topology/routes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "model/base/errors.h"

namespace astra_sim::model {

namespace {

constexpr std::uint32_t kFar = 0xffffffffU;
constexpr std::size_t kMaxTable = std::size_t{1} << 29;  // entries of two bytes: 1 GB

// Links by the vertex they leave from or lead to.
struct Adjacency {
  std::vector<std::uint32_t> begin;
  std::vector<LinkId> link;

  Adjacency(std::uint32_t num_vertices, std::span<const Link> links, VertexId Link::* end)
      : begin(num_vertices + 1, 0), link(links.size()) {
    for (const Link& item : links) ++begin[item.*end + 1];
    for (std::uint32_t v = 0; v < num_vertices; ++v) begin[v + 1] += begin[v];
    std::vector<std::uint32_t> fill(begin.begin(), begin.end() - 1);
    for (LinkId id = 0; id < links.size(); ++id) link[fill[links[id].*end]++] = id;
  }
  std::span<const LinkId> at(VertexId vertex) const {
    return {link.data() + begin[vertex], link.data() + begin[vertex + 1]};
  }
};

// Links from every vertex to `target`, against the direction of the links.
void search(DeviceId target, std::uint32_t num_devices, bool devices_relay,
            std::span<const Link> links, const Adjacency& into,
            std::vector<std::uint32_t>& distance, std::vector<VertexId>& queue) {
  std::fill(distance.begin(), distance.end(), kFar);
  queue.assign(1, target);
  distance[target] = 0;
  for (std::size_t next = 0; next < queue.size(); ++next) {
    const VertexId vertex = queue[next];
    if (vertex < num_devices && vertex != target && !devices_relay) continue;
    for (const LinkId id : into.at(vertex)) {
      const VertexId before = links[id].from;
      if (distance[before] != kFar) continue;
      distance[before] = distance[vertex] + 1;
      queue.push_back(before);
    }
  }
}

}  // namespace

Routes::Routes(std::uint32_t num_devices, std::uint32_t num_vertices, std::span<const Link> links,
               bool devices_relay, std::vector<std::uint32_t> divisors)
    : devices_(num_devices), divisors_(std::move(divisors)) {
  const std::size_t entries = static_cast<std::size_t>(num_vertices) * num_devices;
  if (entries > kMaxTable) {
    throw InvalidTopology(
        "a network of " + std::to_string(num_devices) + " devices and " +
        std::to_string(num_vertices - num_devices) +
        " switches needs a routing table of more than 2^29 entries: describe it as a grid");
  }
  const Adjacency out_of(num_vertices, links, &Link::from);
  const Adjacency into(num_vertices, links, &Link::to);
  choice_of_.assign(entries, 0);
  std::vector<std::vector<std::vector<LinkId>>> sets(
      num_vertices);                                 // by vertex: the sets met so far
  std::vector<std::uint32_t> last(num_vertices, 0);  // by vertex: the one met last
  std::vector<std::uint32_t> distance(num_vertices);
  std::vector<VertexId> queue;
  std::vector<LinkId> found;
  for (DeviceId target = 0; target < num_devices; ++target) {
    search(target, num_devices, devices_relay, links, into, distance, queue);
    for (VertexId vertex = 0; vertex < num_vertices; ++vertex) {
      found.clear();
      for (const LinkId id : out_of.at(vertex)) {
        const VertexId next = links[id].to;
        const bool passes = devices_relay || next >= num_devices || next == target;
        if (passes && distance[next] != kFar && distance[next] + 1 == distance[vertex])
          found.push_back(id);
      }
      std::vector<std::vector<LinkId>>& known = sets[vertex];
      std::uint32_t& index = last[vertex];
      if (index >= known.size() || known[index] != found) {
        const auto place = std::find(known.begin(), known.end(), found);
        index = static_cast<std::uint32_t>(place - known.begin());
        if (place == known.end()) known.push_back(found);
      }
      choice_of_[static_cast<std::size_t>(vertex) * num_devices + target] =
          static_cast<std::uint16_t>(index);
    }
  }
  for (const auto& known : sets) {
    if (known.size() > 0xffffU)
      throw InvalidTopology("a vertex has more than 65,535 different sets of routes");
    first_choice_.push_back(static_cast<std::uint32_t>(choices_.size()));
    for (const std::vector<LinkId>& members : known) {
      choices_.push_back({static_cast<std::uint32_t>(members_.size()),
                          static_cast<std::uint32_t>(members.size())});
      members_.insert(members_.end(), members.begin(), members.end());
    }
  }
}

std::uint64_t Routes::mix(VertexId at, DeviceId from, DeviceId to) {
  std::uint64_t z =
      (static_cast<std::uint64_t>(from) << 32 | to) + 0x9e3779b97f4a7c15ULL * (at + 1ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return (z ^ (z >> 31)) >> 16;
}

void Routes::set(std::span<const Link> links, DeviceId from, DeviceId to,
                 std::vector<LinkId> route) {
  std::vector<std::pair<VertexId, LinkId>> steps;
  VertexId at = from;
  bool sound = from != to && !route.empty();
  for (const LinkId link : route) {
    sound = sound && link < links.size() && links[link].from == at && at != to;
    if (!sound) break;
    for (const auto& [vertex, _] : steps) sound = sound && vertex != at;
    steps.emplace_back(at, link);
    at = links[link].to;
  }
  if (!sound || at != to) {
    throw InvalidTopology("the route given from device " + std::to_string(from) + " to device " +
                          std::to_string(to) +
                          " does not lead there: its links have to follow each other, and " +
                          "may not visit a place twice");
  }
  given_[static_cast<std::uint64_t>(from) << 32 | to] = std::move(steps);
}

LinkId Routes::next_given(VertexId at, DeviceId from, DeviceId to) const {
  const auto found = given_.find(static_cast<std::uint64_t>(from) << 32 | to);
  if (found == given_.end()) return kNone;
  for (const auto& [vertex, link] : found->second) {
    if (vertex == at) return link;
  }
  return kNone;
}

}  // namespace astra_sim::model
