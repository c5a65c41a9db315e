#include <algorithm>
#include <numeric>
#include <utility>

#include "cli/runs.h"
#include "traces/run.h"

namespace astra_sim::cli {

namespace {

// By ascending id, as under strict rules.
void take_nodes(const traces::Outcome& outcome, Report& report) {
    const traces::Workload& workload = outcome.workload;
    report.first = workload.first;
    report.nodes.reserve(workload.nodes.size());
    std::vector<std::uint32_t> order;
    for (std::uint32_t npu = 0; npu < workload.npus(); ++npu) {
        order.resize(workload.first[npu + 1] - workload.first[npu]);
        std::iota(order.begin(), order.end(), workload.first[npu]);
        std::sort(order.begin(), order.end(),
                  [&](std::uint32_t a, std::uint32_t b) { return workload.nodes[a].id < workload.nodes[b].id; });
        for (const std::uint32_t at : order) {
            const chakra::NodeFields& node = workload.nodes[at];
            report.nodes.push_back({node.id, node.type, node.on_cpu, node.bytes, node.operations, outcome.issued_ps[at],
                                    outcome.done_ps[at]});
        }
    }
}

engine::NetworkKind network_of(const std::string& backend) {
    if (backend == "congestion-aware") return engine::NetworkKind::congestion_aware;
    if (backend == "fair-share") return engine::NetworkKind::fair_share;
    return engine::NetworkKind::congestion_unaware;
}

}  // namespace

Report run_default(const CommandLine& line, const Files& files, std::vector<std::string>& notes) {
    traces::Options options;
    options.workload = line.workload;
    options.network = network_of(line.backend);
    options.rendezvous = line.rendezvous;
    options.queues_per_dimension = line.queues_per_dimension;
    options.injection_scale = line.injection_scale;
    const traces::Inputs inputs{files.system, files.network, files.memory, files.groups};
    notes = traces::notes(options, inputs);
    traces::Outcome outcome = traces::simulate(options, inputs);
    Report report;
    report.rules = "default";
    report.ticks_per_ns = 1000;
    take_nodes(outcome, report);
    report.finish = std::move(outcome.finish_ps);
    report.unfinished = std::move(outcome.unfinished);
    report.unfinished_nodes = outcome.unfinished_nodes;
    report.events = outcome.events;
    // The links of memory tiers follow those of the network.
    for (std::size_t at = 0; at < outcome.topology->links().size(); ++at) {
        const model::LinkCounters& link = outcome.links[at];
        if (link.messages == 0) continue;
        const model::Link& ends = outcome.topology->links()[at];
        report.links.push_back(
            {ends.from, ends.to, link.bytes, link.messages, link.busy_ps, link.queue_ps, link.peak_queue_ps});
    }
    return report;
}

}  // namespace astra_sim::cli
