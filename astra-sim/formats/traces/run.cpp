#include "formats/traces/run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "formats/config/topology_file.h"
#include "formats/traces/collectives/matching.h"
#include "formats/traces/collectives/recipes.h"
#include "formats/traces/costs.h"
#include "formats/traces/graph.h"
#include "formats/traces/tiers.h"
#include "model/base/input_error.h"
#include "model/topology/topology_builder.h"

namespace astra_sim::traces {

using model::InputError;
using model::Ps;

namespace {

model::BytesPerSecond speed(double gb_per_s) {
  return bytes_per_s(gb_per_s, "the network's bandwidth");
}

model::BytesPerSecond limit(double gb_per_s) { return gb_per_s == 0 ? 0 : speed(gb_per_s); }

model::Ps latency(double ns) { return to_ps(ns, 1000, "the network's latency"); }

std::shared_ptr<const model::Topology> explicit_topology(const config::TopologyFile& file) {
  model::TopologyBuilder builder(file.devices, file.devices_relay);
  for (const config::TopologySwitch& one : file.switches) {
    builder.add_switch(limit(one.bisection_gb_per_s), one.spread);
  }
  for (const config::TopologyLink& one : file.links) {
    builder.add_link(one.a, one.b, speed(one.gb_per_s), latency(one.latency_ns));
  }
  for (const std::vector<std::uint32_t>& route : file.routes) builder.add_route(route);
  return builder.build();
}

std::shared_ptr<const model::Topology> topology_of(const config::NetworkConfig& network) {
  using Shape = config::NetworkShape;
  if (network.file != nullptr && network.file->dimensions.empty()) {
    try {
      return explicit_topology(*network.file);
    } catch (const model::InvalidTopology& error) {
      throw InputError(network.file->path + ": " + error.what());
    }
  }
  std::vector<model::Dimension> dimensions;
  for (std::size_t at = 0; at < network.dimensions.size(); ++at) {
    const config::NetworkDimension& one = network.dimensions[at];
    const auto kind = one.shape == Shape::kRing       ? model::TopologyKind::kRing
                      : one.shape == Shape::kSwitched ? model::TopologyKind::kSwitched
                                                      : model::TopologyKind::kFullyConnected;
    const double bisection =
        network.file == nullptr ? 0 : network.file->dimensions[at].bisection_gb_per_s;
    dimensions.push_back({kind, one.npus, speed(network.decimal_gb_per_s(one)),
                          latency(one.latency_ns), limit(bisection)});
  }
  return model::Topology::grid(dimensions);
}

void refuse(const Options& options, const Inputs& inputs) {
  if (options.rendezvous) {
    throw InputError(
        "--rendezvous-protocol is not there under --rules default; --rules strict has it");
  }
  if (inputs.system.shared_bus) {
    throw InputError(inputs.system.path +
                     ": model-shared-bus is not supported; 0 gives fixed endpoint delays");
  }
}

void take_times(const Translation& translation, const model::NodeTimes& times, Outcome& outcome) {
  const std::size_t nodes = outcome.workload.nodes.size();
  outcome.issued_ps.assign(nodes, -1);
  outcome.done_ps.assign(nodes, -1);
  for (std::size_t node = 0; node < nodes; ++node) {
    if (translation.begin[node] == model::kNone) continue;
    outcome.issued_ps[node] = times.start_ps[translation.begin[node]];
    outcome.done_ps[node] = times.end_ps[translation.end[node]];
  }
  for (std::uint32_t npu = 0; npu < outcome.workload.npus(); ++npu) {
    Ps finish = 0;
    for (std::uint32_t node = outcome.workload.first[npu]; node < outcome.workload.first[npu + 1];
         ++node) {
      const Ps done = outcome.done_ps[node];
      finish = done < 0 || finish < 0 ? -1 : std::max(finish, done);
    }
    outcome.finish_ps.push_back(finish);
  }
}

}  // namespace

std::vector<std::string> notes(const Options& options, const Inputs& inputs) {
  std::vector<std::string> out;
  const auto without_effect = [&](const std::string& what, const std::string& why) {
    out.push_back(what + " has no effect under --rules default: " + why);
  };
  if (options.queues_per_dimension != 1) {
    without_effect("--num-queues-per-dim", "links and streams are the only queues");
  }
  if (inputs.system.active_chunks != 1) {
    without_effect("active-chunks-per-dimension",
                   "chunks pass as soon as links and dependencies let them");
  }
  if (inputs.system.scheduling == config::Scheduling::kExplicitPriority) {
    without_effect("scheduling-policy EXPLICIT", "collectives of the same NPUs run in their order");
  }
  return out;
}

Outcome simulate(const Options& options, const Inputs& inputs) {
  refuse(options, inputs);
  Outcome outcome;
  chakra::FieldRules rules;
  rules.upstream = false;
  rules.replay_only = inputs.system.replay_only;
  rules.roofline = inputs.system.roofline;
  rules.npus = inputs.network.npus();
  std::vector<std::string> tiers;
  for (const config::MemoryTier& tier : inputs.memory.tiers) tiers.push_back(tier.name);
  rules.tiers = &tiers;
  outcome.workload = load_workload(options.workload, rules);
  outcome.topology = topology_of(inputs.network);
  const config::NetworkConfig seen = inputs.network.as_seen_by_collectives();
  Recipes recipes(seen, inputs.system, inputs.groups);
  const Matching matching = match(outcome.workload, recipes, inputs.system.replay_only);
  outcome.unfinished = explain(outcome.workload, recipes, matching, outcome.unfinished_nodes);
  const auto memory = memory_of(inputs.memory, outcome.topology);
  const Translation translation = translate(outcome.workload, matching, recipes,
                                            {inputs.system, outcome.topology, memory.get()});
  engine::EngineOptions engine_options;
  engine_options.network = options.network;
  engine_options.endpoint_delay_ps =
      to_ps(static_cast<double>(inputs.system.endpoint_delay_ns) * options.injection_scale, 1000,
            "the endpoint delay");
  engine_options.quantum = options.quantum;
  engine_options.incast = options.incast;
  engine_options.memory = memory;
  engine_options.times = options.times;
  if (options.keep_messages) engine_options.sent = &outcome.messages;
  engine::Engine engine(outcome.topology, engine_options);
  const engine::GraphId graph = engine.submit(translation.graph, 0);
  engine.run();
  take_times(translation, engine.times(graph), outcome);
  outcome.events = engine.num_events();
  outcome.links = engine.link_counters();
  if (memory != nullptr) outcome.tiers = uses_of(*memory, engine);
  outcome.overflows = engine.fair_share_counters().overflows;
  outcome.deferred_rates = engine.fair_share_counters().deferred;
  return outcome;
}

}  // namespace astra_sim::traces
