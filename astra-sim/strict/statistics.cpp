#include "strict/statistics.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace astra_sim::strict {

namespace {

using Span = std::pair<Ns, Ns>;

// Sorted, disjoint spans that cover the same instants.
std::vector<Span> united(std::vector<Span> spans) {
    std::sort(spans.begin(), spans.end());
    std::vector<Span> merged;
    for (const Span& span : spans) {
        if (!merged.empty() && span.first <= merged.back().second) {
            merged.back().second = std::max(merged.back().second, span.second);
        } else {
            merged.push_back(span);
        }
    }
    return merged;
}

Ns total(const std::vector<Span>& spans) {
    Ns sum = 0;
    for (const Span& span : spans) sum += span.second - span.first;
    return sum;
}

Ns common(const std::vector<Span>& a, const std::vector<Span>& b) {
    Ns sum = 0;
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        sum += std::max<Ns>(0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
        (a[i].second < b[j].second ? i : j) += 1;
    }
    return sum;
}

// Sums weighted by time; divided by it at the end.
struct RooflineSums {
    double time = 0;
    RooflineAverages weighted;

    void add(const TraceNode& node, double peak, double bandwidth) {
        const auto span = static_cast<double>(node.done_ns - node.issued_ns);
        if (span <= 0 || node.bytes == 0) return;
        const double intensity = static_cast<double>(node.operations) / static_cast<double>(node.bytes);
        const double rate = std::min(bandwidth * intensity, peak);
        time += span;
        weighted.compute_bound += bandwidth * intensity > peak ? span : 0;
        weighted.compute_utilisation += span * rate / peak;
        weighted.memory_utilisation += intensity == 0 ? 0 : span * rate / intensity / bandwidth;
        weighted.operation_intensity += span * intensity;
    }

    // Upstream divides by one nanosecond more than the sum of the times.
    RooflineAverages averages() const {
        const double sum = time + 1;
        return {weighted.compute_bound / sum, weighted.compute_utilisation / sum, weighted.memory_utilisation / sum,
                weighted.operation_intensity / sum};
    }
};

}  // namespace

Statistics statistics(const Trace& trace, std::uint32_t npu, Ns finish_ns, const config::SystemConfig& system) {
    std::vector<Span> gpu, cpu, comm, memory;
    RooflineSums roofline;
    Ns compute_sum = 0;
    for (std::uint32_t at = trace.first[npu]; at < trace.first[npu + 1]; ++at) {
        const TraceNode& node = trace.nodes[at];
        if (node.state != NodeState::done) continue;
        const Span span{node.issued_ns, node.done_ns};
        // Replayed nodes all count as compute in the exposed time, whatever their type.
        const bool counts = node.type == chakra::NodeType::comp || system.replay_only;
        if (counts && !node.on_cpu) compute_sum += span.second - span.first;
        if (node.on_cpu) {
            cpu.push_back(span);
        } else if (node.type == chakra::NodeType::comp) {
            gpu.push_back(span);
            if (system.roofline) roofline.add(node, system.peak_tflops * 1e12, system.local_memory_gb_per_s * 1e9);
        } else if (node.type >= chakra::NodeType::comm_send) {
            comm.push_back(span);
        } else if (node.type == chakra::NodeType::mem_load || node.type == chakra::NodeType::mem_store) {
            memory.push_back(span);
        }
    }
    Statistics result;
    result.computes = !gpu.empty();
    result.uses_cpu = !cpu.empty();
    result.communicates = !comm.empty();
    result.uses_memory = !memory.empty();
    gpu = united(std::move(gpu));
    comm = united(std::move(comm));
    result.wall_ns = finish_ns;
    result.gpu_ns = total(gpu);
    result.cpu_ns = total(united(std::move(cpu)));
    result.comm_ns = total(comm);
    result.remote_memory_ns = total(united(std::move(memory)));
    result.overlap_ns = common(gpu, comm);
    result.exposed_comm_ns = finish_ns < 0 ? 0 : finish_ns - compute_sum;
    if (system.roofline && result.computes) result.roofline = roofline.averages();
    return result;
}

}  // namespace astra_sim::strict
