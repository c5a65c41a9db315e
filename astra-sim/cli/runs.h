// Runs of both kinds of rules, told alike.
#pragma once

#include "cli/options.h"
#include "cli/report.h"
#include "config/groups.h"
#include "config/memory.h"
#include "config/network.h"
#include "config/system.h"

namespace astra_sim::cli {

struct Files {
    config::SystemConfig system;
    config::NetworkConfig network;
    config::MemoryConfig memory;
    config::Groups groups;
};

// Throw model::EngineError. `notes` are sentences for stderr.
Report run_strict(const CommandLine& line, const Files& files, std::vector<std::string>& notes);
Report run_default(const CommandLine& line, const Files& files, std::vector<std::string>& notes);

}  // namespace astra_sim::cli
