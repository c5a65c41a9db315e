// Routes over an explicit list of links: shortest paths with equal-cost choices, and given routes.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/base/types.h"

namespace astra_sim::model {

// One direction of a full-duplex link.
struct Link {
  VertexId from;
  VertexId to;
  BytesPerSecond bandwidth_bytes_per_s;
  Ps latency_ps;
};

// For every vertex and destination the set of links that begin a shortest path (in links), and one
// choice out of it: by a hash of (source, destination, vertex), or by destination / divisor modulo
// the size of the set where the vertex has a divisor (then a fat tree spreads a uniform all-to-all
// evenly). Equal inputs give equal routes on any machine.
class Routes {
 public:
  Routes() = default;
  // `divisors` has one entry per vertex, 0: hash. Devices (vertices below num_devices) pass
  // messages of others on only when `devices_relay`. Throws InvalidTopology when there are too many
  // vertices.
  Routes(std::uint32_t num_devices, std::uint32_t num_vertices, std::span<const Link> links,
         bool devices_relay, std::vector<std::uint32_t> divisors);

  // Replaces the route of one ordered pair. Throws InvalidTopology unless the links lead from
  // `from` to `to` without visiting a vertex twice.
  void set(std::span<const Link> links, DeviceId from, DeviceId to, std::vector<LinkId> route);

  // Needs at != to, and `at` on the route of (from, to).
  LinkId next_link(VertexId at, DeviceId from, DeviceId to) const {
    if (!given_.empty()) {
      const LinkId link = next_given(at, from, to);
      if (link != kNone) return link;
    }
    const Choice& choice =
        choices_[first_choice_[at] + choice_of_[static_cast<std::size_t>(at) * devices_ + to]];
    if (choice.count == 1) return members_[choice.first];
    const std::uint32_t divisor = divisors_[at];
    const std::uint64_t mixed = divisor != 0 ? to / divisor : mix(at, from, to);
    return members_[choice.first + mixed % choice.count];
  }
  // False when no route, given or found, leads from `at` to `to` for messages of `from`.
  bool reaches(VertexId at, DeviceId from, DeviceId to) const {
    if (at == to || (!given_.empty() && next_given(at, from, to) != kNone)) return true;
    return choices_[first_choice_[at] + choice_of_[static_cast<std::size_t>(at) * devices_ + to]]
               .count > 0;
  }

 private:
  struct Choice {
    std::uint32_t first;
    std::uint32_t count;
  };
  static std::uint64_t mix(VertexId at, DeviceId from, DeviceId to);
  LinkId next_given(VertexId at, DeviceId from, DeviceId to) const;

  std::uint32_t devices_ = 0;
  std::vector<std::uint16_t> choice_of_;  // by vertex * devices + destination; local to the vertex
  std::vector<std::uint32_t> first_choice_;  // by vertex
  std::vector<Choice> choices_;
  std::vector<LinkId> members_;
  std::vector<std::uint32_t> divisors_;
  std::unordered_map<std::uint64_t, std::vector<std::pair<VertexId, LinkId>>>
      given_;  // only looked up
};

}  // namespace astra_sim::model
