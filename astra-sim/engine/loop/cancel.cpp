// Taking graphs and transfers out of the engine before their end.
#include <string>

#include "engine/loop/engine.h"

namespace astra_sim::engine {

void Engine::cancel(GraphId graph) {
  if (const auto transfer = transfer_index_.find(graph); transfer != transfer_index_.end()) {
    const std::uint32_t index = transfer->second;
    forget(TokenSet::of_transfer(index));
    return drop_transfer(index);
  }
  const auto found = run_index_.find(graph);
  if (found == run_index_.end() || runs_[found->second]->finished) {
    throw model::InvalidGraph("graph " + std::to_string(graph) +
                              " cannot be cancelled: it has finished or is not known");
  }
  Run& run = *runs_[found->second];
  for (model::NodeIndex node = 0; node < run.graph->num_nodes(); ++node) {
    if (run.start_ps[node] >= 0 && run.end_ps[node] < 0) account(run, node);
  }
  forget(TokenSet::of_run(
      run.index));  // from here on nothing names the run, and its place may be used again
  const std::shared_ptr<const ExecutionGraph> plan = std::move(run.graph);
  run.graph.reset();
  run_index_.erase(found);
  free_runs_.push_back(run.index);
  --in_flight_;
  leave_streams(run.index, *plan);
}

void Engine::forget(const TokenSet& which) {
  queue_.remove_if([&](const Event& event) {
    if (kind_of(event) == EventKind::kHop) return network_->forget_hop(event.token, which);
    return which.contains(event.token);
  });
  memory_.forget(which);
  for (const std::uint64_t sender : network_->forget(now_, which)) {
    const Token token = Token::unpack(sender);
    if (sender != kNobody && token.owner == Owner::kChannel) memory_.left(token.index, now_);
  }
  if (settles_) network_->settle(now_);
}

// The next graph of each stream starts now where the cancelled one was being served.
void Engine::leave_streams(std::uint32_t run, const ExecutionGraph& graph) {
  for (const model::Lane& place : graph.lanes) {
    auto& queue = streams_[static_cast<std::size_t>(place.device) * model::kNumStreams +
                           static_cast<std::size_t>(place.stream)];
    const bool was_head = queue.remove(run);
    if (was_head && !queue.empty()) serve_head(queue);
  }
  if (settles_) network_->settle(now_);
}

void Engine::idle_until(Ps at_ps) {
  check_time("the clock is to be set", at_ps);
  if (const auto next = next_event_ps(); next && *next < at_ps) {
    throw model::InvalidGraph("the clock cannot be set to " + std::to_string(at_ps) +
                              " ps: an event is pending at " + std::to_string(*next) + " ps");
  }
  now_ = at_ps;
}

}  // namespace astra_sim::engine
