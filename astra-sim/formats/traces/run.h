// One run under default rules: files in, times out, on the engine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/loop/engine.h"
#include "formats/config/groups.h"
#include "formats/config/memory.h"
#include "formats/config/network.h"
#include "formats/config/system.h"
#include "formats/traces/tiers.h"
#include "formats/traces/workload.h"

namespace astra_sim::traces {

struct Options {
  std::string workload;  // PREFIX of PREFIX.<npu>.et
  engine::NetworkKind network = engine::NetworkKind::kCongestionUnaware;
  bool rendezvous = false;
  std::uint32_t queues_per_dimension = 1;
  double injection_scale = 1.0;
  engine::RateQuantum quantum{};
  engine::Incast incast{};
  std::shared_ptr<const engine::MessageTimes> times{};  // of another simulator; null: none
  bool keep_messages = false;                           // Outcome::messages
};

struct Inputs {
  config::SystemConfig system;
  config::NetworkConfig network;
  config::MemoryConfig memory;
  config::Groups groups;
};

struct Outcome {
  Workload workload;
  std::vector<model::Ps> issued_ps;     // by node; -1: never
  std::vector<model::Ps> done_ps;       // by node; -1: never
  std::vector<model::Ps> finish_ps;     // by NPU; -1: some node never ended
  std::vector<std::string> unfinished;  // a sentence per node that waits, the first 20
  std::uint64_t unfinished_nodes = 0;
  std::uint64_t events = 0;
  std::shared_ptr<const model::Topology> topology;
  std::vector<model::LinkCounters> links;  // by link of the topology
  std::vector<TierUse> tiers;
  std::vector<engine::SentMessage> messages;  // between NPUs, in the order in which they were sent
  std::uint64_t overflows = 0;       // fair share with incast: bursts above a switch's buffer
  std::uint64_t deferred_rates = 0;  // fair share: rates that the quantum put off; 0: exact
};

// What the files ask for and default rules have no use for, one sentence each.
std::vector<std::string> notes(const Options& options, const Inputs& inputs);

// Throws model::EngineError.
Outcome simulate(const Options& options, const Inputs& inputs);

}  // namespace astra_sim::traces
