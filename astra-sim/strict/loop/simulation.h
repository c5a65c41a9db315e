// One run under strict rules: files in, times out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/config/groups.h"
#include "formats/config/memory.h"
#include "formats/config/network.h"
#include "formats/config/system.h"
#include "strict/base/journal.h"
#include "strict/base/trace.h"

namespace astra_sim::strict {

struct Options {
  std::string workload;  // PREFIX of PREFIX.<npu>.et
  bool aware = false;
  bool rendezvous = false;
  std::uint32_t queues_per_dimension = 1;
  double injection_scale = 1.0;
};

struct Inputs {
  config::SystemConfig system;
  config::NetworkConfig network;
  config::MemoryConfig memory;
  config::Groups groups;
};

struct Outcome {
  Trace trace;                          // with the times of every node
  std::vector<Ns> finish_ns;            // per NPU; -1: never finished
  std::vector<std::string> unfinished;  // a sentence per node that waits, the first 20
  std::uint64_t unfinished_nodes = 0;
  std::uint64_t events = 0;  // taken from the queues
  Journal journal;
};

// Throws model::InputError.
Outcome simulate(const Options& options, const Inputs& inputs);

}  // namespace astra_sim::strict
