#include "step/step_runs.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

StepRuns::StepRuns(const StepGraph& graph, StepMover& mover)
    : graph_(graph),
      mover_(mover),
      first_follower_(graph.nodes.size() + 1, 0),
      waits_(graph.nodes.size(), 0),
      next_step_(graph.nodes.size(), -1),
      member_of_(graph.nodes.size(), -1),
      free_(at(graph.units * kNumDeviceStreams), 0) {
  const auto num_nodes = static_cast<std::int32_t>(graph.nodes.size());
  std::vector<std::int32_t> first(free_.size(), -1), last(free_.size(), -1);
  std::vector<std::pair<std::int32_t, std::int32_t>> edges;  // from, to
  for (const Block& block : graph.blocks)
    if (block.repeat != 1) throw std::invalid_argument("a graph with repeated blocks");
  for (std::int32_t i = 0; i < num_nodes; ++i) {
    const StepNode& node = graph.nodes[at(i)];
    for (const Wait& wait : graph.waits_of(node)) {
      if (wait.from != WaitFor::kNode) throw std::invalid_argument("a node waits for other steps");
      edges.emplace_back(wait.index, i);
    }
    if (node.stream == kNoStream) continue;
    if (first[at(node.stream)] < 0) first[at(node.stream)] = i;
    if (last[at(node.stream)] >= 0) edges.emplace_back(last[at(node.stream)], i);
    last[at(node.stream)] = i;
  }
  for (std::size_t stream = 0; stream < first.size(); ++stream) {
    if (first[stream] < 0) continue;
    last_.push_back(last[stream]);
    next_step_[at(last[stream])] = first[stream];
  }
  for (const auto& [from, to] : edges) {
    ++first_follower_[at(from) + 1];
    ++waits_[at(to)];
  }
  for (std::size_t i = 1; i < first_follower_.size(); ++i)
    first_follower_[i] += first_follower_[i - 1];
  followers_.resize(edges.size());
  std::vector<std::int32_t> filled(first_follower_.begin(), first_follower_.end() - 1);
  for (const auto& [from, to] : edges) followers_[at(filled[at(from)]++)] = to;
  for (std::size_t m = 0; m < graph.members.size(); ++m)
    member_of_[at(graph.members[m].end)] = static_cast<std::int32_t>(m);
}

void StepRuns::restart(std::int64_t number, std::span<const Ps> free) {
  steps_.clear();
  due_.clear();
  first_ = number;
  free_.assign(free.begin(), free.end());
}

std::int64_t StepRuns::begin(const StepPrices& prices, const StepStart& start, Ps now) {
  const std::int64_t number = first_ + static_cast<std::int64_t>(steps_.size());
  const Step* before = steps_.empty() ? nullptr : &steps_.back();
  Step step{prices, std::vector<Ps>(graph_.nodes.size(), 0),
            std::vector<Ps>(graph_.nodes.size(), kNever), waits_, graph_.nodes.size()};
  for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
    step.ready[i] = given_at(graph_.nodes[i], start);
  for (const std::int32_t last : last_) {
    const std::size_t node = at(next_step_[at(last)]);
    const Ps end = before == nullptr ? free_[at(graph_.nodes[node].stream)] : before->end[at(last)];
    step.missing[node] += end == kNever;
    step.ready[node] = std::max(step.ready[node], end);
  }
  for (std::size_t i = 0; i < step.missing.size(); ++i)
    if (step.missing[i] == 0) due_.push_back({number, static_cast<std::int32_t>(i)});
  steps_.push_back(std::move(step));
  run(now);
  return number;
}

void StepRuns::ended(std::int64_t step, std::int32_t node, Ps end, Ps now) {
  end_node(step, node, end, now);
  forget();
  run(now);
}

void StepRuns::run(Ps now) {
  while (!due_.empty()) {
    const Due due = due_.front();
    due_.pop_front();
    const Step& step = of(due.step);
    const Ps begin = step.ready[at(due.node)];
    if (mover_.moves(due.step, due.node, begin, now)) continue;
    const StepNode& node = graph_.nodes[at(due.node)];
    end_node(due.step, due.node, begin + step.prices.of(graph_, node, 0), now);
    forget();
  }
}

// A member's step lasts at least one picosecond.
void StepRuns::end_node(std::int64_t number, std::int32_t node, Ps end, Ps now) {
  Step& step = of(number);
  const std::int32_t member = member_of_[at(node)];
  const Ps start = member < 0 ? 0 : step.end[at(graph_.members[at(member)].begin)];
  if (member >= 0) end = std::max(end, start + 1);
  step.end[at(node)] = end;
  --step.left;
  for (std::int32_t i = first_follower_[at(node)]; i < first_follower_[at(node) + 1]; ++i)
    lead_to(number, followers_[at(i)], end);
  if (next_step_[at(node)] >= 0 && is_open(number + 1))
    lead_to(number + 1, next_step_[at(node)], end);
  if (member >= 0) mover_.member_ended(number, at(member), start, end, now);
}

void StepRuns::lead_to(std::int64_t number, std::int32_t node, Ps end) {
  Step& step = of(number);
  Ps& ready = step.ready[at(node)];
  ready = std::max(ready, end);
  if (--step.missing[at(node)] == 0) due_.push_back({number, node});
}

void StepRuns::forget() {
  while (!steps_.empty() && steps_.front().left == 0) {
    const Step& step = steps_.front();
    for (const std::int32_t node : last_)
      free_[at(graph_.nodes[at(node)].stream)] = step.end[at(node)];
    steps_.pop_front();
    ++first_;
  }
}

}  // namespace llmsim
