#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "cli/handover/flow_files.h"
#include "cli/run/runs.h"
#include "formats/traces/run.h"

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
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return workload.nodes[a].id < workload.nodes[b].id;
    });
    for (const std::uint32_t at : order) {
      const chakra::NodeFields& node = workload.nodes[at];
      report.nodes.push_back({node.id, node.type, node.on_cpu, node.bytes, node.operations,
                              outcome.issued_ps[at], outcome.done_ps[at]});
    }
  }
}

engine::NetworkKind network_of(const std::string& backend) {
  if (backend == "congestion-aware") return engine::NetworkKind::kCongestionAware;
  if (backend == "fair-share") return engine::NetworkKind::kFairShare;
  return engine::NetworkKind::kCongestionUnaware;
}

void label_rates(const CommandLine& line, std::uint64_t deferred, Report& report,
                 std::vector<std::string>& notes) {
  char percent[32];
  std::snprintf(percent, sizeof percent, "%g", static_cast<double>(line.rate_quantum_ppm) / 1e4);
  report.rate_quantum = "{\"percent\": " + std::string(percent) +
                        ", \"above_messages\": " + std::to_string(line.quantum_above) +
                        ", \"deferred\": " + std::to_string(deferred) + "}";
  if (deferred == 0) return;
  notes.push_back("the times are approximate: " + std::to_string(deferred) +
                  " times, with more than " + std::to_string(line.quantum_above) +
                  " messages in motion, rates did not follow ends that left at " + "most " +
                  percent + " % of any link idle; --rate-quantum=0 is exact, and slower");
}

void tell_incast(const CommandLine& line, const traces::Outcome& outcome,
                 std::vector<std::string>& notes) {
  if (line.incast.off()) return;
  const auto links = outcome.topology->links();
  const bool switches = std::any_of(links.begin(), links.end(), [&](const model::Link& link) {
    return link.from >= outcome.topology->num_devices();
  });
  notes.push_back(!switches ? "--incast has no effect: the network has no switch"
                            : "--incast: " + std::to_string(outcome.overflows) +
                                  " messages began while their bursts exceeded a switch's buffer");
}

}  // namespace

Report run_default(const CommandLine& line, const Files& files, std::vector<std::string>& notes) {
  traces::Options options;
  options.workload = line.workload;
  options.network = network_of(line.backend);
  options.rendezvous = line.rendezvous;
  options.queues_per_dimension = line.queues_per_dimension;
  options.injection_scale = line.injection_scale;
  options.incast = line.incast;
  options.keep_messages = !line.flows.empty();
  if (line.backend.starts_with(kFlows))
    options.times = read_flow_times(line.backend.substr(std::string_view(kFlows).size()));
  options.quantum = {line.rate_quantum_ppm, line.quantum_above};
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
  report.messages = std::move(outcome.messages);
  if (options.network == engine::NetworkKind::kFairShare)
    label_rates(line, outcome.deferred_rates, report, notes);
  tell_incast(line, outcome, notes);
  // The links of memory tiers follow those of the network.
  for (std::size_t at = 0; at < outcome.topology->links().size(); ++at) {
    const model::LinkCounters& link = outcome.links[at];
    if (link.messages == 0) continue;
    const model::Link& ends = outcome.topology->links()[at];
    report.links.push_back({ends.from, ends.to, link.bytes, link.messages, link.busy_ps,
                            link.queue_ps, link.peak_queue_ps, link.peak_messages});
  }
  for (traces::TierUse& use : outcome.tiers) {
    report.tiers.push_back({std::move(use.name), use.instance, use.count.loads, use.count.stores,
                            use.bytes, use.busy_ps, use.count.waiting_ps, use.count.peak_waiting});
  }
  return report;
}

}  // namespace astra_sim::cli
