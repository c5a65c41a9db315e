// Why a run stopped before all nodes had ended.
#pragma once

#include <string>
#include <vector>

#include "strict/base/trace.h"

namespace astra_sim::strict {

// Number of nodes that have not ended; a sentence for each of the first 20, those that run or are
// ready first.
std::uint64_t explain_waiting(const Trace& trace, std::vector<std::string>& sentences);

}  // namespace astra_sim::strict
