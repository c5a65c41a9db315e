// The memories that nodes of a trace load from and store to, as tiers of the engine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/loop/engine.h"
#include "formats/config/memory.h"
#include "model/memory/memory.h"
#include "model/topology/topology.h"

namespace astra_sim::traces {

// The file's tiers, or its remote memory as one that serves one access at a time; null: no memory.
// Throws model::InputError.
std::shared_ptr<const model::MemorySystem> memory_of(
    const config::MemoryConfig& memory, std::shared_ptr<const model::Topology> topology);

// A size of the file: GB of 10^9 bytes, at least one byte per second.
model::BytesPerSecond bytes_per_s(double gb_per_s, const char* what);

// What an instance of a tier served, its channels together.
struct TierUse {
  std::string name;
  std::uint32_t instance;
  model::TierCounters count;
  model::Bytes bytes;
  model::Ps busy_ps;
};
// Instances without accesses are left out.
std::vector<TierUse> uses_of(const model::MemorySystem& memory, const engine::Engine& engine);

}  // namespace astra_sim::traces
