// The command line: upstream's options and ours.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/network/fair_share.h"

namespace astra_sim::cli {

struct CommandLine {
  std::string workload, system, network, memory;
  std::string groups = "empty";
  std::string logical;  // file of logical dimensions, or ""
  std::string backend = "congestion-unaware";
  std::string rules = "default";
  std::string node_times;     // file for the times of every node, or ""
  std::string link_counters;  // file for what every link carried, or ""
  std::string flows;          // file for every message, or ""
  std::string timeline;       // file for Perfetto, or ""
  std::string log_folder = "log";
  double injection_scale = 1.0;
  unsigned queues_per_dimension = 1;
  std::int64_t rate_quantum_ppm = 10'000;  // fair share: engine::RateQuantum
  std::uint64_t quantum_above = 65'536;    // messages
  bool rate_quantum_given = false;
  engine::Incast incast;  // fair share
  bool rendezvous = false;
  bool json = false;
  bool help = false;
  bool version = false;
  std::string unknown;  // a sentence about the last option that is none, or ""
  std::vector<std::string> notes;
};

inline constexpr const char* kVersion = "0.1.0";       // the package's
inline constexpr const char* kExternal = "external:";  // what such a backend begins with

// `--option=value` or `--option value`. Throws model::InputError.
CommandLine parse_command_line(const std::vector<std::string>& arguments);
std::string usage();

}  // namespace astra_sim::cli
