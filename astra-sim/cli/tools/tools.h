// Subcommands that work on trace files.
#pragma once

#include <string>
#include <vector>

namespace astra_sim::cli {

// True where the first argument names a tool: then `exit_code` is its result. Throws
// model::InputError.
bool run_tool(const std::vector<std::string>& arguments, int& exit_code);
std::string tools_usage();

}  // namespace astra_sim::cli
