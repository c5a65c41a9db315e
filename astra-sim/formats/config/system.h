// The system file (JSON): how collectives are cut and carried out, and what compute and endpoints
// cost.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/collective/algorithm_word.h"

namespace astra_sim::config {

using model::Algorithm;
using model::AlgorithmChoice;

// The kinds that have an algorithm each, in the order of `SystemConfig::algorithms`.
enum class Collective : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll };
inline constexpr std::size_t kCollectives = 4;
inline constexpr std::array<const char*, kCollectives> kCollectiveKeys = {
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all"};

enum class Scheduling : std::uint8_t { kLifo, kFifo, kExplicitPriority };

struct SystemConfig {
  Scheduling scheduling = Scheduling::kLifo;
  bool local_bandwidth_aware = false;  // collective-optimization
  bool baseline = false;               // the same, said explicitly
  std::int64_t dataset_splits = 0;     // 0: not given
  std::int64_t active_chunks = 1;
  std::int64_t endpoint_delay_ns = 10;
  double local_memory_gb_per_s = 0;  // GB = 10^9; 0: not given
  double peak_tflops = 0;
  bool roofline = false;
  std::array<std::vector<AlgorithmChoice>, kCollectives> algorithms;  // one entry per dimension
  std::array<std::string, kCollectives> custom;         // prefix of the algorithm's files, or ""
  std::map<std::uint64_t, std::string> custom_by_node;  // id of a workload node -> prefix
  bool replay_only = false;
  bool shared_bus = false;
  bool trace_enabled = false;
  bool track_local_memory = false;
  std::string local_memory_trace;
  std::string path;
  std::vector<std::string> notes;
};

// Throws model::InputError naming file, place and field.
SystemConfig read_system(const std::string& path);

}  // namespace astra_sim::config
