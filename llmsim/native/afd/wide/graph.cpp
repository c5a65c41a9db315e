#include "afd/wide/graph.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

WideGraph::WideGraph(StepGraph steps, std::vector<std::size_t> of_classes, const KindKeys& keys)
    : graph(std::move(steps)), kinds(std::move(of_classes)) {
  if (graph.slots > 0) throw std::logic_error("a step of classes waits for the step before");
  std::vector<bool> listed(at(graph.units * kNumDeviceStreams), false);
  std::vector<std::int32_t> key_of;  // by price
  for (const PriceKey& key : graph.prices)
    key_of.push_back(key.role == NodeRole::kMeet ? -1 : keys.find(kinds[at(key.member)], key));
  for (const StepNode& node : graph.nodes) {
    Node wide;
    if (node.role != NodeRole::kMeet) {
      wide.cls = node.member;
      wide.key = key_of[at(node.price)];
    }
    const auto is_own = [&](const Wait& wait) {
      const StepNode& other = graph.nodes[at(wait.index)];
      return wide.cls != kNoClass && other.role != NodeRole::kMeet && other.member == wide.cls;
    };
    for (const bool own : {true, false}) {
      Range& range = own ? wide.own : wide.others;
      range.first = static_cast<std::int32_t>(waits.size());
      for (const Wait& wait : graph.waits_of(node))
        if (is_own(wait) == own) waits.push_back(wait.index);
      range.count = static_cast<std::int32_t>(waits.size()) - range.first;
    }
    nodes.push_back(wide);
    if (node.stream == kNoStream || listed[at(node.stream)]) continue;
    listed[at(node.stream)] = true;
    streams.push_back(node.stream);
  }
  for (const Block& block : graph.blocks) {
    BlockShape& shape = blocks.emplace_back();
    for (std::int32_t i = block.first; i < block.last && block.repeat > 1; ++i) {
      const StepNode& node = graph.nodes[at(i)];
      if (node.stream != kNoStream && !std::ranges::count(shape.streams, node.stream))
        shape.streams.push_back(node.stream);
      for (const Wait& wait : graph.waits_of(node)) {
        if (wait.from != WaitFor::kLayerBefore) continue;
        if (wait.entry < 0) throw std::logic_error("a layer enters by no node");
        shape.carried.push_back({wait.index, wait.entry});
        if (graph.nodes[at(wait.index)].stream == kNoStream) shape.crossing.push_back(wait.index);
      }
    }
  }
}

WideGraph WideGraph::apart(const StepGraph& folded, std::vector<std::size_t> kinds,
                           const KindKeys& keys) {
  StepGraph steps = unrolled(folded);
  number_rows(steps);
  WideGraph graph(std::move(steps), std::move(kinds), keys);
  std::int32_t first = 0;
  for (const Block& block : folded.blocks) {
    graph.layers.push_back({first, block.last - block.first, block.repeat});
    first += (block.last - block.first) * block.repeat;
  }
  return graph;
}

WideTimes::WideTimes(const WideGraph& graph, const std::vector<MemberClass>& classes)
    : graph_(&graph), classes_(&classes) {
  for (const MemberClass& one : classes) widths_.push_back(one.members.size());
  stream_first_.assign(at(graph.graph.units * kNumDeviceStreams), 0);
  for (const std::int32_t stream : graph.streams) {
    stream_first_[at(stream)] = all_streams_;
    all_streams_ += width_of(stream);
  }
  node_first_.push_back(0);
  for (const WideGraph::Node& node : graph.nodes)
    node_first_.push_back(node_first_.back() + (node.cls == kNoClass ? 1 : widths_[at(node.cls)]));
}

void WideTimes::gather(std::span<const Ps> of_members, std::vector<Ps>& of_classes) const {
  of_classes.resize(all_streams_);
  for (const std::int32_t stream : graph_->streams) {
    Ps* time = of_stream(of_classes, stream).data();
    for (const std::int32_t member : (*classes_)[at(graph_->class_of_stream(stream))].members)
      *time++ = of_members[graph_->stream_of_member(stream, member)];
  }
}

void WideTimes::scatter(const std::vector<Ps>& of_classes, std::span<Ps> of_members) const {
  for (const std::int32_t stream : graph_->streams) {
    const Ps* time = of_stream(of_classes, stream).data();
    for (const std::int32_t member : (*classes_)[at(graph_->class_of_stream(stream))].members)
      of_members[graph_->stream_of_member(stream, member)] = *time++;
  }
}

namespace {

std::vector<std::size_t> kinds_of(const std::vector<MemberClass>& classes) {
  std::vector<std::size_t> kinds;
  for (const MemberClass& one : classes) kinds.push_back(one.kind);
  return kinds;
}

}  // namespace

WideGraphs::WideGraphs(const AfdConfig& config, std::span<const Program* const> programs, bool full,
                       bool drafts)
    : config_(config),
      kinds_(programs, config.attention_members),
      full_(full),
      drafts_(drafts),
      all_together_(classes_of(kinds_, std::vector<bool>(programs.size(), false))),
      first_(graph_of(all_together_)),
      keys_(first_, kinds_.size()),
      folded_(first_, kinds_of(all_together_), keys_) {}

StepGraph WideGraphs::graph_of(const std::vector<MemberClass>& classes) {
  AfdConfig config = config_;
  config.attention_members = 0;
  std::vector<const Program*> programs;
  for (const MemberClass& one : classes) {
    if (one.kind < kinds_.num_attention_kinds()) ++config.attention_members;
    programs.push_back(&kinds_.program(one.kind));
  }
  return afd_graph(config, programs, full_, drafts_, segments_);
}

const WideGraph& WideGraphs::apart(const std::vector<MemberClass>& classes) {
  std::vector<std::size_t> kinds = kinds_of(classes);
  std::unique_ptr<WideGraph>& graph = apart_[kinds];
  if (graph == nullptr)
    graph =
        std::make_unique<WideGraph>(WideGraph::apart(graph_of(classes), std::move(kinds), keys_));
  return *graph;
}

}  // namespace llmsim
