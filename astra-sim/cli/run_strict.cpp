#include <utility>

#include "cli/runs.h"
#include "strict/simulation.h"

namespace astra_sim::cli {

Report run_strict(const CommandLine& line, const Files& files) {
    strict::Options options;
    options.workload = line.workload;
    options.aware = line.backend == "congestion-aware";
    options.rendezvous = line.rendezvous;
    options.queues_per_dimension = line.queues_per_dimension;
    options.injection_scale = line.injection_scale;
    strict::Outcome outcome = strict::simulate(options, {files.system, files.network, files.memory, files.groups});
    Report report;
    report.rules = "strict";
    report.first = std::move(outcome.trace.first);
    report.nodes.reserve(outcome.trace.nodes.size());
    for (const strict::TraceNode& node : outcome.trace.nodes) {
        report.nodes.push_back(
            {node.id, node.type, node.on_cpu, node.bytes, node.operations, node.issued_ns, node.done_ns});
    }
    report.finish = std::move(outcome.finish_ns);
    report.unfinished = std::move(outcome.unfinished);
    report.unfinished_nodes = outcome.unfinished_nodes;
    report.events = outcome.events;
    return report;
}

}  // namespace astra_sim::cli
