// Results as upstream's lines, as JSON, and as a table of node times.
#pragma once

#include <string>

#include "strict/simulation.h"

namespace astra_sim::cli {

std::string as_lines(const strict::Outcome& outcome, const config::SystemConfig& system);
std::string as_json(const strict::Outcome& outcome, const config::SystemConfig& system);
// npu,node,issue_ns,done_ns of the nodes that ended, by NPU and id.
std::string as_node_times(const strict::Outcome& outcome);

}  // namespace astra_sim::cli
