// Closed forms of isolated collectives, and the simulation that they are tested against.
#include "engine/isolated/isolated.h"

#include <algorithm>
#include <string>

#include "model/base/arithmetic.h"
#include "model/graph/graph_builder.h"

namespace astra_sim::engine {

using model::Algorithm;
using model::InvalidTopology;
using model::TopologyKind;

void check_site(const CollectiveSite& site) {
  std::vector<DeviceId> members(site.group);
  std::sort(members.begin(), members.end());
  if (members.empty()) throw InvalidTopology("a collective needs a group of at least one device");
  if (members.back() >= site.topology->num_devices()) {
    throw InvalidTopology("device " + std::to_string(members.back()) +
                          " of a collective's group is not in the " + site.topology->describe());
  }
  const auto twice = std::adjacent_find(members.begin(), members.end());
  if (twice != members.end()) {
    throw InvalidTopology("device " + std::to_string(*twice) +
                          " appears twice in a collective's group");
  }
  if ((site.algorithm == Algorithm::kMeasured) != (site.table != nullptr)) {
    throw InvalidTopology(
        std::string("a ") + model::name_of(site.algorithm) +
        " collective: a table of durations is needed for measured ones, and for no other");
  }
  if (site.scheduled()) model::Schedule::check(site.plan(), site.group.size());
}

std::vector<Flow> flows_of(const CollectiveSite& site) {
  std::vector<Flow> flows;
  const std::size_t n = site.group.size();
  if (n == 1 || site.algorithm == Algorithm::kMeasured) return flows;
  for (std::size_t rank = 0; rank < n; ++rank) {
    const std::size_t reach = site.algorithm == Algorithm::kRing ? 1 : n - 1;
    for (std::size_t distance = 1; distance <= reach; ++distance) {
      flows.emplace_back(site.group[rank], site.group[(rank + distance) % n]);
    }
  }
  return flows;
}

bool flows_are_private(const Topology& topology, std::span<const Flow> flows) {
  std::vector<Flow> owner(topology.links().size(), Flow{model::kNone, model::kNone});
  std::vector<model::LinkId> route;
  for (const Flow& flow : flows) {
    route.clear();
    topology.route(flow.first, flow.second, route);
    for (const model::LinkId link : route) {
      if (owner[link].first != model::kNone && owner[link] != flow) return false;
      owner[link] = flow;
    }
  }
  return true;
}

bool is_linear(const CollectiveSite& site) {
  if (site.options.network == NetworkKind::kCongestionUnaware ||
      site.algorithm == Algorithm::kMeasured)
    return true;
  if (site.options.network == NetworkKind::kFairShare)
    return false;  // waiting messages would share the link
  return uses_are_private(*site.topology, uses_of(site));
}

std::vector<Use> uses_of(const CollectiveSite& site) {
  std::vector<Use> uses;
  std::vector<model::LinkId> route;
  const auto add = [&](model::VertexId from, model::VertexId to, model::LinkId link,
                       std::uint32_t phase) {
    const std::uint64_t flow = static_cast<std::uint64_t>(from) << 32 | to;
    if (link != model::kNone) return uses.push_back({link, flow, phase});
    route.clear();
    site.topology->route(from, to, route);
    for (const model::LinkId id : route) uses.push_back({id, flow, phase});
  };
  if (!site.scheduled()) {
    for (const Flow& flow : flows_of(site)) add(flow.first, flow.second, model::kNone, 0);
    return uses;
  }
  const auto schedule = model::Schedule::of(site.plan(), site.group);
  const auto vertex = [&](std::uint32_t end) {
    return end < site.group.size() ? site.group[end] : schedule->vertex(end);
  };
  for (const model::Message& message : schedule->messages()) {
    const std::uint32_t phase = schedule->in_pieces() ? message.phase + 1 : 0;
    add(vertex(message.from), vertex(message.to), message.link, phase);
  }
  return uses;
}

bool uses_are_private(const Topology& topology, std::span<const Use> uses) {
  std::vector<Use> owner(topology.links().size(), Use{model::kNone, 0, 0});
  for (const Use& use : uses) {
    Use& first = owner[use.link];
    if (first.link == model::kNone) {
      first = use;
    } else if (first.flow != use.flow || first.phase != use.phase) {
      return false;
    }
  }
  return true;
}

namespace {

// Ring on private routes of `hops` links each: every message waits for the one before, and nothing
// else.
std::optional<Ps> ring_step(const CollectiveSite& site, Bytes bytes) {
  const auto n = static_cast<std::int64_t>(site.group.size());
  const std::vector<Flow> flows = flows_of(site);
  const std::int64_t hops = site.topology->hops(flows[0].first, flows[0].second);
  for (const Flow& flow : flows) {
    if (site.topology->hops(flow.first, flow.second) != hops) return std::nullopt;
  }
  const model::Dimension& links = site.topology->dimensions()[0];
  const Ps serialisation =
      model::serialisation_ps(model::timing_chunk(bytes, n), links.bandwidth_bytes_per_s);
  const Ps latency = model::repeated_ps(hops, links.latency_ps);
  if (site.options.network == NetworkKind::kCongestionUnaware) {
    return latency + serialisation + site.options.endpoint_delay_ps;
  }
  if (!flows_are_private(*site.topology, flows)) return std::nullopt;
  return latency + model::repeated_ps(hops, serialisation) + site.options.endpoint_delay_ps;
}

// Direct from equal starts. On a switch, message k of a rank leaves after k serialisations and
// finds its receiver's port free, since no other message has that receiver as its k-th: the last
// arrives after n of them.
std::optional<Ps> direct_phase(const CollectiveSite& site, Bytes bytes) {
  const auto n = static_cast<std::int64_t>(site.group.size());
  const model::Dimension& links = site.topology->dimensions()[0];
  const bool aware = site.options.network == NetworkKind::kCongestionAware;
  const Ps serialisation =
      model::serialisation_ps(model::timing_chunk(bytes, n), links.bandwidth_bytes_per_s);
  const Ps delay = site.options.endpoint_delay_ps;
  switch (links.kind) {
    case TopologyKind::kFullyConnected:
      return links.latency_ps + serialisation + delay;
    case TopologyKind::kSwitched:
      return 2 * links.latency_ps + (aware ? model::repeated_ps(n, serialisation) : serialisation) +
             delay;
    case TopologyKind::kRing:
      if (aware || site.group.size() != links.num_devices) return std::nullopt;
      return model::repeated_ps(n / 2, links.latency_ps) + serialisation + delay;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Ps> closed_form(const CollectiveSite& site, Bytes bytes) {
  if (bytes < 0 || bytes > model::kMaxBytes) {
    throw model::OutOfRange("a collective of " + std::to_string(bytes) +
                            " bytes: 0 to 2^60 is possible");
  }
  if (site.algorithm == Algorithm::kMeasured) return site.table->at(bytes);
  const auto n = static_cast<std::int64_t>(site.group.size());
  if (n == 1) return 0;
  if (site.scheduled() || !site.topology->is_plain() ||
      site.options.network == NetworkKind::kFairShare)
    return std::nullopt;
  const bool ring = site.algorithm == Algorithm::kRing;
  const std::optional<Ps> part = ring ? ring_step(site, bytes) : direct_phase(site, bytes);
  if (!part) return std::nullopt;
  return model::repeated_ps(
      ring ? model::ring_steps(site.kind, n) : model::direct_phases(site.kind), *part);
}

void isolated_durations(const CollectiveSite& site, std::span<const Bytes> bytes,
                        std::span<Ps> out) {
  check_site(site);
  std::optional<IsolatedSimulation> simulation;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (const std::optional<Ps> exact = closed_form(site, bytes[i])) {
      out[i] = *exact;
    } else {
      if (!simulation) simulation.emplace(site);
      out[i] = simulation->duration(bytes[i]);
    }
  }
}

Ps isolated_duration(const CollectiveSite& site, Bytes bytes) {
  Ps out = 0;
  isolated_durations(site, {&bytes, 1}, {&out, 1});
  return out;
}

// Nodes 0 .. n-1 hold the ranks back until they start; nodes n .. 2n-1 are the collective.
IsolatedSimulation::IsolatedSimulation(const CollectiveSite& site)
    : num_ranks_(site.group.size()),
      engine_(site.topology, site.options),
      zeros_(num_ranks_, 0),
      ends_(num_ranks_) {
  check_site(site);
  model::GraphBuilder builder(site.topology->num_devices());
  const model::PlanId plan = builder.add_plan(site.plan(builder.add_group(site.group)));
  for (const DeviceId device : site.group) builder.compute(device, 0, {}, model::Stream::kNone);
  for (std::uint64_t rank = 0; rank < num_ranks_; ++rank) {
    builder.collective(site.group[rank], plan, 0, 0, {&rank, 1}, model::Stream::kNone);
  }
  graph_ = builder.build();
  amounts_.assign(2 * num_ranks_, 0);
}

void IsolatedSimulation::run(Bytes bytes, std::span<const Ps> starts_ps, std::span<Ps> ends_ps) {
  const Ps first = *std::min_element(starts_ps.begin(), starts_ps.end());
  for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
    amounts_[rank] = starts_ps[rank] - first;
    amounts_[num_ranks_ + rank] = bytes;
  }
  const Ps zero = engine_.now();
  const GraphId graph = engine_.submit(graph_, zero, amounts_);
  engine_.run();
  const std::span<const Ps> end = engine_.times(graph).end_ps;
  for (std::size_t rank = 0; rank < num_ranks_; ++rank)
    ends_ps[rank] = end[num_ranks_ + rank] - zero + first;
  engine_.release(graph);
}

Ps IsolatedSimulation::duration(Bytes bytes) {
  run(bytes, zeros_, ends_);
  return *std::max_element(ends_.begin(), ends_.end());
}

}  // namespace astra_sim::engine
