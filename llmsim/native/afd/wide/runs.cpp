#include "afd/wide/runs.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace llmsim {

void WideRuns::restart(std::int64_t number, const WideCut& cut, const MemberKinds& kinds,
                       std::span<const Ps> free) {
  const bool same_graph = graph_ == cut.graph;
  graph_ = cut.graph;
  kinds_ = &kinds;
  cut_ = &cut;
  if (!same_graph) link();
  for (Step& step : steps_) spare_.push_back(std::move(step));
  steps_.clear();
  due_.clear();
  next_due_ = 0;
  first_ = number;
  cut.times.gather(free, free_);
}

// Who follows whom, in a graph of which nothing is known yet.
void WideRuns::link() {
  const StepGraph& graph = graph_->graph;
  const std::size_t num_nodes = graph.nodes.size();
  first_follower_.assign(num_nodes + 1, 0);
  waits_.assign(num_nodes, 0);
  before_.assign(num_nodes, -1);
  next_step_.assign(num_nodes, -1);
  ended_class_.assign(num_nodes, -1);
  given_.clear();
  last_of_stream_.assign(at(graph.units * kNumDeviceStreams), -1);
  std::vector<std::int32_t> first(last_of_stream_.size(), -1);
  std::vector<std::pair<std::int32_t, Follower>> edges;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(num_nodes); ++i) {
    const StepNode& node = graph.nodes[at(i)];
    const WideGraph::Node& wide = graph_->nodes[at(i)];
    if (node.role == NodeRole::kBegin || node.role == NodeRole::kPrepare) given_.push_back(i);
    for (const std::int32_t other : graph_->waits_of(wide.own)) edges.push_back({other, {i, true}});
    for (const std::int32_t other : graph_->waits_of(wide.others))
      edges.push_back({other, {i, false}});
    if (node.stream == kNoStream) continue;
    std::int32_t& last = last_of_stream_[at(node.stream)];
    if (last < 0) first[at(node.stream)] = i;
    before_[at(i)] = last;
    if (last >= 0) edges.push_back({last, {i, true}});
    last = i;
  }
  for (std::size_t stream = 0; stream < first.size(); ++stream)
    if (first[stream] >= 0) next_step_[at(last_of_stream_[stream])] = first[stream];
  for (const auto& [from, to] : edges) {
    ++first_follower_[at(from) + 1];
    ++waits_[at(to.node)];
  }
  for (std::size_t i = 1; i < first_follower_.size(); ++i)
    first_follower_[i] += first_follower_[i - 1];
  followers_.resize(edges.size());
  std::vector<std::int32_t> filled(first_follower_.begin(), first_follower_.end() - 1);
  for (const auto& [from, to] : edges) followers_[at(filled[at(from)]++)] = to;
  for (std::size_t c = 0; c < graph.members.size(); ++c)
    ended_class_[at(graph.members[c].end)] = static_cast<std::int32_t>(c);
}

void WideRuns::begin(std::shared_ptr<const AfdPrices> prices, const StepStart& start, Ps now) {
  const std::int64_t number = first_ + static_cast<std::int64_t>(steps_.size());
  Step step;
  if (!spare_.empty()) {
    step = std::move(spare_.back());
    spare_.pop_back();
  }
  step.prices = std::move(prices);
  step.left = graph_->nodes.size();
  step.ready.assign(step.left, 0);
  step.last.assign(step.left, kNever);
  step.ends.resize(cut_->times.all_nodes());
  step.missing = waits_;
  for (const std::int32_t node : given_)
    step.ready[at(node)] = given_at(graph_->graph.nodes[at(node)], start);
  if (!steps_.empty())
    for (const std::int32_t stream : graph_->streams) {
      const std::int32_t last = last_of_stream_[at(stream)];
      step.missing[at(next_step_[at(last)])] += steps_.back().last[at(last)] == kNever;
    }
  for (std::size_t i = 0; i < step.missing.size(); ++i)
    if (step.missing[i] == 0) due_.push_back({number, static_cast<std::int32_t>(i)});
  steps_.push_back(std::move(step));
  run(now);
}

void WideRuns::ended(std::int64_t step, std::int32_t node, Ps end, Ps now) {
  cut_->times.of_node(of(step).ends, node)[0] = end;
  end_node(step, node, now);
  forget();
  run(now);
}

