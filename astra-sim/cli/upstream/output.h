// Upstream's lines with their time stamps, for standard output and `log.log`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/upstream/lines.h"

namespace astra_sim::cli {

struct UpstreamText {
  std::string out;  // of Level::kInfo and above: standard output
  std::string log;  // all
};
// As for each_line().
UpstreamText upstream_text(const Report& report, const Files& files, const std::string& prefix);

// FOLDER/log.log; a sentence where it cannot be written: a run is more than its log.
std::optional<std::string> write_log(const std::string& folder, const std::string& text);

}  // namespace astra_sim::cli
