#include "cli/run/statistics.h"

#include <algorithm>
#include <cstdio>

namespace astra_sim::cli {

namespace {

using Ticks = std::int64_t;
using Span = std::pair<Ticks, Ticks>;

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

Ticks total(const std::vector<Span>& spans) {
  Ticks sum = 0;
  for (const Span& span : spans) sum += span.second - span.first;
  return sum;
}

Ticks common(const std::vector<Span>& a, const std::vector<Span>& b) {
  Ticks sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum +=
        std::max<Ticks>(0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    (a[i].second < b[j].second ? i : j) += 1;
  }
  return sum;
}

// Sums weighted by time; divided by it at the end.
struct RooflineSums {
  double time = 0;
  RooflineAverages weighted;

  void add(const NodeRecord& node, double peak, double bandwidth) {
    const auto span = static_cast<double>(node.done - node.issued);
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
  RooflineAverages averages(Ticks per_ns) const {
    const double sum = time + static_cast<double>(per_ns);
    return {weighted.compute_bound / sum, weighted.compute_utilisation / sum,
            weighted.memory_utilisation / sum, weighted.operation_intensity / sum};
  }
};

std::string fixed3(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

}  // namespace

std::vector<Figure> figures_of(const Report& report, const Statistics& one) {
  std::vector<Figure> figures;
  const auto span = [&](const char* label, Ticks ticks) {
    figures.emplace_back(label, std::to_string(report.as_ns(ticks)));
  };
  if (one.wall >= 0) span("Wall time", one.wall);
  if (one.computes) span("GPU time", one.gpu);
  if (one.uses_cpu) span("CPU time", one.cpu);
  if (one.communicates) span("Comm time", one.comm);
  if (one.uses_memory) span("Remote mem time", one.remote_memory);
  if (one.overlap > 0) span("Total compute-communication overlap", one.overlap);
  if (!one.roofline) return figures;
  const RooflineAverages& mean = *one.roofline;
  figures.emplace_back("Compute bound percentage", fixed3(mean.compute_bound * 100) + "%");
  figures.emplace_back("Average compute utilization", fixed3(mean.compute_utilisation * 100) + "%");
  figures.emplace_back("Average memory utilization", fixed3(mean.memory_utilisation * 100) + "%");
  figures.emplace_back("Average operation intensity", fixed3(mean.operation_intensity));
  return figures;
}

Statistics statistics(const Report& report, std::uint32_t npu, const config::SystemConfig& system) {
  std::vector<Span> gpu, cpu, comm, memory;
  RooflineSums roofline;
  Ticks compute_sum = 0;
  for (std::uint32_t at = report.first[npu]; at < report.first[npu + 1]; ++at) {
    const NodeRecord& node = report.nodes[at];
    if (node.done < 0) continue;
    const Span span{node.issued, node.done};
    // Replayed nodes all count as compute in the exposed time, whatever their type.
    const bool counts = node.type == chakra::NodeType::kComp || system.replay_only;
    if (counts && !node.on_cpu) compute_sum += span.second - span.first;
    if (node.on_cpu) {
      cpu.push_back(span);
    } else if (node.type == chakra::NodeType::kComp) {
      gpu.push_back(span);
      if (system.roofline)
        roofline.add(node, system.peak_tflops * 1e12, system.local_memory_gb_per_s * 1e9);
    } else if (node.type >= chakra::NodeType::kCommSend) {
      comm.push_back(span);
    } else if (node.type == chakra::NodeType::kMemLoad ||
               node.type == chakra::NodeType::kMemStore) {
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
  const Ticks finish = report.finish[npu];
  result.wall = finish;
  result.gpu = total(gpu);
  result.cpu = total(united(std::move(cpu)));
  result.comm = total(comm);
  result.remote_memory = total(united(std::move(memory)));
  result.overlap = common(gpu, comm);
  result.exposed_comm = finish < 0 ? 0 : finish - compute_sum;
  if (system.roofline && result.computes) result.roofline = roofline.averages(report.ticks_per_ns);
  return result;
}

}  // namespace astra_sim::cli
