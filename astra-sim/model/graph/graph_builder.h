// Collects nodes and checks them once; `build` returns the sealed graph and leaves the builder
// ready for `clear`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/graph/graph.h"

namespace astra_sim::model {

// Node numbers returned by the add functions are indexes, ascending from 0; dependencies name
// numbers (or ids, once `with_ids` was called) and may point forward. Nothing is checked before
// `build`. `clear` keeps all memory.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::uint32_t num_devices) : num_devices_(num_devices) { clear(); }

  GroupId add_group(std::span<const DeviceId> devices);
  PlanId add_plan(CollectivePlan plan);

  NodeIndex compute(DeviceId device, Ps duration_ps, std::span<const std::uint64_t> parents,
                    Stream stream = Stream::kCompute, std::uint8_t power_class = 0);
  NodeIndex collective(DeviceId device, PlanId plan, CallId call, Bytes bytes,
                       std::span<const std::uint64_t> parents, Stream stream = Stream::kComm,
                       std::uint8_t power_class = 0);
  NodeIndex transfer(DeviceId from, DeviceId to, Bytes bytes,
                     std::span<const std::uint64_t> parents, Stream stream = Stream::kCopyOut,
                     std::uint8_t power_class = 0);
  // The general form: all columns of one node (see NodeKind).
  NodeIndex add(NodeKind kind, Stream stream, DeviceId device, std::int64_t amount,
                std::uint32_t peer, CallId call, std::span<const std::uint64_t> parents,
                std::uint8_t power_class = 0);
  // Gives the caller's numbers of all nodes, in order; parents then mean these.
  void with_ids(std::span<const std::uint64_t> ids);

  // A free stream takes its lowest node that is ready, instead of waiting for the next in line.
  void serve_by_readiness() { by_readiness_ = true; }

  // Throws InvalidGraph naming the node: bad device, group, plan, amount or class, duplicate id,
  // missing parent, a collective call that lacks a rank or whose ranks disagree, a send without
  // recv, a cycle (stream order included).
  std::shared_ptr<const ExecutionGraph> build();
  void clear();

 private:
  using Graph = ExecutionGraph;
  void check_nodes(const Graph& graph) const;
  void check_groups() const;
  void check_ids(Graph& graph) const;
  void resolve_parents(Graph& graph);
  void link_children(Graph& graph);
  void make_lanes(Graph& graph) const;
  void join_calls(Graph& graph) const;
  void join_call(Graph& graph, std::span<const NodeIndex> nodes,
                 std::vector<std::uint32_t>& node_of) const;
  void join_messages(Graph& graph) const;
  void check_acyclic(const Graph& graph) const;

  std::uint32_t num_devices_;
  std::vector<NodeKind> kind_;
  std::vector<Stream> stream_;
  std::vector<std::uint8_t> power_class_;
  std::vector<DeviceId> device_;
  std::vector<std::int64_t> amount_;
  std::vector<std::uint32_t> peer_;
  std::vector<CallId> call_;
  std::vector<std::uint64_t> ids_;
  std::vector<std::uint64_t> parent_;        // as given
  std::vector<std::uint32_t> parent_begin_;  // length nodes + 1
  std::vector<NodeIndex>
      parent_index_;  // resolved, duplicates collapsed: parallel to resolved_begin_
  std::vector<std::uint32_t> resolved_begin_;
  std::vector<CollectivePlan> plans_;
  std::vector<std::uint32_t> group_begin_;
  std::vector<DeviceId> group_device_;
  bool by_readiness_ = false;
};

}  // namespace astra_sim::model
