// A stock ASTRA-sim binary as a network backend, for cross-checks: it gets plain files, and its
// lines are read.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/options.h"
#include "cli/run/runs.h"

namespace astra_sim::cli {

struct ExternalNpu {
  std::int64_t finish_ns = -1;  // -1: no line for it
  std::int64_t exposed_comm_ns = -1;
  std::vector<std::pair<std::string, std::string>> statistics;  // label, value, as printed
};

struct ExternalReport {
  std::vector<ExternalNpu> npus;
  std::uint64_t unfinished = 0;  // NPUs
};

// `binary` is what follows "external:". Writes traces and configuration into a folder of its own
// under the temporary directory and removes it. Throws model::InputError where the binary cannot
// run or fails, with its last words.
ExternalReport run_external(const std::string& binary, const CommandLine& line, const Files& files);
// Reads the lines of a run; whatever else it prints is skipped.
ExternalReport parse_lines(const std::string& text, std::uint32_t npus);

std::string as_lines(const ExternalReport& report);
std::string as_json(const ExternalReport& report);

}  // namespace astra_sim::cli
