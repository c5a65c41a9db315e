// Builds the columns of an ExecutionGraph: parents, children, streams; see graph_joins.cpp for
// calls and messages.
#include "model/graph/graph_builder.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "model/base/errors.h"
#include "model/collective/ring_phases.h"
#include "model/collective/schedule.h"

namespace astra_sim::model {

GroupId GraphBuilder::add_group(std::span<const DeviceId> devices) {
  group_device_.insert(group_device_.end(), devices.begin(), devices.end());
  group_begin_.push_back(static_cast<std::uint32_t>(group_device_.size()));
  return static_cast<GroupId>(group_begin_.size() - 2);
}

PlanId GraphBuilder::add_plan(CollectivePlan plan) {
  plans_.push_back(std::move(plan));
  return static_cast<PlanId>(plans_.size() - 1);
}

NodeIndex GraphBuilder::compute(DeviceId device, Ps duration_ps,
                                std::span<const std::uint64_t> parents, Stream stream,
                                std::uint8_t power_class) {
  return add(NodeKind::kCompute, stream, device, duration_ps, kNone, kNone, parents, power_class);
}

NodeIndex GraphBuilder::collective(DeviceId device, PlanId plan, CallId call, Bytes bytes,
                                   std::span<const std::uint64_t> parents, Stream stream,
                                   std::uint8_t power_class) {
  return add(NodeKind::kCollective, stream, device, bytes, plan, call, parents, power_class);
}

NodeIndex GraphBuilder::transfer(DeviceId from, DeviceId to, Bytes bytes,
                                 std::span<const std::uint64_t> parents, Stream stream,
                                 std::uint8_t power_class) {
  return add(NodeKind::kTransfer, stream, from, bytes, to, kNone, parents, power_class);
}

NodeIndex GraphBuilder::add(NodeKind kind, Stream stream, DeviceId device, std::int64_t amount,
                            std::uint32_t peer, CallId call, std::span<const std::uint64_t> parents,
                            std::uint8_t power_class) {
  kind_.push_back(kind);
  stream_.push_back(stream);
  power_class_.push_back(power_class);
  device_.push_back(device);
  amount_.push_back(amount);
  peer_.push_back(peer);
  call_.push_back(call);
  parent_.insert(parent_.end(), parents.begin(), parents.end());
  parent_begin_.push_back(static_cast<std::uint32_t>(parent_.size()));
  return static_cast<NodeIndex>(kind_.size() - 1);
}

void GraphBuilder::with_ids(std::span<const std::uint64_t> ids) {
  ids_.assign(ids.begin(), ids.end());
}

void GraphBuilder::clear() {
  kind_.clear();
  stream_.clear();
  power_class_.clear();
  device_.clear();
  amount_.clear();
  peer_.clear();
  call_.clear();
  ids_.clear();
  parent_.clear();
  parent_begin_.assign(1, 0);
  plans_.clear();
  group_begin_.assign(1, 0);
  group_device_.clear();
  by_readiness_ = false;
}

std::shared_ptr<const ExecutionGraph> GraphBuilder::build() {
  std::shared_ptr<Graph> graph(new Graph);
  graph->num_devices = num_devices_;
  graph->by_readiness = by_readiness_;
  graph->kind = kind_;
  graph->stream = stream_;
  graph->power_class = power_class_;
  graph->device = device_;
  graph->amount = amount_;
  graph->peer = peer_;
  graph->plans = plans_;
  graph->group_begin = group_begin_;
  graph->group_device = group_device_;
  graph->slot.assign(kind_.size(), kNone);
  check_ids(*graph);
  check_groups();
  check_nodes(*graph);
  for (CollectivePlan& plan : graph->plans) {
    if (!is_scheduled(plan.kind, plan.algorithm, plan.shape)) continue;
    const std::span<const DeviceId> group = graph->group(plan.group);
    if (RingPhases::covers(plan)) {
      plan.phases = std::make_shared<RingPhases>(plan, static_cast<std::uint32_t>(group.size()));
    } else {
      plan.schedule = Schedule::of(plan, group);
    }
  }
  resolve_parents(*graph);
  link_children(*graph);
  make_lanes(*graph);
  join_calls(*graph);
  join_messages(*graph);
  check_acyclic(*graph);
  return graph;
}

void GraphBuilder::check_ids(Graph& graph) const {
  if (ids_.empty()) return;
  if (ids_.size() != kind_.size()) {
    throw InvalidGraph("the graph has " + std::to_string(kind_.size()) + " nodes but " +
                       std::to_string(ids_.size()) + " ids: each node needs one");
  }
  std::vector<std::uint64_t> sorted(ids_);
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    throw InvalidGraph("node " + std::to_string(*twice) +
                       " appears twice: ids have to be unique in a graph");
  }
  graph.id = ids_;
}

