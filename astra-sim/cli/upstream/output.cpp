#include "cli/upstream/output.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "cli/text_file.h"
#include "model/base/input_error.h"

namespace astra_sim::cli {

namespace {

constexpr std::array<const char*, 4> kLevels = {"debug", "info", "warning", "critical"};

// "[2026-11-22 14:01:11.511]" in local time.
std::string stamp() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  std::tm local{};
  localtime_r(&seconds, &local);
  char day[32];
  std::strftime(day, sizeof day, "%Y-%m-%d %H:%M:%S", &local);
  char text[64];
  std::snprintf(text, sizeof text, "[%s.%03d]", day, static_cast<int>(since.count() % 1000));
  return text;
}

}  // namespace

UpstreamText upstream_text(const Report& report, const Files& files, const std::string& prefix) {
  UpstreamText text;
  const std::string when = stamp();  // the run is over: all lines are written at once
  each_line(report, files, prefix, [&](const LogLine& line) {
    std::string whole = when + " [" + std::string(line.component) + "] [" +
                        kLevels[static_cast<std::size_t>(line.level)] + "] " + line.text + "\n";
    text.log += whole;
    if (line.level != Level::kDebug) text.out += whole;
  });
  return text;
}

std::optional<std::string> write_log(const std::string& folder, const std::string& text) {
  std::error_code ignored;  // opening the file tells
  std::filesystem::create_directories(folder, ignored);
  try {
    TextFile file(folder + "/log.log");
    file.put(text);
    file.close();
  } catch (const model::InputError& error) {
    return std::string(error.what()) + "; the run has no log (--logging-folder=FOLDER)";
  }
  return std::nullopt;
}

}  // namespace astra_sim::cli
