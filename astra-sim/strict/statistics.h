// What an NPU did with its time: unions of the spans of its nodes by kind, and roofline averages.
#pragma once

#include <cstdint>
#include <optional>

#include "config/system.h"
#include "strict/trace.h"

namespace astra_sim::strict {

struct RooflineAverages {            // weighted by the time of each node
    double compute_bound = 0;        // share of the time
    double compute_utilisation = 0;  // of peak-perf
    double memory_utilisation = 0;   // of local-mem-bw
    double operation_intensity = 0;  // operations per byte
};

struct Statistics {
    Ns wall_ns = 0;  // -1: the NPU did not finish
    Ns gpu_ns = 0;
    Ns cpu_ns = 0;
    Ns comm_ns = 0;
    Ns remote_memory_ns = 0;
    Ns overlap_ns = 0;       // compute and communication at once
    Ns exposed_comm_ns = 0;  // wall less the sum of the GPU's compute nodes
    bool computes = false, uses_cpu = false, communicates = false, uses_memory = false;
    std::optional<RooflineAverages> roofline;
};

Statistics statistics(const Trace& trace, std::uint32_t npu, Ns finish_ns, const config::SystemConfig& system);

}  // namespace astra_sim::strict
