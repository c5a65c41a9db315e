// Results as upstream's lines, as JSON, and as tables of node times and of links.
#pragma once

#include <string>

#include "cli/run/report.h"
#include "formats/config/system.h"

namespace astra_sim::cli {

std::string as_lines(const Report& report, const config::SystemConfig& system);
std::string as_json(const Report& report, const config::SystemConfig& system);
// npu,node,issue_ns,done_ns (or _ps) of the nodes that ended, by NPU and id.
std::string as_node_times(const Report& report);
// from,to,bytes,messages,busy_ps,queue_ps,peak_queue_ps of the links that carried something.
std::string as_link_table(const Report& report);

}  // namespace astra_sim::cli
