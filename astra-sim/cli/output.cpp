#include "cli/output.h"

#include <cstdio>

#include "config/json.h"
#include "strict/statistics.h"

namespace astra_sim::cli {

namespace {

using strict::Statistics;

std::string fixed3(double value) {
    char text[64];
    std::snprintf(text, sizeof text, "%.3f", value);
    return text;
}

// Every figure of an NPU with upstream's name; those that it does not print are left out.
template <class Put>
void each_figure(const Statistics& one, Put put) {
    if (one.wall_ns >= 0) put("Wall time", std::to_string(one.wall_ns));
    if (one.computes) put("GPU time", std::to_string(one.gpu_ns));
    if (one.uses_cpu) put("CPU time", std::to_string(one.cpu_ns));
    if (one.communicates) put("Comm time", std::to_string(one.comm_ns));
    if (one.uses_memory) put("Remote mem time", std::to_string(one.remote_memory_ns));
    if (one.overlap_ns > 0) put("Total compute-communication overlap", std::to_string(one.overlap_ns));
    if (!one.roofline) return;
    put("Compute bound percentage", fixed3(one.roofline->compute_bound * 100) + "%");
    put("Average compute utilization", fixed3(one.roofline->compute_utilisation * 100) + "%");
    put("Average memory utilization", fixed3(one.roofline->memory_utilisation * 100) + "%");
    put("Average operation intensity", fixed3(one.roofline->operation_intensity));
}

}  // namespace

std::string as_lines(const strict::Outcome& outcome, const config::SystemConfig& system) {
    std::string finished, figures;
    for (std::uint32_t npu = 0; npu < outcome.finish_ns.size(); ++npu) {
        const Statistics one = strict::statistics(outcome.trace, npu, outcome.finish_ns[npu], system);
        const std::string name = "sys[" + std::to_string(npu) + "]";
        if (one.wall_ns < 0) continue;
        finished += "[workload] [info] " + name + " finished, " + std::to_string(one.wall_ns) +
                    " cycles, exposed communication " + std::to_string(one.exposed_comm_ns) + " cycles.\n";
        each_figure(one, [&](const char* label, const std::string& value) {
            figures += "[statistics] [info] " + name + ", " + label + ": " + value + "\n";
        });
    }
    return finished + figures;
}

std::string as_json(const strict::Outcome& outcome, const config::SystemConfig& system) {
    std::string npus;
    for (std::uint32_t npu = 0; npu < outcome.finish_ns.size(); ++npu) {
        const Statistics one = strict::statistics(outcome.trace, npu, outcome.finish_ns[npu], system);
        npus += npu == 0 ? "\n" : ",\n";
        npus += "  {\"npu\": " + std::to_string(npu) + ", \"finished\": " + (one.wall_ns < 0 ? "false" : "true") +
                ", \"finish_ns\": " + (one.wall_ns < 0 ? "null" : std::to_string(one.wall_ns)) +
                ", \"exposed_comm_ns\": " + (one.wall_ns < 0 ? "null" : std::to_string(one.exposed_comm_ns)) +
                ", \"statistics\": {";
        bool first = true;
        each_figure(one, [&](const char* label, const std::string& value) {
            npus.append(first ? "\"" : ", \"").append(label).append("\": \"").append(value).append("\"");
            first = false;
        });
        npus += "}}";
    }
    std::string waiting;
    for (const std::string& sentence : outcome.unfinished) {
        waiting.append(waiting.empty() ? "" : ", ").append(config::quoted(sentence));
    }
    return "{\"rules\": \"strict\", \"time_unit\": \"ns\", \"events\": " + std::to_string(outcome.events) +
           ", \"unfinished_nodes\": " + std::to_string(outcome.unfinished_nodes) + ", \"waiting\": [" + waiting +
           "],\n \"npus\": [" + npus + "]}\n";
}

std::string as_node_times(const strict::Outcome& outcome) {
    std::string csv = "npu,node,issue_ns,done_ns\n";
    for (std::size_t npu = 0; npu + 1 < outcome.trace.first.size(); ++npu) {
        for (std::uint32_t at = outcome.trace.first[npu]; at < outcome.trace.first[npu + 1]; ++at) {
            const strict::TraceNode& node = outcome.trace.nodes[at];
            if (node.done_ns < 0) continue;
            csv += std::to_string(npu) + ',' + std::to_string(node.id) + ',' + std::to_string(node.issued_ns) + ',' +
                   std::to_string(node.done_ns) + '\n';
        }
    }
    return csv;
}

}  // namespace astra_sim::cli
