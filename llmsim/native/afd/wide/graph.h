// The step of attention and FFN members as a graph in which each class of members is one member.
//
// Nodes of a class are wide: they have a time for each of its members. What waits for a node of its
// own class waits member by member; what waits for one of another class, or meets all members,
// waits for the latest of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "afd/wide/member_classes.h"

namespace llmsim {

inline constexpr std::int32_t kNoClass = -1;

struct WideGraph {
  // Classes of these kinds, the attention's first. Throws std::logic_error where the step waits for
  // more than itself.
  WideGraph(StepGraph graph, std::vector<std::size_t> kinds, const KindKeys& keys);
  // With every layer in nodes of its own, and rows that are numbered.
  static WideGraph apart(const StepGraph& folded, std::vector<std::size_t> kinds,
                         const KindKeys& keys);

  struct Node {
    std::int32_t cls = kNoClass;  // none: where members meet
    std::int32_t key = -1;        // among those of the kind
    Range own, others;            // waits, in `waits`
  };
  struct Carried {
    std::int32_t node, entry;  // before a block's first layer, the one is what the other was
  };
  // Copies of a block, one behind the other.
  struct Layers {
    std::int32_t first, size, repeat;  // nodes; of one layer; layers
  };
  struct BlockShape {
    std::vector<std::int32_t> streams;  // of its nodes
    std::vector<Carried> carried;
    std::vector<std::int32_t> crossing;  // nodes on no stream that the next layer waits for
  };

  std::span<const std::int32_t> waits_of(const Range& range) const {
    return std::span(waits).subspan(at(range.first), at(range.count));
  }
  std::size_t num_classes() const { return kinds.size(); }
  std::int32_t class_of_stream(std::int32_t stream) const {
    return stream / kNumDeviceStreams / graph.stages;
  }
  // The same stream of a member of the class, in a graph of all members.
  std::size_t stream_of_member(std::int32_t stream, std::int32_t member) const {
    const std::int32_t per_member = graph.stages * kNumDeviceStreams;
    return at(member * per_member + stream % per_member);
  }

  StepGraph graph;
  std::vector<std::size_t> kinds;  // by class
  std::vector<Node> nodes;
  std::vector<std::int32_t> waits;
  std::vector<std::int32_t> streams;  // those that have nodes
  std::vector<BlockShape> blocks;     // of those that repeat
  std::vector<Layers> layers;         // of all nodes
};

// Where the times of a graph's streams and nodes are, for given classes.
class WideTimes {
 public:
  WideTimes(const WideGraph& graph, const std::vector<MemberClass>& classes);
  std::size_t width(std::size_t cls) const { return widths_[cls]; }
  std::span<Ps> of_stream(std::vector<Ps>& times, std::int32_t stream) const {
    return std::span(times).subspan(stream_first_[at(stream)], width_of(stream));
  }
  std::span<const Ps> of_stream(const std::vector<Ps>& times, std::int32_t stream) const {
    return std::span(times).subspan(stream_first_[at(stream)], width_of(stream));
  }
  std::span<Ps> of_node(std::vector<Ps>& times, std::int32_t node) const {
    return std::span(times).subspan(node_first_[at(node)], node_width(node));
  }
  std::span<const Ps> of_node(const std::vector<Ps>& times, std::int32_t node) const {
    return std::span(times).subspan(node_first_[at(node)], node_width(node));
  }
  // Of nodes that follow each other.
  std::span<Ps> of_nodes(std::vector<Ps>& times, std::int32_t first, std::int32_t count) const {
    return std::span(times).subspan(node_first_[at(first)], nodes_width(first, count));
  }
  std::span<const Ps> of_nodes(const std::vector<Ps>& times, std::int32_t first,
                               std::int32_t count) const {
    return std::span(times).subspan(node_first_[at(first)], nodes_width(first, count));
  }
  std::size_t all_streams() const { return all_streams_; }
  std::size_t all_nodes() const { return node_first_.back(); }

  // Between the streams of all members (StepCarry::free) and those of the classes.
  void gather(std::span<const Ps> of_members, std::vector<Ps>& of_classes) const;
  void scatter(const std::vector<Ps>& of_classes, std::span<Ps> of_members) const;

 private:
  std::size_t width_of(std::int32_t stream) const {
    return widths_[at(graph_->class_of_stream(stream))];
  }
  std::size_t node_width(std::int32_t node) const { return nodes_width(node, 1); }
  std::size_t nodes_width(std::int32_t first, std::int32_t count) const {
    return node_first_[at(first + count)] - node_first_[at(first)];
  }
  const WideGraph* graph_;
  const std::vector<MemberClass>* classes_;
  std::vector<std::size_t> widths_;  // by class
  std::vector<std::size_t> stream_first_, node_first_;
  std::size_t all_streams_ = 0;
};

// Graphs of one configuration: with its layers in blocks and one class of each kind, and with each
// layer apart, for any classes.
class WideGraphs {
 public:
  // `full`, `drafts`: as afd_graph has them.
  WideGraphs(const AfdConfig& config, std::span<const Program* const> programs, bool full,
             bool drafts);
  const MemberKinds& kinds() const { return kinds_; }
  const KindKeys& keys() const { return keys_; }
  const WideGraph& folded() const { return folded_; }
  const std::vector<MemberClass>& all_together() const { return all_together_; }
  const Segments& segments() const { return segments_; }
  // Of all members (StepCarry::free).
  std::size_t num_streams() const {
    return kinds_.num_members() * at(first_.stages * kNumDeviceStreams);
  }
  // Made when first asked for.
  const WideGraph& apart(const std::vector<MemberClass>& classes);

 private:
  StepGraph graph_of(const std::vector<MemberClass>& classes);

  AfdConfig config_;
  MemberKinds kinds_;
  bool full_, drafts_;
  Segments segments_;
  std::vector<MemberClass> all_together_;
  StepGraph first_;
  KindKeys keys_;
  WideGraph folded_;
  std::map<std::vector<std::size_t>, std::unique_ptr<WideGraph>> apart_;  // by kinds of classes
};

}  // namespace llmsim
