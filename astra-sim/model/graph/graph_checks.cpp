// Checks of a graph under construction: columns in range, groups sound, no cycle.
#include <algorithm>
#include <string>

#include "model/base/errors.h"
#include "model/collective/schedule.h"
#include "model/graph/graph_builder.h"

namespace astra_sim::model {

void GraphBuilder::check_groups() const {
  for (GroupId id = 0; id + 1 < group_begin_.size(); ++id) {
    const std::string name = "group " + std::to_string(id);
    std::vector<DeviceId> members(group_device_.begin() + group_begin_[id],
                                  group_device_.begin() + group_begin_[id + 1]);
    if (members.empty()) throw InvalidGraph(name + " has no devices: it needs at least one");
    std::sort(members.begin(), members.end());
    if (members.back() >= num_devices_) {
      throw InvalidGraph(name + " contains device " + std::to_string(members.back()) +
                         ", but the graph has " + std::to_string(num_devices_) + " devices");
    }
    const auto twice = std::adjacent_find(members.begin(), members.end());
    if (twice != members.end()) {
      throw InvalidGraph(name + " contains device " + std::to_string(*twice) + " twice");
    }
  }
  for (PlanId id = 0; id < plans_.size(); ++id) {
    const std::string name = "plan " + std::to_string(id);
    if (plans_[id].group + std::size_t{1} >= group_begin_.size()) {
      throw InvalidGraph(name + " refers to group " + std::to_string(plans_[id].group) +
                         ", which does not exist");
    }
    if ((plans_[id].algorithm == Algorithm::kMeasured) != (plans_[id].table != nullptr)) {
      throw InvalidGraph(
          name + " is " + name_of(plans_[id].algorithm) +
          ": a table of durations is needed for measured collectives, and for no other");
    }
    const std::uint32_t ranks = group_begin_[plans_[id].group + 1] - group_begin_[plans_[id].group];
    if (is_scheduled(plans_[id].kind, plans_[id].algorithm, plans_[id].shape)) {
      try {
        Schedule::check(plans_[id], ranks);
      } catch (const InvalidTopology& error) {
        throw InvalidGraph(name + ": " + error.what());
      }
    }
  }
}

void GraphBuilder::check_nodes(const Graph& graph) const {
  const auto complain = [&](NodeIndex node, const std::string& what) {
    throw InvalidGraph(graph.describe(node) + " " + what);
  };
  for (NodeIndex node = 0; node < graph.num_nodes(); ++node) {
    if (static_cast<unsigned>(graph.kind[node]) > static_cast<unsigned>(NodeKind::kMemoryStore)) {
      complain(node, "has kind number " + std::to_string(static_cast<unsigned>(graph.kind[node])) +
                         ": unknown");
    }
    if (static_cast<std::uint32_t>(graph.stream[node]) >= kNumStreams) {
      complain(node, "is on stream number " +
                         std::to_string(static_cast<unsigned>(graph.stream[node])) +
                         ": there are " + std::to_string(kNumStreams));
    }
    if (graph.power_class[node] >= kNumPowerClasses) {
      complain(node, "has power class " + std::to_string(graph.power_class[node]) + ": there are " +
                         std::to_string(kNumPowerClasses));
    }
    if (graph.device[node] >= num_devices_) {
      complain(node,
               "is on a device that does not exist: the graph has " + std::to_string(num_devices_));
    }
    const std::int64_t limit = graph.kind[node] == NodeKind::kCompute ? kMaxSpan : kMaxBytes;
    if (graph.amount[node] < 0 || graph.amount[node] > limit) {
      complain(node, "has amount " + std::to_string(graph.amount[node]) +
                         " (ps or bytes): 0 to 2^60 is possible");
    }
    const bool to_device = graph.kind[node] == NodeKind::kTransfer ||
                           graph.kind[node] == NodeKind::kSend ||
                           graph.kind[node] == NodeKind::kRecv;
    if (to_device && (graph.peer[node] >= num_devices_ || graph.peer[node] == graph.device[node])) {
      complain(node, "names device " + std::to_string(graph.peer[node]) +
                         " as the other end: it has to be another of the graph's " +
                         std::to_string(num_devices_) + " devices");
    }
    if (graph.kind[node] == NodeKind::kCollective && graph.peer[node] >= plans_.size()) {
      complain(node,
               "refers to plan " + std::to_string(graph.peer[node]) + ", which does not exist");
    }
  }
}

namespace {

// The order that dependencies and streams impose, as "what each node waits for".
struct Order {
  const ExecutionGraph& graph;
  std::span<const NodeIndex> parents;
  std::span<const std::uint32_t> begin;
  std::vector<NodeIndex> before;  // the previous node of the same stream, or kNone
  std::vector<bool> done;

  NodeIndex open_parent(NodeIndex node) const {
    for (std::uint32_t at = begin[node]; at < begin[node + 1]; ++at) {
      if (!done[parents[at]]) return parents[at];
    }
    return before[node] != kNone && !done[before[node]] ? before[node] : kNone;
  }

  // Walking to open parents from a node that cannot run has to come back to a node seen before.
  [[noreturn]] void name_cycle(NodeIndex node) const {
    std::vector<bool> seen(done.size(), false);
    for (; !seen[node]; node = open_parent(node)) seen[node] = true;
    std::string path = graph.describe(node);
    std::uint32_t shown = 0;
    for (NodeIndex at = open_parent(node); shown < 8; at = open_parent(at), ++shown) {
      path += " waits for " + graph.describe(at);
      if (at == node) break;
    }
    throw InvalidGraph("the graph has a cycle: " + path + (shown == 8 ? " and so on" : "") +
                       " (nodes of one stream of a device run in order)");
  }
};

}  // namespace

void GraphBuilder::check_acyclic(const Graph& graph) const {
  const std::uint32_t n = graph.num_nodes();
  Order order{graph, parent_index_, resolved_begin_, std::vector<NodeIndex>(n, kNone),
              std::vector<bool>(n, false)};
  std::vector<NodeIndex> after(n, kNone);
  std::vector<std::uint32_t> open(graph.num_parents);
  for (const Lane& lane : graph.lanes) {
    for (std::uint32_t at = lane.first + 1; !graph.by_readiness && at < lane.first + lane.count;
         ++at) {
      order.before[graph.lane_nodes[at]] = graph.lane_nodes[at - 1];
      after[graph.lane_nodes[at - 1]] = graph.lane_nodes[at];
      ++open[graph.lane_nodes[at]];
    }
  }
  std::vector<NodeIndex> ready;
  for (NodeIndex node = 0; node < n; ++node) {
    if (open[node] == 0) ready.push_back(node);
  }
  std::uint32_t count = 0;
  while (!ready.empty()) {
    const NodeIndex node = ready.back();
    ready.pop_back();
    order.done[node] = true;
    ++count;
    for (const NodeIndex next : graph.children(node)) {
      if (--open[next] == 0) ready.push_back(next);
    }
    if (after[node] != kNone && --open[after[node]] == 0) ready.push_back(after[node]);
  }
  if (count == n) return;
  const auto stuck = std::find(order.done.begin(), order.done.end(), false);
  order.name_cycle(static_cast<NodeIndex>(stuck - order.done.begin()));
}

}  // namespace astra_sim::model
