// The log of `trace-enabled`: when every node was issued and ended.
#pragma once

#include <string>
#include <vector>

#include "cli/run/report.h"

namespace astra_sim::cli {

// The name of every node of the report, from the traces with that prefix; a line break is a space.
std::vector<std::string> names_of(const Report& report, const std::string& prefix);

// Of default rules: `FOLDER/log.log` (the folder is made), in the order of time: lines `issue,` and
// `callback,`, then `npu=`, `cycle=`, `node_id=`, `name=`, which chakra_timeline_visualizer reads.
// A cycle is a nanosecond.
void write_node_log(const std::string& folder, const Report& report, const std::string& prefix);

}  // namespace astra_sim::cli
