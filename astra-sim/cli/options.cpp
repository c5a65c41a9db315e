#include "cli/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "cli/handover/flow_files.h"
#include "formats/text/nearest.h"
#include "model/base/input_error.h"

namespace astra_sim::cli {

namespace {

using model::InputError;

constexpr std::array<std::string_view, 24> kOptions = {"workload-configuration",
                                                       "system-configuration",
                                                       "network-configuration",
                                                       "remote-memory-configuration",
                                                       "comm-group-configuration",
                                                       "logical-topology-configuration",
                                                       "logging-configuration",
                                                       "logging-folder",
                                                       "num-queues-per-dim",
                                                       "injection-scale",
                                                       "comm-scale",
                                                       "compute-scale",
                                                       "rendezvous-protocol",
                                                       "network-backend",
                                                       "rules",
                                                       "rate-quantum",
                                                       "incast",
                                                       "node-times",
                                                       "link-counters",
                                                       "flows",
                                                       "timeline",
                                                       "json",
                                                       "help",
                                                       "version"};

[[noreturn]] void wrong(const std::string& name, const std::string& value,
                        const std::string& expected) {
  throw InputError("--" + name + " is \"" + value + "\"; " + expected + " was expected");
}

bool truth(const std::string& name, const std::string& value) {
  if (value == "true" || value == "1" || value.empty()) return true;
  if (value == "false" || value == "0") return false;
  wrong(name, value, "true or false");
}

double real(const std::string& name, const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || !std::isfinite(number) || number < 0)
    wrong(name, value, "a number of 0 or more");
  return number;
}

unsigned count(const std::string& name, const std::string& value) {
  unsigned number = 0;
  const char* end = value.data() + value.size();
  const auto result = std::from_chars(value.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end || number < 1 || number > 4096)
    wrong(name, value, "1 to 4096");
  return number;
}

// PERCENT, or PERCENT:MESSAGES.
void rate_quantum(CommandLine& line, const std::string& name, const std::string& value) {
  const char* expected =
      "percent of a link from 0 (exact) to 100, and perhaps :MESSAGES above which it holds,";
  const std::size_t colon = std::min(value.find(':'), value.size());
  char* end = nullptr;
  const std::string percent = value.substr(0, colon);
  const double number = std::strtod(percent.c_str(), &end);
  if (percent.empty() || *end != '\0' || !(number >= 0 && number <= 100))
    wrong(name, value, expected);
  line.rate_quantum_ppm = static_cast<std::int64_t>(std::floor(number * 1e4 + 0.5));
  line.rate_quantum_given = true;
  if (colon == value.size()) return;
  const char* last = value.data() + value.size();
  const auto result = std::from_chars(value.data() + colon + 1, last, line.quantum_above);
  if (result.ec != std::errc() || result.ptr != last) wrong(name, value, expected);
}

// BUFFER:BURST:PERCENT.
void incast(CommandLine& line, const std::string& name, const std::string& value) {
  const char* expected =
      "BUFFER:BURST:PERCENT, bytes of a switch's buffer for a port, bytes of a sender's burst, and "
      "what of a link is left beyond the buffer (1 to 100),";
  std::array<std::int64_t, 3> numbers{};
  const char* at = value.data();
  const char* end = value.data() + value.size();
  for (std::size_t field = 0; field < numbers.size(); ++field) {
    const auto result = std::from_chars(at, end, numbers[field]);
    const bool last = field + 1 == numbers.size();
    const bool ends = last ? result.ptr == end : result.ptr != end && *result.ptr == ':';
    const std::int64_t most = last ? 100 : std::int64_t{1} << 40;
    if (result.ec != std::errc() || !ends || numbers[field] < 1 || numbers[field] > most)
      wrong(name, value, expected);
    at = result.ptr + 1;
  }
  line.incast = {numbers[0], numbers[1], numbers[2] * 10'000};
}

std::string* text_option(CommandLine& line, const std::string& name) {
  if (name == "workload-configuration") return &line.workload;
  if (name == "system-configuration") return &line.system;
  if (name == "network-configuration") return &line.network;
  if (name == "remote-memory-configuration") return &line.memory;
  if (name == "comm-group-configuration") return &line.groups;
  if (name == "logical-topology-configuration") return &line.logical;
  if (name == "network-backend") return &line.backend;
  if (name == "rules") return &line.rules;
  if (name == "node-times") return &line.node_times;
  if (name == "link-counters") return &line.link_counters;
  if (name == "flows") return &line.flows;
  if (name == "timeline") return &line.timeline;
  if (name == "logging-folder") return &line.log_folder;
  return nullptr;
}

void apply(CommandLine& line, const std::string& name, const std::string& value) {
  if (std::string* text = text_option(line, name)) {
    *text = value;
  } else if (name == "num-queues-per-dim") {
    line.queues_per_dimension = count(name, value);
  } else if (name == "injection-scale") {
    line.injection_scale = real(name, value);
  } else if (name == "rate-quantum") {
    rate_quantum(line, name, value);
  } else if (name == "incast") {
    incast(line, name, value);
  } else if (name == "rendezvous-protocol") {
    line.rendezvous = truth(name, value);
  } else if (name == "comm-scale" || name == "compute-scale") {
    if (real(name, value) != 1) line.notes.push_back("--" + name + " has no effect, as upstream");
  } else if (name == "logging-configuration") {
    line.notes.push_back(
        "--" + name + " is accepted without effect; trace-enabled of the system file writes a log");
  } else {
    const std::string unknown = "--" + name + " is not an option";
    const std::string like = config::nearest(name, kOptions);
    line.unknown = unknown + like;
    line.notes.push_back(unknown + " and is ignored, as upstream does" + like);
  }
}

bool is_flag(const std::string& name) {
  return name == "json" || name == "help" || name == "version";
}

void check_outputs(const CommandLine& line) {
  if (line.rules == "strict" && !line.link_counters.empty()) {
    throw InputError("--link-counters needs --rules default; strict rules count nothing per link");
  }
  if (line.rules == "strict" && !line.flows.empty())
    throw InputError("--flows needs --rules default; strict rules keep no list of messages");
  check_flow_file(line.flows);
}

void check(const CommandLine& line) {
  const std::array<std::pair<const char*, const std::string*>, 4> required = {
      {{"workload-configuration", &line.workload},
       {"system-configuration", &line.system},
       {"network-configuration", &line.network},
       {"remote-memory-configuration", &line.memory}}};
  for (const auto& [name, value] : required) {
    if (!value->empty()) continue;
    // What is not an option may be the missing one, misspelt.
    throw InputError("--" + std::string(name) + " is missing" +
                     (line.unknown.empty() ? "" : ", and " + line.unknown) +
                     "; --help lists the options");
  }
  if (line.rules != "strict" && line.rules != "default")
    wrong("rules", line.rules, "strict or default");
  const bool strict = line.rules == "strict";
  if (line.rate_quantum_given && (strict || line.backend != "fair-share")) {
    throw InputError(
        "--rate-quantum needs --network-backend fair-share; only there messages have rates");
  }
  if (!line.incast.off() && (strict || line.backend != "fair-share"))
    throw InputError("--incast needs --network-backend fair-share; only there messages have rates");
  if (line.backend.starts_with(kFlows) && !strict) return check_outputs(line);
  if (line.backend.starts_with(kExternal)) {
    if (line.node_times.empty() && line.timeline.empty() && line.link_counters.empty() &&
        line.flows.empty())
      return;
    throw InputError(
        "an external ASTRA-sim prints lines per NPU only; --node-times, --timeline, "
        "--link-counters and --flows need the rules of this program");
  }
  if (strict && !line.logical.empty()) {
    throw InputError(
        "--logical-topology-configuration needs --rules default; ASTRA-sim's analytical networks "
        "have the dimensions of the network file");
  }
  const bool upstream = line.backend == "congestion-unaware" || line.backend == "congestion-aware";
  if (upstream || (!strict && line.backend == "fair-share")) return check_outputs(line);
  wrong("network-backend", line.backend,
        strict ? "congestion-unaware or congestion-aware (fair-share needs --rules default)"
               : "congestion-unaware, congestion-aware, fair-share or flows:FILE");
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& arguments) {
  CommandLine line;
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    if (argument == "-h") {
      line.help = true;
      continue;
    }
    if (argument.rfind("--", 0) != 0) {
      throw InputError("\"" + argument +
                       "\" is no option; options are --name=value (--help lists them)");
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::string value;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (!is_flag(name) && at + 1 < arguments.size() &&
               arguments[at + 1].rfind("--", 0) != 0) {
      value = arguments[++at];
    }
    if (name == "json") {
      line.json = truth(name, value);
    } else if (name == "help") {
      line.help = true;
    } else if (name == "version") {
      line.version = true;
    } else {
      apply(line, name, value);
    }
  }
  if (!line.help && !line.version) check(line);
  return line;
}

std::string usage() {
  return "astra-sim: how long the execution traces of many NPUs take on a network\n"
         "\n"
         "  --workload-configuration=PREFIX     reads PREFIX.<npu>.et (Chakra; gzip too) for every "
         "NPU\n"
         "  --system-configuration=FILE         JSON: collectives, chunks, endpoint and memory "
         "costs\n"
         "  --network-configuration=FILE        YAML: topology, npus_count, bandwidth, latency; or "
         "a topology\n"
         "                                      file of ours, named *.json (default rules)\n"
         "  --remote-memory-configuration=FILE  JSON: memory-type and its costs\n"
         "  --comm-group-configuration=FILE     JSON: group id -> NPUs (default: empty)\n"
         "  --logical-topology-configuration=FILE  JSON: logical-dims, the dimensions of "
         "collectives\n"
         "                                      (default: the network's; default rules)\n"
         "  --network-backend=NAME              congestion-unaware (default), congestion-aware, "
         "fair-share\n"
         "                                      or external:PATH, an ASTRA-sim binary of yours, "
         "or\n"
         "                                      flows:FILE, times of messages from another "
         "simulator\n"
         "  --rules=NAME                        default: sound rules of our own, in picoseconds; "
         "strict: "
         "ASTRA-sim's\n"
         "                                      results, cycle for cycle (not with fair-share)\n"
         "  --rate-quantum=PERCENT[:MESSAGES]   fair-share: while more than MESSAGES (65536) are "
         "in motion, rates "
         "follow\n"
         "                                      ends that leave PERCENT (1) of a link idle; 0: "
         "exact\n"
         "  --incast=BUFFER:BURST:PERCENT       fair-share: bursts of BURST bytes a message beyond "
         "BUFFER bytes\n"
         "                                      at a switch's port pass at PERCENT of the link\n"
         "  --num-queues-per-dim=N              queues of a dimension (1)\n"
         "  --injection-scale=X                 scales endpoint-delay (1.0)\n"
         "  --rendezvous-protocol=BOOL          a control message before each message (false)\n"
         "  --json                              results as one JSON object instead of lines\n"
         "  --node-times=FILE                   CSV: npu,node,issue_ns,done_ns (default rules: "
         "_ps)\n"
         "  --link-counters=FILE                CSV: bytes, messages, busy and waiting time by "
         "link (default rules)\n"
         "  --flows=FILE                        every message, for another simulator: .csv, .cm "
         "(HTSim),\n"
         "                                      .txt (ns-3), .goal (default rules)\n"
         "  --timeline=FILE                     every node as JSON for ui.perfetto.dev\n"
         "\n"
         "Exit code 0 only when every node finished; 2: a wrong option or file; 3: nodes wait for "
         "ever.\n";
}

}  // namespace astra_sim::cli
