// Joins what belongs together across devices: the ranks of a collective call, and sends with their
// recvs.
#include <algorithm>
#include <string>

#include "model/base/errors.h"
#include "model/graph/graph_builder.h"

namespace astra_sim::model {

void GraphBuilder::join_calls(Graph& graph) const {
  std::vector<NodeIndex> nodes;
  for (NodeIndex node = 0; node < graph.num_nodes(); ++node) {
    if (graph.kind[node] == NodeKind::kCollective) nodes.push_back(node);
    const bool memory =
        graph.kind[node] == NodeKind::kMemoryLoad || graph.kind[node] == NodeKind::kMemoryStore;
    if (memory && graph.memory_node == kNone) graph.memory_node = node;
  }
  std::stable_sort(nodes.begin(), nodes.end(),
                   [&](NodeIndex a, NodeIndex b) { return call_[a] < call_[b]; });
  std::vector<std::uint32_t> node_of(num_devices_, kNone);
  for (std::size_t first = 0; first < nodes.size();) {
    std::size_t last = first;
    while (last < nodes.size() && call_[nodes[last]] == call_[nodes[first]]) ++last;
    join_call(graph, {nodes.data() + first, last - first}, node_of);
    first = last;
  }
}

// `node_of` is scratch by device, all kNone between calls.
void GraphBuilder::join_call(Graph& graph, std::span<const NodeIndex> nodes,
                             std::vector<std::uint32_t>& node_of) const {
  const NodeIndex head = nodes[0];
  const PlanId plan = graph.peer[head];
  const std::string name = "collective call " + std::to_string(call_[head]);
  for (const NodeIndex node : nodes) {
    if (graph.peer[node] != plan || graph.amount[node] != graph.amount[head]) {
      throw InvalidGraph(graph.describe(node) + " disagrees with " + graph.describe(head) +
                         " about the plan or size of " + name +
                         ": all ranks of a call have to be equal");
    }
    if (node_of[graph.device[node]] != kNone) {
      throw InvalidGraph(graph.describe(node) + " takes part in " + name +
                         " twice: each rank calls once");
    }
    node_of[graph.device[node]] = node;
  }
  const std::span<const DeviceId> members = graph.group(graph.plans[plan].group);
  const auto call = static_cast<std::uint32_t>(graph.calls.size());
  const auto first = static_cast<std::uint32_t>(graph.rank_slots.size());
  const auto n = static_cast<std::uint32_t>(members.size());
  graph.calls.push_back({plan, first, n});
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    const NodeIndex node = node_of[members[rank]];
    if (node == kNone) {
      throw InvalidGraph(name + " (" + graph.describe(head) + ") lacks its rank on device " +
                         std::to_string(members[rank]) + ": every device of group " +
                         std::to_string(graph.plans[plan].group) + " has to call it");
    }
    graph.slot[node] = first + rank;
    node_of[members[rank]] = kNone;
    graph.rank_slots.push_back({node, call, rank, members[rank], members[(rank + 1) % n]});
  }
  for (const NodeIndex node : nodes) {
    if (graph.slot[node] == kNone) {
      throw InvalidGraph(graph.describe(node) + " takes part in " + name +
                         ", but its device is not in group " +
                         std::to_string(graph.plans[plan].group));
    }
  }
}

void GraphBuilder::join_messages(Graph& graph) const {
  std::vector<NodeIndex> nodes;
  for (NodeIndex node = 0; node < graph.num_nodes(); ++node) {
    if (graph.kind[node] == NodeKind::kRecv) graph.has_recv = true;
    if (graph.kind[node] == NodeKind::kSend || graph.kind[node] == NodeKind::kRecv)
      nodes.push_back(node);
  }
  const auto before = [&](NodeIndex a, NodeIndex b) {
    return call_[a] != call_[b] ? call_[a] < call_[b] : graph.kind[a] < graph.kind[b];
  };
  std::stable_sort(nodes.begin(), nodes.end(), before);
  for (std::size_t at = 0; at < nodes.size(); at += 2) {
    const NodeIndex send = nodes[at];
    const NodeIndex recv = at + 1 < nodes.size() ? nodes[at + 1] : send;
    const bool pair = graph.kind[send] == NodeKind::kSend && graph.kind[recv] == NodeKind::kRecv &&
                      call_[send] == call_[recv] && graph.peer[send] == graph.device[recv] &&
                      graph.peer[recv] == graph.device[send] &&
                      graph.amount[send] == graph.amount[recv];
    if (!pair) {
      throw InvalidGraph(
          graph.describe(send) + " has no partner: message " + std::to_string(call_[send]) +
          " needs one send and one recv that name each other's device and the same size");
    }
    graph.slot[send] = recv;
    graph.slot[recv] = send;
  }
}

}  // namespace astra_sim::model
