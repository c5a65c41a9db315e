// Files of a hand-over: a run's messages for a packet-level simulator, and the times that it found.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/network/handover.h"

namespace astra_sim::cli {

// What begins the name of a backend that takes a file of times.
inline constexpr const char* kFlows = "flows:";

// By the ending of `path`: .csv (ours: from,to,number,bytes,start_ps), .cm (a connection matrix of
// HTSim), .txt (flows of the HPCC simulator on ns-3), .goal (GOAL). Throws model::InputError for
// another ending.
void check_flow_file(const std::string& path);
std::string as_flows(const std::string& path, const std::vector<engine::SentMessage>& sent,
                     std::uint32_t npus);

// A CSV with the columns from, to, number and duration_ps (others are ignored), in any order.
// Throws model::InputError naming file and line.
std::shared_ptr<const engine::MessageTimes> read_flow_times(const std::string& path);

}  // namespace astra_sim::cli
