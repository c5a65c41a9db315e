// Why a run stopped before all nodes had ended.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "strict/base/trace.h"

namespace astra_sim::strict {

// A collective of all NPUs that waits: its node, and the number of its first stream on its NPU.
using WaitingStreams = std::vector<std::pair<std::uint32_t, std::uint64_t>>;

// Number of nodes that have not ended; a sentence for each of the first 20, those that run or are
// ready first.
std::uint64_t explain_waiting(const Trace& trace, const WaitingStreams& streams,
                              std::vector<std::string>& sentences);

}  // namespace astra_sim::strict
