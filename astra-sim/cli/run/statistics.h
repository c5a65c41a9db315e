// What an NPU did with its time: unions of the spans of its nodes by kind, and roofline averages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/run/report.h"
#include "formats/config/system.h"

namespace astra_sim::cli {

struct RooflineAverages {          // weighted by the time of each node
  double compute_bound = 0;        // share of the time
  double compute_utilisation = 0;  // of peak-perf
  double memory_utilisation = 0;   // of local-mem-bw
  double operation_intensity = 0;  // operations per byte
};

// Spans in the report's ticks.
struct Statistics {
  std::int64_t wall = 0;  // -1: the NPU did not finish
  std::int64_t gpu = 0;
  std::int64_t cpu = 0;
  std::int64_t comm = 0;
  std::int64_t remote_memory = 0;
  std::int64_t overlap = 0;       // compute and communication at once
  std::int64_t exposed_comm = 0;  // wall less the sum of the GPU's compute nodes
  bool computes = false, uses_cpu = false, communicates = false, uses_memory = false;
  std::optional<RooflineAverages> roofline;
};

// Upstream's name of a figure, and its value.
using Figure = std::pair<const char*, std::string>;
// Those that upstream prints of an NPU; spans in whole ns.
std::vector<Figure> figures_of(const Report& report, const Statistics& one);

Statistics statistics(const Report& report, std::uint32_t npu, const config::SystemConfig& system);

}  // namespace astra_sim::cli