void WideRuns::run_out(std::int64_t number, std::int32_t node, Ps end, Ps now) {
  cut_->times.of_node(of(number).ends, node)[0] = end;
  end_node(number, node, now);
  forget();
  std::erase_if(due_, [number](const Due& due) { return due.step <= number; });
  while (first_ <= number) {
    run_out_oldest(now);
    forget();
  }
  run(now);
}

// Nodes wait for earlier ones of their step, and for the step before. A layer waits for the layer
// before alone: where one that nobody moved ends as that one does, but later, all that follow do.
void WideRuns::run_out_oldest(Ps now) {
  const std::int64_t number = first_;
  const Step& step = of(number);
  const std::int32_t last_moved = mover_.last_moved(number);
  for (const WideGraph::Layers& layers : graph_->layers) {
    std::int32_t touched = layers.first + layers.size * layers.repeat - 1;
    while (touched >= layers.first && step.last[at(touched)] == kNever) --touched;
    touched = std::max(touched, last_moved);
    for (std::int32_t layer = 0; layer < layers.repeat; ++layer) {
      const std::int32_t first = layers.first + layer * layers.size, before = first - layers.size;
      Ps moved = 0;
      if (layer > 1 && before > touched && moved_alike(step, layers, before, moved)) {
        leap(number, layers, first, moved, now);
        break;
      }
      for (std::int32_t i = first; i < first + layers.size; ++i)
        if (step.last[at(i)] == kNever) run_out_node(number, i, now);
    }
  }
}

void WideRuns::run_out_node(std::int64_t number, std::int32_t node, Ps now) {
  Step& step = of(number);
  Ps ready = step.ready[at(node)];
  for (const std::int32_t other : graph_->waits_of(graph_->nodes[at(node)].others))
    ready = std::max(ready, step.last[at(other)]);
  if (!time(number, node, ready, now)) throw std::logic_error("a node that nobody moves is moved");
  const Ps last = note_end(step, node);
  lead_to_next_step(number, node, last);
  tell_ended(number, node, now);
}

bool WideRuns::moved_alike(const Step& step, const WideGraph::Layers& layers, std::int32_t first,
                           Ps& moved) const {
  const auto here = cut_->times.of_nodes(step.ends, first, layers.size);
  const auto before = cut_->times.of_nodes(step.ends, first - layers.size, layers.size);
  moved = here[0] - before[0];
  bool alike = true;
  for (std::size_t i = 0; i < here.size(); ++i) alike &= here[i] - before[i] == moved;
  return alike;
}

void WideRuns::leap(std::int64_t number, const WideGraph::Layers& layers, std::int32_t first,
                    Ps moved, Ps now) {
  Step& step = of(number);
  const std::int32_t end = layers.first + layers.size * layers.repeat;
  const auto from =
      cut_->times.of_nodes(std::as_const(step.ends), first - layers.size, end - first);
  const auto to = cut_->times.of_nodes(step.ends, first, end - first);
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i] + moved;  // layer by layer
  for (std::int32_t i = first; i < end; ++i)
    step.last[at(i)] = step.last[at(i - layers.size)] + moved;
  step.left -= at(end - first);
  for (std::int32_t i = end - layers.size; i < end; ++i) {
    lead_to_next_step(number, i, step.last[at(i)]);
    tell_ended(number, i, now);
  }
}

void WideRuns::run(Ps now) {
  while (next_due_ < due_.size()) {
    const Due due = due_[next_due_++];
    const Ps ready = of(due.step).ready[at(due.node)];
    if (time(due.step, due.node, ready, now)) end_node(due.step, due.node, now);
    forget();
  }
  due_.clear();
  next_due_ = 0;
}

std::span<const Ps> WideRuns::ends_of(std::int64_t step, std::int32_t node) const {
  return cut_->times.of_node(of(step).ends, node);
}

std::span<const Ps> WideRuns::stream_before(std::int64_t step, std::int32_t node) const {
  if (before_[at(node)] >= 0) return cut_->times.of_node(of(step).ends, before_[at(node)]);
  const std::int32_t stream = graph_->graph.nodes[at(node)].stream;
  if (step > first_) return cut_->times.of_node(of(step - 1).ends, last_of_stream_[at(stream)]);
  return cut_->times.of_stream(free_, stream);
}

