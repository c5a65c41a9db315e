// Runs of both kinds of rules, told alike.
#pragma once

#include "cli/options.h"
#include "cli/run/report.h"
#include "formats/config/groups.h"
#include "formats/config/memory.h"
#include "formats/config/network.h"
#include "formats/config/system.h"

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
