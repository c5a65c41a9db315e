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

// The routes of flows where all cross links of the same speeds, one after the other.
using Speeds = std::vector<std::pair<model::BytesPerSecond, Ps>>;

std::optional<Speeds> equal_routes(const Topology& topology, std::span<const Flow> flows) {
  std::optional<Speeds> equal;
  std::vector<model::LinkId> route;
  Speeds speeds;
  for (const Flow& flow : flows) {
    route.clear();
    topology.route(flow.first, flow.second, route);
    speeds.clear();
    for (const model::LinkId id : route) {
      const model::Link& link = topology.links()[id];
      speeds.emplace_back(link.bandwidth_bytes_per_s, link.latency_ps);
    }
    if (equal && *equal != speeds) return std::nullopt;
    equal = speeds;
  }
  return equal;
}

bool each_flow_is_private(const Topology& topology, std::span<const Flow> flows) {
  std::vector<bool> used(topology.links().size(), false);
  std::vector<model::LinkId> route;
  for (const Flow& flow : flows) {
    route.clear();
    topology.route(flow.first, flow.second, route);
    for (const model::LinkId link : route) {
      if (used[link]) return false;
      used[link] = true;
    }
  }
  return true;
}

// Messages that never wait for another one on their way: all take equally long.
std::optional<ClosedForm> of_equal_messages(const Topology& topology, const EngineOptions& options,
                                            std::span<const Flow> flows) {
  const std::optional<Speeds> speeds = equal_routes(topology, flows);
  const bool waits = options.network != NetworkKind::kCongestionUnaware;
  if (!speeds || (waits && !each_flow_is_private(topology, flows))) return std::nullopt;
  ClosedForm form;
  form.fixed_ps = options.endpoint_delay_ps;
  for (const auto& [bandwidth, latency] : *speeds) {
    if (latency > model::kMaxSpan - form.fixed_ps) return std::nullopt;  // the engine refuses it
    form.fixed_ps += latency;
  }
  if (options.network == NetworkKind::kCongestionAware) {  // stores and forwards
    for (const auto& [bandwidth, latency] : *speeds) form.serialisations.emplace_back(bandwidth, 1);
  } else {
    const auto slowest = std::min_element(speeds->begin(), speeds->end());
    form.serialisations.emplace_back(slowest->first, 1);
  }
  return form;
}

// Direct from equal starts. On a switch, message k of a rank leaves after k serialisations and
// finds its receiver's port free, since no other message has that receiver as its k-th: the last
// arrives after n of them.
std::optional<ClosedForm> of_direct(const CollectiveSite& site) {
  const auto n = static_cast<std::int64_t>(site.group.size());
  if (!site.topology->is_plain() || site.options.network == NetworkKind::kFairShare)
    return std::nullopt;
  const model::Dimension& links = site.topology->dimensions()[0];
  const bool aware = site.options.network == NetworkKind::kCongestionAware;
  ClosedForm form;
  form.parts = n;
  form.repeats = model::direct_phases(site.kind);
  std::int64_t one_after_another = 1;
  std::int64_t hops = 1;
  switch (links.kind) {
    case TopologyKind::kFullyConnected:
      break;
    case TopologyKind::kSwitched:
      hops = 2;
      if (aware) one_after_another = n;
      break;
    case TopologyKind::kRing:
      if (aware || site.group.size() != links.num_devices) return std::nullopt;
      hops = n / 2;
      break;
  }
  form.serialisations.emplace_back(links.bandwidth_bytes_per_s, one_after_another);
  form.fixed_ps = model::repeated_ps(hops, links.latency_ps) + site.options.endpoint_delay_ps;
  return form;
}

void check_bytes(Bytes bytes) {
  if (bytes >= 0 && bytes <= model::kMaxBytes) return;
  throw model::OutOfRange("a collective of " + std::to_string(bytes) +
                          " bytes: 0 to 2^60 is possible");
}

}  // namespace

Ps ClosedForm::at(Bytes bytes) const {
  if (table != nullptr) return table->at(bytes);
  if (repeats == 0) return 0;
  const Bytes chunk = model::timing_chunk(bytes, parts);
  Ps part = fixed_ps;
  for (const auto& [bandwidth, times] : serialisations)
    part += model::repeated_ps(times, model::serialisation_ps(chunk, bandwidth));
  return model::repeated_ps(repeats, part);
}

std::optional<ClosedForm> ClosedForm::of_messages(const Topology& topology,
                                                  const EngineOptions& options,
                                                  std::span<const Flow> flows) {
  return of_equal_messages(topology, options, flows);
}

// Every message waits for the one before, and nothing else.
std::optional<ClosedForm> ClosedForm::of_ring(const CollectiveSite& site,
                                              std::span<const Flow> flows) {
  std::optional<ClosedForm> form = of_equal_messages(*site.topology, site.options, flows);
  if (!form) return std::nullopt;
  form->parts = static_cast<std::int64_t>(site.group.size());
  form->repeats = model::ring_steps(site.kind, form->parts);
  return form;
}

std::optional<ClosedForm> ClosedForm::of(const CollectiveSite& site) {
  ClosedForm form;
  form.table = site.table;
  if (site.algorithm == Algorithm::kMeasured) return form;
  form.repeats = 0;
  if (site.group.size() == 1) return form;
  if (site.scheduled()) return std::nullopt;
  if (site.algorithm == Algorithm::kRing) return of_ring(site, flows_of(site));
  return of_direct(site);
}

std::optional<Ps> closed_form(const CollectiveSite& site, Bytes bytes) {
  check_bytes(bytes);
  const std::optional<ClosedForm> form = ClosedForm::of(site);
  if (!form) return std::nullopt;
  return form->at(bytes);
}

void isolated_durations(const CollectiveSite& site, std::span<const Bytes> bytes,
                        std::span<Ps> out) {
  check_site(site);
  const std::optional<ClosedForm> form = ClosedForm::of(site);
  std::optional<IsolatedSimulation> simulation;
  if (!form) simulation.emplace(site);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    check_bytes(bytes[i]);
    out[i] = form ? form->at(bytes[i]) : simulation->duration(bytes[i]);
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