// All that the node waits for has ended, those of other classes by `ready`. False: the mover will
// say when it ends.
bool WideRuns::time(std::int64_t number, std::int32_t node, Ps ready, Ps now) {
  Step& step = of(number);
  const WideGraph::Node& wide = graph_->nodes[at(node)];
  const std::span<Ps> ends = cut_->times.of_node(step.ends, node);
  std::ranges::fill(ends, ready);
  if (wide.cls == kNoClass) return true;
  const std::size_t width = ends.size();
  const auto wait_for = [&](std::span<const Ps> waited) {
    for (std::size_t i = 0; i < width; ++i) ends[i] = std::max(ends[i], waited[i]);
  };
  for (const std::int32_t own : graph_->waits_of(wide.own))
    wait_for(cut_->times.of_node(step.ends, own));
  if (graph_->graph.nodes[at(node)].stream != kNoStream) wait_for(stream_before(number, node));
  const MemberClass& mine = cut_->classes[at(wide.cls)];
  const Ps* price =
      &step.prices->kinds[mine.kind].ps[at(wide.key) * kinds_->members(mine.kind).size()];
  const Ps begin = ends[0];
  for (std::size_t i = 0; i < width; ++i) ends[i] += price[at(mine.places[i])];
  for (const Draws& drawn : graph_->graph.draws_of(graph_->graph.nodes[at(node)]))
    for (std::int64_t k = 0; k < drawn.count; ++k)
      ends[0] += step.prices->draws[static_cast<std::size_t>(drawn.first + k)];
  if (!cut_->asks[at(node)]) return true;
  const Ps end = mover_.end_of(number, node, begin, ends[0], now);
  if (end == kNever) return false;
  ends[0] = end;
  return true;
}

void WideRuns::end_node(std::int64_t number, std::int32_t node, Ps now) {
  const Ps last = note_end(of(number), node);
  for (std::int32_t i = first_follower_[at(node)]; i < first_follower_[at(node) + 1]; ++i)
    lead_to(number, followers_[at(i)], last);
  lead_to_next_step(number, node, last);
  tell_ended(number, node, now);
}

// The latest of its ends. A member's step lasts at least one picosecond.
Ps WideRuns::note_end(Step& step, std::int32_t node) {
  const std::span<Ps> ends = cut_->times.of_node(step.ends, node);
  if (const std::int32_t cls = ended_class_[at(node)]; cls >= 0) {
    const auto starts = starts_of(step, cls);
    for (std::size_t i = 0; i < ends.size(); ++i) ends[i] = std::max(ends[i], starts[i] + 1);
  }
  --step.left;
  return step.last[at(node)] = std::ranges::max(ends);
}

std::span<const Ps> WideRuns::starts_of(const Step& step, std::int32_t cls) const {
  return cut_->times.of_node(step.ends, graph_->graph.members[at(cls)].begin);
}

void WideRuns::tell_ended(std::int64_t number, std::int32_t node, Ps now) {
  const std::int32_t cls = ended_class_[at(node)];
  if (cls < 0) return;
  const Step& step = of(number);
  const auto ends = cut_->times.of_node(step.ends, node), starts = starts_of(step, cls);
  const MemberClass& mine = cut_->classes[at(cls)];
  for (std::size_t i = 0; i < ends.size(); ++i)
    mover_.member_ended(number, at(mine.members[i]), starts[i], ends[i], now);
}

void WideRuns::lead_to_next_step(std::int64_t number, std::int32_t node, Ps end) {
  if (next_step_[at(node)] >= 0 && is_open(number + 1))
    lead_to(number + 1, {next_step_[at(node)], true}, end);
}

void WideRuns::lead_to(std::int64_t number, const Follower& follower, Ps end) {
  Step& step = of(number);
  if (!follower.own) step.ready[at(follower.node)] = std::max(step.ready[at(follower.node)], end);
  if (--step.missing[at(follower.node)] == 0) due_.push_back({number, follower.node});
}

void WideRuns::forget_oldest() {
  Step& step = steps_.front();
  for (const std::int32_t stream : graph_->streams)
    std::ranges::copy(cut_->times.of_node(step.ends, last_of_stream_[at(stream)]),
                      cut_->times.of_stream(free_, stream).begin());
  spare_.push_back(std::move(step));
  steps_.pop_front();
  ++first_;
}

}  // namespace llmsim
