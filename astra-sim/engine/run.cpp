// Readies a Run for its next graph.
#include "engine/run.h"

#include <utility>

namespace astra_sim::engine {

void Run::reset(std::shared_ptr<const model::ExecutionGraph> next, std::span<const std::int64_t> amounts) {
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
    arrived.assign(graph->has_recv ? n : 0, 0);
}

}  // namespace astra_sim::engine
