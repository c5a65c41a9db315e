// What upstream prints and logs of a run under strict rules, line for line but for the time stamps.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cli/run/report.h"
#include "cli/run/runs.h"

namespace astra_sim::cli {

enum class Level : std::uint8_t { kDebug, kInfo, kWarning, kCritical };

struct LogLine {
  std::string_view component;
  Level level;
  std::string text;
};

// Calls `put` with every line in upstream's order. `prefix` is that of the traces, which name the
// nodes. Throws model::InputError where they cannot be read.
void each_line(const Report& report, const Files& files, const std::string& prefix,
               const std::function<void(const LogLine&)>& put);

}  // namespace astra_sim::cli
