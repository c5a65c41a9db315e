#include "engine/isolated/concurrent.h"

#include <algorithm>
#include <map>
#include <utility>

#include "model/base/arithmetic.h"
#include "model/base/errors.h"
#include "model/graph/graph_builder.h"

namespace astra_sim::engine {

CollectiveSite Concurrent::site(std::size_t group) const {
  return {topology,
          groups[group],
          kind.value(),
          choice.algorithm,
          nullptr,
          options,
          model::shape_of(choice, topology)};
}

// One engine that runs the same graph again and again.
struct ConcurrentDurations::Simulation {
  std::shared_ptr<const ExecutionGraph> graph;
  Engine engine;
  std::vector<std::int64_t> amounts;
  std::vector<std::vector<model::NodeIndex>> nodes;  // by group: of each device, or its message

  explicit Simulation(const Concurrent& what) : engine(what.topology, what.options) {
    model::GraphBuilder builder(what.topology->num_devices());
    for (std::size_t call = 0; call < what.groups.size(); ++call) {
      const std::vector<DeviceId>& group = what.groups[call];
      std::vector<model::NodeIndex>& mine = nodes.emplace_back();
      if (!what.kind) {
        mine.push_back(builder.transfer(group[0], group[1], 1, {}));
        continue;
      }
      const CollectiveSite site = what.site(call);
      const model::PlanId plan = builder.add_plan(site.plan(builder.add_group(group)));
      for (const DeviceId device : group)
        mine.push_back(builder.collective(device, plan, static_cast<model::CallId>(call), 1, {}));
    }
    graph = builder.build();
    amounts.resize(graph->num_nodes());
  }

  // Of the graph's nodes, after the common start.
  std::vector<Ps> ends(Bytes bytes) {
    std::fill(amounts.begin(), amounts.end(), bytes);
    const Ps begin = engine.now();
    const GraphId id = engine.submit(graph, begin, amounts);
    engine.run();
    std::vector<Ps> ends;
    for (const Ps end : engine.times(id).end_ps) ends.push_back(end - begin);
    engine.release(id);
    return ends;
  }

  Ps duration(Bytes bytes) {
    const std::vector<Ps> all = ends(bytes);
    return *std::max_element(all.begin(), all.end());
  }
};

ConcurrentDurations::ConcurrentDurations(Concurrent what) : what_(std::move(what)) {
  if (what_.groups.empty()) throw model::InvalidTopology("there are no groups that do anything");
  for (std::size_t group = 0; group < what_.groups.size(); ++group) {
    if (what_.kind) {
      check_site(what_.site(group));
    } else if (what_.groups[group].size() != 2) {
      throw model::InvalidTopology("a message needs a sender and a receiver");
    }
  }
  prepare();
}

void ConcurrentDurations::prepare() {
  if (!overflows() && (close() || walk())) return;
  for (std::size_t group = 0; group < what_.groups.size(); ++group) {
    const auto ranks = static_cast<std::int64_t>(what_.groups[group].size());
    if (!what_.kind) {
      num_simulated_ += ranks;
      continue;
    }
    const CollectiveSite site = what_.site(group);
    if (site.scheduled()) {
      num_simulated_ += model::Schedule::of(site.plan(), site.group)->num_messages();
    } else if (site.algorithm == model::Algorithm::kRing) {
      num_simulated_ += ranks * model::ring_steps(site.kind, ranks);
    } else {
      num_simulated_ += ranks * (ranks - 1) * model::direct_phases(site.kind);
    }
  }
  simulation_ = std::make_shared<Simulation>(what_);
}

// Whether messages of several channels may fill the buffer of a switch's port.
bool ConcurrentDurations::overflows() const {
  if (what_.options.incast.off()) return false;
  std::vector<Use> uses;
  std::vector<model::LinkId> route;
  for (std::size_t group = 0; group < what_.groups.size(); ++group) {
    if (what_.kind) {
      const std::vector<Use> more = uses_of(what_.site(group));
      uses.insert(uses.end(), more.begin(), more.end());
      continue;
    }
    route.clear();
    what_.topology->route(what_.groups[group][0], what_.groups[group][1], route);
    for (const model::LinkId link : route) uses.push_back({link, group, 0});
  }
  return !uses_are_private(*what_.topology, uses);
}

bool ConcurrentDurations::close() {
  if (!what_.kind) {
    std::vector<Flow> flows;
    for (const std::vector<DeviceId>& group : what_.groups) flows.emplace_back(group[0], group[1]);
    closed_ = ClosedForm::of_messages(*what_.topology, what_.options, flows);
    return closed_.has_value();
  }
  if (what_.groups.size() == 1) {
    closed_ = ClosedForm::of(what_.site(0));
    return closed_.has_value();
  }
  const CollectiveSite first = what_.site(0);
  if (first.scheduled() || first.algorithm != model::Algorithm::kRing) return false;
  std::vector<Flow> flows;
  for (std::size_t group = 0; group < what_.groups.size(); ++group) {
    if (what_.groups[group].size() != first.group.size()) return false;
    const std::vector<Flow> more = flows_of(what_.site(group));
    flows.insert(flows.end(), more.begin(), more.end());
  }
  closed_ = ClosedForm::of_ring(first, flows);
  return closed_.has_value();
}

// Where no channel meets another, groups of equal routes take equal times.
bool ConcurrentDurations::walk() {
  if (!what_.kind) return false;
  const Topology& topology = *what_.topology;
  std::vector<Use> uses;
  for (std::size_t group = 0; group < what_.groups.size(); ++group) {
    const std::vector<Use> more = uses_of(what_.site(group));
    uses.insert(uses.end(), more.begin(), more.end());
  }
  const bool unaware = what_.options.network == NetworkKind::kCongestionUnaware;
  if (!unaware && !uses_are_private(topology, uses)) return false;
  std::map<std::vector<std::pair<model::BytesPerSecond, Ps>>, std::size_t> seen;
  for (std::size_t group = 0; group < what_.groups.size(); ++group) {
    const CollectiveSite site = what_.site(group);
    std::vector<std::pair<model::BytesPerSecond, Ps>> speeds;
    std::uint64_t flow = 0;
    for (const Use& use : uses_of(site)) {
      if (use.flow != flow) speeds.emplace_back(0, 0);  // a route ends, another one begins
      flow = use.flow;
      const model::Link& link = topology.links()[use.link];
      speeds.emplace_back(link.bandwidth_bytes_per_s, link.latency_ps);
    }
    if (!seen.try_emplace(std::move(speeds), group).second) continue;
    // A schedule for what the engine otherwise runs without one: the same messages.
    const auto schedule = model::Schedule::of(site.plan(), site.group);
    walks_.emplace_back(topology, what_.options.network, what_.options.endpoint_delay_ps, schedule,
                        site.group);
  }
  return true;
}

namespace {

void check_size(Bytes bytes) {
  if (bytes >= 0 && bytes <= model::kMaxBytes) return;
  throw model::OutOfRange("a collective of " + std::to_string(bytes) +
                          " bytes: 0 to 2^60 is possible");
}

}  // namespace

std::vector<std::vector<Ps>> ConcurrentDurations::ends(Bytes bytes) {
  check_size(bytes);
  if (simulation_ == nullptr) simulation_ = std::make_shared<Simulation>(what_);
  const std::vector<Ps> all = simulation_->ends(bytes);
  std::vector<std::vector<Ps>> found;
  for (std::size_t group = 0; group < what_.groups.size(); ++group) {
    const std::vector<model::NodeIndex>& nodes = simulation_->nodes[group];
    std::vector<Ps>& ends = found.emplace_back();
    for (std::size_t rank = 0; rank < what_.groups[group].size(); ++rank)
      ends.push_back(all[nodes[nodes.size() == 1 ? 0 : rank]]);
  }
  return found;
}

void ConcurrentDurations::durations(std::span<const Bytes> bytes, std::span<Ps> out) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    check_size(bytes[i]);
    if (closed_) {
      out[i] = closed_->at(bytes[i]);
    } else if (simulation_ != nullptr) {
      out[i] = simulation_->duration(bytes[i]);
    } else {
      out[i] = 0;
      for (ScheduleTimes& walk : walks_) out[i] = std::max(out[i], walk.duration(bytes[i]));
    }
  }
}

