#include "step/executors/folded.h"

#include <algorithm>

namespace llmsim {

void StepTiming::end_members(const StepGraph& graph, std::span<const Ps> end, StepCarry& carry,
                             std::span<Ps> starts, std::span<Ps> ends) {
  for (std::size_t m = 0; m < graph.members.size(); ++m) {
    const StepGraph::Member& member = graph.members[m];
    starts[m] = end[at(member.begin)];
    ends[m] = std::max(end[at(member.end)], starts[m] + 1);
    carry.free[at(graph.nodes[at(member.end)].stream)] = ends[m];
  }
  for (const auto& [node, slot] : graph.kept) carry.slots[at(slot)] = end[at(node)];
}

void launches_of(const StepGraph& graph, std::span<const Ps> node_ends, std::span<const Ps> starts,
                 std::vector<Ps>& launched) {
  launched.assign(starts.begin(), starts.end());
  for (std::size_t m = 0; m < starts.size(); ++m)
    if (const std::int32_t node = graph.members[m].launched; node >= 0)
      launched[m] = node_ends[at(node)];
}

void FoldedTiming::pass_layer(const Step& step, const Block& block, std::int32_t layer) {
  for (std::int32_t i = block.first; i < block.last; ++i) {
    const StepNode& node = step.graph.nodes[at(i)];
    Ps begin = given_at(node, step.start);
    for (const Wait& wait : step.graph.waits_of(node)) {
      const bool carried = wait.from == WaitFor::kStepBefore;
      begin = std::max(begin, carried ? step.carry.slots[at(wait.index)] : end_[at(wait.index)]);
    }
    if (node.stream == kNoStream) {
      end_[at(i)] = begin + step.prices.of(step.graph, node, layer);
      continue;
    }
    Ps& free = step.carry.free[at(node.stream)];
    free = end_[at(i)] = std::max(begin, free) + step.prices.of(step.graph, node, layer);
  }
}

// Nodes of the block wait for such of the block alone, so that a layer which moves all its streams
// by the same time is followed by layers that do, too. What is sampled differs from layer to layer,
// but is on the way of every stream.
void FoldedTiming::pass_layers(const Step& step, const Block& block) {
  const StepGraph& graph = step.graph;
  streams_.clear();
  drawn_.clear();
  crossing_.clear();
  listed_.assign(step.carry.free.size(), false);
  for (std::int32_t i = block.first; i < block.last; ++i) {
    const StepNode& node = graph.nodes[at(i)];
    if (node.stream != kNoStream && !listed_[at(node.stream)]) {
      listed_[at(node.stream)] = true;
      streams_.push_back(node.stream);
    }
    if (!streams_.empty() && node.stream == streams_[0] && node.draws.count > 0)
      drawn_.push_back(i);
    for (const Wait& wait : graph.waits_of(node)) {
      if (wait.from != WaitFor::kLayerBefore) continue;
      const std::int32_t stream = graph.nodes[at(wait.index)].stream;
      end_[at(wait.index)] = wait.entry >= 0 ? end_[at(wait.entry)] : step.carry.free[at(stream)];
      if (stream == kNoStream) crossing_.push_back(wait.index);
    }
  }
  const auto sampled = [&](std::int32_t layer) {
    Ps sum = 0;
    for (const std::int32_t i : drawn_) {
      const StepNode& node = graph.nodes[at(i)];
      sum += step.prices.of(graph, node, layer) - step.prices.ps[at(node.price)];
    }
    return sum;
  };
  for (std::int32_t layer = 0; layer < block.repeat; ++layer) {
    before_.clear();
    for (const std::int32_t stream : streams_) before_.push_back(step.carry.free[at(stream)]);
    for (const std::int32_t node : crossing_) before_.push_back(end_[at(node)]);
    pass_layer(step, block, layer);
    const Ps moved = step.carry.free[at(streams_[0])] - before_[0];
    bool alike = true;
    for (std::size_t i = 1; i < streams_.size(); ++i)
      alike &= step.carry.free[at(streams_[i])] - before_[i] == moved;
    for (std::size_t i = 0; i < crossing_.size(); ++i)
      alike &= end_[at(crossing_[i])] - before_[streams_.size() + i] == moved;
    if (!alike) continue;
    Ps rest = (moved - sampled(layer)) * (block.repeat - layer - 1);
    while (++layer < block.repeat) rest += sampled(layer);
    for (const std::int32_t stream : streams_) step.carry.free[at(stream)] += rest;
    for (std::int32_t i = block.first; i < block.last; ++i) end_[at(i)] += rest;
    return;
  }
}

void FoldedTiming::run(const StepGraph& graph, const StepPrices& prices, const StepStart& start,
                       StepCarry& carry, std::span<Ps> starts, std::span<Ps> ends) {
  end_.resize(graph.nodes.size());
  const Step step{graph, prices, start, carry};
  for (const Block& block : graph.blocks) {
    if (block.repeat == 1) {
      pass_layer(step, block, 0);
    } else {
      pass_layers(step, block);
    }
  }
  end_members(graph, end_, carry, starts, ends);
}

StepGraphs full_graphs(const StepPricer& pricer) {
  const Program& program = pricer.program();
  const auto members = static_cast<std::int32_t>(pricer.num_members());
  StepGraphs graphs;
  const OffloadConfig* offload = pricer.offload();
  if (offload == nullptr) {
    const bool drafts = pricer.member(0).drafter() != nullptr;
    graphs.whole = unrolled(program_graph(program, members, drafts));
    return graphs;
  }
  graphs.whole = offload_graph(program, *offload, members, 1);
  if (offload->interleaving != Interleaving::kNever)
    graphs.halves = offload_graph(program, *offload, members, 2);
  return graphs;
}

StepGraphs folded_graphs(const StepPricer& pricer) {
  if (pricer.offload() != nullptr) return full_graphs(pricer);
  const Program& program = pricer.program();
  const auto members = static_cast<std::int32_t>(pricer.num_members());
  const bool drafts = pricer.member(0).drafter() != nullptr;
  return {folded(program, program_graph(program, members, drafts)), {}};
}

StepGraphs layered_graphs(const StepPricer& pricer) {
  if (pricer.offload() != nullptr) return full_graphs(pricer);
  const Program& program = pricer.program();
  const auto members = static_cast<std::int32_t>(pricer.num_members());
  const bool drafts = pricer.member(0).drafter() != nullptr;
  const StepGraph full = program_graph(program, members, drafts);
  return {unrolled(folded(program, full, caching_operators(program))), {}};
}

StepTimer::StepTimer(StepGraphs graphs, std::unique_ptr<StepTiming> timing)
    : graphs_(std::move(graphs)), timing_(std::move(timing)) {
  for (Way* way : {&whole_, &halves_}) {
    way->starts.resize(graphs_.whole.members.size());
    way->ends.resize(graphs_.whole.members.size());
  }
}

void StepTimer::run(const StepPricer& pricer, const StepGraph& graph, Way& way,
                    const StepStart& start, StepCarry& carry) {
  pricer.fill(graph, way.prices);
  timing_->run(graph, way.prices, start, carry, way.starts, way.ends);
  launches_of(graph, timing_->node_ends(), way.starts, way.launched);
  if (!keeps_node_ends_ && pricer.member(0).spans() == nullptr) return;
  const std::span<const Ps> ends = timing_->node_ends();
  way.node_ends.assign(ends.begin(), ends.end());
}

void StepTimer::keep_node_ends(StepGraphs graphs) {
  graphs_ = std::move(graphs);
  keeps_node_ends_ = true;
}

StepTimer::Timed StepTimer::run(StepPricer& pricer, bool may_split, const StepStart& start,
                                StepCarry& carry) {
  if (!may_split || graphs_.halves.nodes.empty()) {
    run(pricer, graphs_.whole, whole_, start, carry);
    return timed(graphs_.whole, whole_);
  }
  StepCarry halved = carry;
  run(pricer, graphs_.whole, whole_, start, carry);
  run(pricer, graphs_.halves, halves_, start, halved);
  const bool shorter = std::ranges::max(halves_.ends) < std::ranges::max(whole_.ends);
  if (!shorter && pricer.offload()->interleaving != Interleaving::kAlways)
    return timed(graphs_.whole, whole_);
  carry = std::move(halved);
  for (std::size_t m = 0; m < pricer.num_members(); ++m)
    ++pricer.member(m).offload.interleaved_steps;
  return timed(graphs_.halves, halves_);
}

void GraphExecutor::begin(std::span<const Batch* const> batches, const StepStart& start,
                          StepSink& sink) {
  const bool may_split = pricer_.begin(batches, start.at);
  const StepTimer::Timed timed = timer_.run(pricer_, may_split, start, carry_);
  const bool offloads = pricer_.offload() != nullptr;
  note_spans(pricer_, steps_++, timed.graph, timed.prices, timer_.timing(), timed.node_ends,
             offloads);
  for (std::size_t m = 0; m < batches.size(); ++m) {
    const OpenStep step = pricer_.open(m, timed.graph, timed.prices);
    const StepTimes times =
        pricer_.close(m, step, timed.starts[m], timed.ends[m], timed.launched[m]);
    report(m, timed, start.now, sink);
    sink.timed(m, times, start.now);
  }
}

bool GraphExecutor::report_layers() {
  if (!whole_layers_.empty()) return true;
  const StepGraph& whole = timer_.graphs().whole;
  const bool repeats =
      std::ranges::any_of(whole.blocks, [](const Block& block) { return block.repeat > 1; });
  const bool apart = !repeats && whole.segments.empty();
  timer_.keep_node_ends(apart ? timer_.graphs() : layered_graphs(pricer_));
  const StepGraphs& graphs = timer_.graphs();
  carry_ = StepCarry(graphs.whole, started_);
  whole_layers_ = caching_nodes(pricer_.program(), graphs.whole);
  halves_layers_ = caching_nodes(pricer_.program(), graphs.halves);
  return true;
}

void GraphExecutor::report(std::size_t member, const StepTimer::Timed& timed, Ps now,
                           StepSink& sink) const {
  if (whole_layers_.empty()) return;
  const bool halved = &timed.graph == &timer_.graphs().halves;
  const auto& layers = (halved ? halves_layers_ : whole_layers_)[member];
  for (const auto& [layer, nodes] : layers) {
    Ps end = 0;
    for (const std::int32_t node : nodes) end = std::max(end, timed.node_ends[at(node)]);
    sink.attended(member, 0, layer, end, now);
  }
}

}  // namespace llmsim
