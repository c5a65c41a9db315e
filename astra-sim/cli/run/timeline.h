// A run as a timeline for Perfetto (ui.perfetto.dev) or chrome://tracing: the JSON trace event
// format.
#pragma once

#include <string>

#include "cli/run/report.h"

namespace astra_sim::cli {

// One process per NPU, one track per kind of work, and more where nodes of a kind overlap. Names
// come from the traces PREFIX.<npu>.et. Throws model::InputError where a file cannot be written or
// read.
void write_timeline(const std::string& path, const Report& report, const std::string& prefix);

}  // namespace astra_sim::cli