namespace {

// What one rank's share crosses on its way from rank to rank, in all groups.
struct Relay {
  Ps latency = 0;                       // of the longest
  model::BytesPerSecond bandwidth = 0;  // of the link that needs longest ...
  std::int64_t times = 1;               // ... and how often it carries the share
};

Relay relay_from(const Topology& topology, std::span<const std::vector<DeviceId>> groups,
                 std::size_t first) {
  std::map<model::LinkId, std::int64_t> crossings;
  std::vector<model::LinkId> route;
  Relay relay;
  for (const std::vector<DeviceId>& group : groups) {
    route.clear();
    for (std::size_t step = 0; step + 1 < group.size(); ++step)
      topology.route(group[(first + step) % group.size()], group[(first + step + 1) % group.size()],
                     route);
    Ps latency = 0;
    for (const model::LinkId link : route) {
      ++crossings[link];
      latency += topology.links()[link].latency_ps;
    }
    relay.latency = std::max(relay.latency, latency);
  }
  for (const auto& [link, times] : crossings) {
    const model::BytesPerSecond bandwidth = topology.links()[link].bandwidth_bytes_per_s;
    using Wide = __int128;
    const bool slower = Wide{bandwidth} * relay.times < Wide{relay.bandwidth} * times;
    if (relay.bandwidth == 0 || slower) {
      relay.bandwidth = bandwidth;
      relay.times = times;
    }
  }
  return relay;
}

}  // namespace

void broadcasts_in_turn(const Topology& topology, std::span<const std::vector<DeviceId>> groups,
                        std::span<const Bytes> bytes, std::span<Ps> out) {
  std::fill(out.begin(), out.end(), 0);
  const std::size_t ranks = groups[0].size();
  for (std::size_t first = 0; first < ranks && ranks > 1; ++first) {
    const Relay relay = relay_from(topology, groups, first);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const Bytes share = model::timing_chunk(bytes[i], static_cast<std::int64_t>(ranks));
      out[i] += model::serialisation_ps(share * relay.times, relay.bandwidth) + relay.latency;
    }
  }
}

}  // namespace astra_sim::engine
