// The log of `trace-enabled`: when every node was issued and ended.
#pragma once

#include <string>

#include "cli/run/report.h"

namespace astra_sim::cli {

// `FOLDER/log.log` (the folder is made), in the order of time: lines `issue,` and `callback,`, then
// `npu=`, `cycle=`, `node_id=`, `name=`, which chakra_timeline_visualizer reads. A cycle is a
// nanosecond. `prefix` is of the traces, for the names of their nodes.
void write_node_log(const std::string& folder, const Report& report, const std::string& prefix);

}  // namespace astra_sim::cli
