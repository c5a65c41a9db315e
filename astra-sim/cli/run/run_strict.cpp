#include <algorithm>
#include <utility>

#include "cli/run/runs.h"
#include "model/base/input_error.h"
#include "strict/loop/simulation.h"

namespace astra_sim::cli {

namespace {

// A list that is not as long as the network has dimensions is taken as upstream takes it:
// collectives go where it reaches.
void note_lengths(const Files& files, std::vector<std::string>& notes) {
  const std::size_t dimensions = files.network.dimensions.size();
  for (std::size_t kind = 0; kind < config::kCollectives; ++kind) {
    const auto& given = files.system.algorithms[kind];
    if (given.empty() || given[0].flat || given.size() == dimensions) continue;
    notes.push_back(files.system.path + ": " + config::kCollectiveKeys[kind] +
                    "-implementation names " + std::to_string(given.size()) + " algorithm(s) for " +
                    std::to_string(dimensions) + " dimension(s): " +
                    (given.size() < dimensions ? "only the first take part, as upstream"
                                               : "the rest is ignored"));
  }
}

// Upstream's double tree carries out an all-reduce whatever it is asked for.
void note_trees(const Files& files, std::vector<std::string>& notes) {
  const auto is_tree = [](const config::AlgorithmChoice& choice) {
    return choice.algorithm == config::Algorithm::kDoubleBinaryTree;
  };
  for (std::size_t kind = 0; kind < config::kCollectives; ++kind) {
    const auto& given = files.system.algorithms[kind];
    const bool trees = std::any_of(given.begin(), given.end(), is_tree);
    const bool reduces = static_cast<config::Collective>(kind) == config::Collective::kAllReduce;
    if (!trees || (reduces && !(files.system.local_bandwidth_aware && given.size() > 1))) continue;
    notes.push_back(files.system.path + ": doubleBinaryTree of " + config::kCollectiveKeys[kind] +
                    "-implementation carries out all-reduces of whole chunks in every phase, as "
                    "upstream");
  }
}

}  // namespace

Report run_strict(const CommandLine& line, const Files& files, std::vector<std::string>& notes) {
  if (!files.memory.tiers.empty()) {
    throw model::InputError(files.memory.path + ": tiers are ours and need --rules default");
  }
  note_lengths(files, notes);
  note_trees(files, notes);
  strict::Options options;
  options.workload = line.workload;
  options.aware = line.backend == "congestion-aware";
  options.rendezvous = line.rendezvous;
  options.queues_per_dimension = line.queues_per_dimension;
  options.injection_scale = line.injection_scale;
  strict::Outcome outcome =
      strict::simulate(options, {files.system, files.network, files.memory, files.groups});
  Report report;
  report.rules = "strict";
  report.first = std::move(outcome.trace.first);
  report.nodes.reserve(outcome.trace.nodes.size());
  for (const strict::TraceNode& node : outcome.trace.nodes) {
    report.nodes.push_back({node.id, node.type, node.on_cpu, node.bytes, node.operations,
                            node.issued_ns, node.done_ns});
  }
  report.finish = std::move(outcome.finish_ns);
  report.unfinished = std::move(outcome.unfinished);
  report.unfinished_nodes = outcome.unfinished_nodes;
  report.events = outcome.events;
  report.journal = std::move(outcome.journal);
  return report;
}

}  // namespace astra_sim::cli
