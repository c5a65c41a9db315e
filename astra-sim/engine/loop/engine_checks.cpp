// What the engine refuses, and how it explains that nothing can move.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/loop/engine.h"

namespace astra_sim::engine {

using model::InvalidGraph;
using model::NodeIndex;
using model::NodeKind;

namespace {

constexpr std::size_t kMaxNamed = 8;

void check_amounts(const ExecutionGraph& graph, std::span<const std::int64_t> amounts) {
  if (amounts.size() != graph.num_nodes()) {
    throw InvalidGraph("the submission gives " + std::to_string(amounts.size()) +
                       " amounts for a graph of " + std::to_string(graph.num_nodes()) +
                       " nodes: one per node is needed");
  }
  for (NodeIndex node = 0; node < graph.num_nodes(); ++node) {
    if (amounts[node] < 0 || amounts[node] > model::kMaxSpan) {
      throw InvalidGraph(graph.describe(node) + " is given amount " +
                         std::to_string(amounts[node]) + " (ps or bytes): 0 to 2^60 is possible");
    }
    NodeIndex partner = node;
    if (graph.kind[node] == NodeKind::kCollective) {
      partner = graph.rank_slots[graph.calls[graph.rank_slots[graph.slot[node]].call].first].node;
    } else if (graph.kind[node] == NodeKind::kSend) {
      partner = graph.slot[node];
    }
    if (amounts[partner] != amounts[node]) {
      throw InvalidGraph(graph.describe(node) + " is given " + std::to_string(amounts[node]) +
                         " bytes, but " + graph.describe(partner) + " " +
                         std::to_string(amounts[partner]) + ": both ends have to agree");
    }
  }
}

// Why this unfinished node does not end; empty when another node's trouble explains it.
std::string reason(const Run& run, NodeIndex node) {
  const ExecutionGraph& graph = *run.graph;
  if (run.start_ps[node] < 0) return "";
  if (graph.kind[node] == NodeKind::kRecv) {
    return graph.describe(node) + " waits for " + graph.describe(graph.slot[node]);
  }
  if (graph.kind[node] != NodeKind::kCollective) return graph.describe(node) + " does not end";
  const model::Call& call = graph.calls[graph.rank_slots[graph.slot[node]].call];
  for (std::uint32_t slot = call.first; slot < call.first + call.num_ranks; ++slot) {
    const NodeIndex other = graph.rank_slots[slot].node;
    if (run.start_ps[other] < 0)
      return graph.describe(node) + " waits for " + graph.describe(other);
  }
  return "";
}

}  // namespace

void Engine::check_time(const char* what, Ps at_ps) const {
  if (at_ps < now_) {
    throw InvalidGraph(std::string(what) + " for " + std::to_string(at_ps) +
                       " ps, but the engine's clock is at " + std::to_string(now_) + " ps already");
  }
  if (at_ps > model::kHorizon) {
    throw model::OutOfRange(std::string(what) + " for " + std::to_string(at_ps) +
                            " ps, beyond the engine's horizon of 2^62 ps (53 days)");
  }
}

void Engine::check_transfer(DeviceId from, DeviceId to, Bytes bytes, Ps at_ps) const {
  if (from >= topology_->num_devices() || to >= topology_->num_devices() || from == to) {
    throw InvalidGraph("a transfer from device " + std::to_string(from) + " to device " +
                       std::to_string(to) + " needs two different devices of the topology's " +
                       std::to_string(topology_->num_devices()));
  }
  if (bytes < 0 || bytes > model::kMaxBytes) {
    throw model::OutOfRange("a transfer of " + std::to_string(bytes) +
                            " bytes: 0 to 2^60 is possible");
  }
  check_time("a transfer is submitted", at_ps);
}

void Engine::check_access(model::TierId tier, DeviceId device, Bytes bytes, Ps at_ps) const {
  if (!memory_.reaches(tier, device)) {
    throw InvalidGraph("an access of device " + std::to_string(device) + " names memory tier " +
                       std::to_string(tier) + ", which it does not reach: the engine has " +
                       std::to_string(tiers_ == nullptr ? 0 : tiers_->tiers().size()) + " tiers");
  }
  if (bytes < 0 || bytes > model::kMaxBytes) {
    throw model::OutOfRange("an access of " + std::to_string(bytes) +
                            " bytes: 0 to 2^60 is possible");
  }
  check_time("an access is submitted", at_ps);
}

void Engine::check_submission(const ExecutionGraph& graph, Ps at_ps,
                              std::span<const std::int64_t> amounts) const {
  if (graph.num_devices > topology_->num_devices()) {
    throw InvalidGraph("the graph is made for " + std::to_string(graph.num_devices) +
                       " devices, but the topology has " +
                       std::to_string(topology_->num_devices()));
  }
  check_time("the graph is submitted", at_ps);
  for (NodeIndex node = graph.memory_node; node < graph.num_nodes(); ++node) {
    const bool uses =
        graph.kind[node] == NodeKind::kMemoryLoad || graph.kind[node] == NodeKind::kMemoryStore;
    if (uses && !memory_.reaches(graph.peer[node], graph.device[node])) {
      throw InvalidGraph(graph.describe(node) + " names memory tier " +
                         std::to_string(graph.peer[node]) +
                         ", which its device does not reach: the engine has " +
                         std::to_string(tiers_ == nullptr ? 0 : tiers_->tiers().size()) + " tiers");
    }
  }
  if (!amounts.empty()) check_amounts(graph, amounts);
}

Run& Engine::run_of(GraphId graph) const {
  const auto found = run_index_.find(graph);
  if (found == run_index_.end()) {
    throw InvalidGraph("graph " + std::to_string(graph) +
                       " is not known to the engine, or was released");
  }
  Run& run = *runs_[found->second];
  if (!run.finished) throw InvalidGraph("graph " + std::to_string(graph) + " has not finished yet");
  return run;
}

model::NodeTimes Engine::times(GraphId graph) const {
  const Run& run = run_of(graph);
  return {run.start_ps, run.end_ps};
}

void Engine::release(GraphId graph) {
  Run& run = run_of(graph);
  run.graph.reset();
  run_index_.erase(graph);
  free_runs_.push_back(run.index);
}

void Engine::report_stall() const {
  std::vector<const Run*> open;
  for (const auto& run : runs_) {
    if (run->graph != nullptr && !run->finished) open.push_back(run.get());
  }
  std::sort(open.begin(), open.end(), [](const Run* a, const Run* b) { return a->id < b->id; });
  std::string message =
      std::to_string(open.size()) + (open.size() == 1 ? " graph" : " graphs") +
      " cannot finish, because nothing is in motion and nodes wait for each other";
  std::size_t named = 0;
  for (const Run* run : open) {
    for (NodeIndex node = 0; node < run->graph->num_nodes() && named < kMaxNamed; ++node) {
      if (run->end_ps[node] >= 0) continue;
      const std::string why = reason(*run, node);
      if (why.empty()) continue;
      message += (named == 0 ? ": in graph " : "; in graph ") + std::to_string(run->id) + " " + why;
      ++named;
    }
  }
  throw model::Stalled(message);
}

}  // namespace astra_sim::engine