void GraphBuilder::resolve_parents(Graph& graph) {
  std::unordered_map<std::uint64_t, NodeIndex> index;  // only looked up, never walked
  for (NodeIndex node = 0; node < ids_.size(); ++node) index.emplace(ids_[node], node);
  parent_index_.clear();
  resolved_begin_.assign(1, 0);
  graph.num_parents.clear();
  for (NodeIndex node = 0; node < kind_.size(); ++node) {
    const std::uint32_t first = resolved_begin_.back();
    for (std::uint32_t at = parent_begin_[node]; at < parent_begin_[node + 1]; ++at) {
      NodeIndex parent = kNone;
      if (ids_.empty()) {
        if (parent_[at] < kind_.size()) parent = static_cast<NodeIndex>(parent_[at]);
      } else if (const auto found = index.find(parent_[at]); found != index.end()) {
        parent = found->second;
      }
      if (parent == kNone) {
        throw InvalidGraph(graph.describe(node) + " depends on node " +
                           std::to_string(parent_[at]) + ", which is not in the graph");
      }
      const auto begin = parent_index_.begin() + first;
      if (std::find(begin, parent_index_.end(), parent) == parent_index_.end())
        parent_index_.push_back(parent);
    }
    resolved_begin_.push_back(static_cast<std::uint32_t>(parent_index_.size()));
    graph.num_parents.push_back(resolved_begin_.back() - first);
  }
}

void GraphBuilder::link_children(Graph& graph) {
  const std::uint32_t n = graph.num_nodes();
  graph.child_begin.assign(n + 1, 0);
  for (const NodeIndex parent : parent_index_) ++graph.child_begin[parent + 1];
  for (NodeIndex node = 0; node < n; ++node) graph.child_begin[node + 1] += graph.child_begin[node];
  graph.child.resize(parent_index_.size());
  std::vector<std::uint32_t> fill(graph.child_begin.begin(), graph.child_begin.end() - 1);
  for (NodeIndex node = 0; node < n; ++node) {
    for (std::uint32_t at = resolved_begin_[node]; at < resolved_begin_[node + 1]; ++at) {
      graph.child[fill[parent_index_[at]]++] = node;
    }
  }
}

// Lanes are numbered in the order (device, stream); inside a lane the nodes keep their order.
void GraphBuilder::make_lanes(Graph& graph) const {
  const std::uint32_t n = graph.num_nodes();
  std::vector<std::uint32_t> count(static_cast<std::size_t>(num_devices_) * kNumStreams, 0);
  const auto key = [&](NodeIndex node) {
    return static_cast<std::size_t>(graph.device[node]) * kNumStreams +
           static_cast<std::size_t>(graph.stream[node]);
  };
  for (NodeIndex node = 0; node < n; ++node) ++count[key(node)];
  std::vector<std::uint32_t> lane_of(count.size(), kNone);
  std::uint32_t first = 0;
  for (std::size_t k = 0; k < count.size(); ++k) {
    const auto stream = static_cast<Stream>(k % kNumStreams);
    if (count[k] == 0 || stream == Stream::kNone) continue;
    lane_of[k] = static_cast<std::uint32_t>(graph.lanes.size());
    graph.lanes.push_back({static_cast<DeviceId>(k / kNumStreams), stream, first, count[k]});
    first += count[k];
  }
  graph.lane_nodes.resize(first);
  graph.lane.resize(n);
  std::vector<std::uint32_t> filled(graph.lanes.size(), 0);
  for (NodeIndex node = 0; node < n; ++node) {
    const std::uint32_t lane = lane_of[key(node)];
    graph.lane[node] = lane;
    if (lane != kNone) {
      graph.lane_nodes[graph.lanes[lane].first + filled[lane]++] = node;
    } else if (graph.num_parents[node] == 0) {
      graph.free_roots.push_back(node);
    }
  }
}

}  // namespace astra_sim::model
