// Readies a Run for its next graph.
#include "engine/run/run.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace astra_sim::engine {

void Run::reset(std::shared_ptr<const model::ExecutionGraph> next,
                std::span<const std::int64_t> amounts) {
  graph = std::move(next);
  const std::uint32_t n = graph->num_nodes();
  nodes_left = n;
  finished = false;
  if (amounts.empty()) {
    amount = graph->amount;
  } else {
    own_amount.assign(amounts.begin(), amounts.end());
    amount = own_amount;
  }
  open_parents.assign(graph->num_parents.begin(), graph->num_parents.end());
  start_ps.assign(n, -1);
  end_ps.assign(n, -1);
  lanes.assign(graph->lanes.size(), LaneState{});
  ranks.assign(graph->rank_slots.size(), RankState{});
  calls.assign(graph->calls.size(), CallState{});
  waits.clear();
  call_of.clear();
  phases.clear();
  call_of_phase.clear();
  arrived.assign(graph->has_recv ? n : 0, 0);
  if (!graph->by_readiness) return;
  ready.assign(lanes.size(), {});
  for (const model::NodeIndex node : graph->lane_nodes) {
    if (open_parents[node] == 0) make_ready(node);
  }
}

void Run::make_ready(model::NodeIndex node) {
  std::vector<model::NodeIndex>& heap = ready[graph->lane[node]];
  heap.push_back(node);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

model::NodeIndex Run::take(std::uint32_t lane) {
  if (!graph->by_readiness) {
    const model::NodeIndex node = graph->lane_nodes[graph->lanes[lane].first + lanes[lane].cursor];
    return open_parents[node] == 0 ? node : model::kNone;
  }
  std::vector<model::NodeIndex>& heap = ready[lane];
  if (heap.empty()) return model::kNone;
  std::pop_heap(heap.begin(), heap.end(), std::greater<>());
  const model::NodeIndex node = heap.back();
  heap.pop_back();
  return node;
}

}  // namespace astra_sim::engine
