// One node of a file into one node of a trace: the attributes that strict rules read, with their checks.
#pragma once

#include "strict/trace.h"

namespace astra_sim::strict {

// Throws model::InputError naming file, node and attribute.
TraceNode read_node(const chakra::Node& node, const std::string& path, std::uint32_t rank, const TraceRules& rules);

}  // namespace astra_sim::strict
