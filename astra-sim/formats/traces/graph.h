// A workload as one graph of the engine, and where each node of the workload is in it.
#pragma once

#include <memory>

#include "formats/config/system.h"
#include "formats/traces/collectives/matching.h"
#include "formats/traces/collectives/recipes.h"
#include "formats/traces/workload.h"
#include "model/graph/graph.h"
#include "model/memory/memory.h"
#include "model/topology/topology.h"

namespace astra_sim::traces {

struct Translation {
  std::shared_ptr<const model::ExecutionGraph> graph;
  std::vector<model::NodeIndex>
      begin;  // by node of the workload: its first node of the graph, or kNone
  std::vector<model::NodeIndex> end;  // its last one
};

struct Costs {
  const config::SystemConfig& system;
  std::shared_ptr<const model::Topology> topology;  // where a reduction in the switch finds it
  const model::MemorySystem* memory;                // the engine's tiers; null: none
};

// Nodes that never end are left out. Throws model::InputError naming the node.
Translation translate(const Workload& workload, const Matching& matching, Recipes& recipes,
                      const Costs& costs);

}  // namespace astra_sim::traces
