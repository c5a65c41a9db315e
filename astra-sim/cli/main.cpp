// The command `astra-sim`.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "cli/handover/flow_files.h"
#include "cli/options.h"
#include "cli/run/node_log.h"
#include "cli/run/output.h"
#include "cli/run/runs.h"
#include "cli/run/timeline.h"
#include "cli/text_file.h"
#include "cli/tools/external.h"
#include "cli/tools/tensors.h"
#include "cli/tools/tools.h"
#include "cli/upstream/output.h"
#include "model/base/input_error.h"

namespace astra_sim::cli {

namespace {

constexpr int kWrongInput = 2;
constexpr int kUnfinished = 3;

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::fprintf(stderr, "note: %s\n", note.c_str());
}

void write_file(const std::string& path, const std::string& text) {
  TextFile file(path);
  file.put(text);
  file.close();
}

// Before a run, which may be long: a file that is there has to be writable, any other is made and
// taken away again. Throws InputError.
void check_output(const std::string& path) {
  if (path.empty()) return;
  if (access(path.c_str(), F_OK) == 0) {
    if (access(path.c_str(), W_OK) != 0)
      throw model::InputError("cannot write " + path + ": " + std::strerror(errno));
    return;
  }
  TextFile(path).close();
  std::remove(path.c_str());
}

Files read_files(const CommandLine& line) {
  Files files;
  files.system = config::read_system(line.system);
  files.network = config::read_network(line.network);
  if (!line.logical.empty())
    files.network.logical = config::read_logical_dimensions(line.logical, files.network.npus());
  files.memory = config::read_memory(line.memory);
  files.groups = config::read_groups(line.groups, files.network.npus());
  return files;
}

int run_elsewhere(const CommandLine& line, const Files& files) {
  const ExternalReport report =
      run_external(line.backend.substr(std::strlen(kExternal)), line, files);
  const std::string text = line.json ? as_json(report) : as_lines(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (report.unfinished == 0) return 0;
  std::fprintf(stderr, "error: %llu NPU(s) have no line that says when they finished\n",
               static_cast<unsigned long long>(report.unfinished));
  return kUnfinished;
}

// For standard output. The log is written too, as upstream does; with --json, which is ours, where
// the system file asks for it.
std::string strict_text(const CommandLine& line, const Files& files, const Report& outcome,
                        std::vector<std::string>& notes) {
  if (line.json && !files.system.trace_enabled) return as_json(outcome, files.system);
  UpstreamText text = upstream_text(outcome, files, line.workload);
  if (const auto note = write_log(line.log_folder, text.log)) notes.push_back(*note);
  return line.json ? as_json(outcome, files.system) : text.out;
}

std::string default_text(const CommandLine& line, const Files& files, const Report& outcome) {
  if (files.system.trace_enabled) write_node_log(line.log_folder, outcome, line.workload);
  return line.json ? as_json(outcome, files.system) : as_lines(outcome, files.system);
}

// Upstream reads a trace for each NPU and no others: a larger network may have been meant.
void note_spare_traces(const std::string& prefix, std::uint32_t npus) {
  const std::string spare = prefix + "." + std::to_string(npus) + ".et";
  std::error_code unknown;
  if (!std::filesystem::exists(spare, unknown)) return;
  print_notes({spare + " is not read, nor are those behind it: the network has " +
               std::to_string(npus) + " NPUs"});
}

int run(const CommandLine& line) {
  const Files files = read_files(line);
  note_spare_traces(line.workload, files.network.npus());
  for (const auto* notes :
       {&line.notes, &files.system.notes, &files.network.notes, &files.memory.notes}) {
    print_notes(*notes);
  }
  if (line.backend.starts_with(kExternal)) return run_elsewhere(line, files);
  for (const auto* path : {&line.node_times, &line.link_counters, &line.flows, &line.timeline})
    check_output(*path);
  std::vector<std::string> notes;
  Report outcome =
      line.rules == "strict" ? run_strict(line, files, notes) : run_default(line, files, notes);
  const bool strict = line.rules == "strict";
  if (files.system.track_local_memory) {
    const auto note =
        write_tensors(files.system.local_memory_trace, strict, line.workload, outcome);
    if (note) notes.push_back(*note);
  }
  const std::string text =
      strict ? strict_text(line, files, outcome, notes) : default_text(line, files, outcome);
  print_notes(notes);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (!line.node_times.empty()) write_file(line.node_times, as_node_times(outcome));
  if (!line.link_counters.empty()) write_file(line.link_counters, as_link_table(outcome));
  if (!line.flows.empty())
    write_file(line.flows, as_flows(line.flows, outcome.messages, files.network.npus()));
  if (!line.timeline.empty()) write_timeline(line.timeline, outcome, line.workload);
  if (outcome.unfinished_nodes == 0) return 0;
  std::fprintf(stderr, "error: %llu node(s) never end:\n",
               static_cast<unsigned long long>(outcome.unfinished_nodes));
  for (const std::string& sentence : outcome.unfinished)
    std::fprintf(stderr, "  %s\n", sentence.c_str());
  return kUnfinished;
}

}  // namespace

}  // namespace astra_sim::cli

int main(int argc, char** argv) {
  using namespace astra_sim;
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    int exit_code = 0;
    if (cli::run_tool(arguments, exit_code)) return exit_code;
    const cli::CommandLine line = cli::parse_command_line(arguments);
    if (line.help) {
      std::fputs((cli::usage() + cli::tools_usage()).c_str(), stdout);
      return 0;
    }
    if (line.version) {
      std::printf("astra-sim %s\n", cli::kVersion);
      return 0;
    }
    return cli::run(line);
  } catch (const std::bad_alloc&) {
    std::fputs("error: memory is not enough for this run\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  }
  return cli::kWrongInput;
}
