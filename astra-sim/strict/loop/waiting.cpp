#include "strict/loop/waiting.h"

namespace astra_sim::strict {

namespace {

constexpr std::size_t kSentences = 20;

std::string collective(const TraceNode& node) {
  return std::string(chakra::kCollectiveNames[static_cast<std::size_t>(node.collective)]) + " of " +
         std::to_string(node.bytes) + " bytes";
}

std::string reason(const TraceNode& node) {
  using chakra::NodeType;
  switch (node.state) {
    case NodeState::kReady:
      return "is ready, but nothing ends any more on its NPU that would issue it (a node ended at "
             "once, or its "
             "slot is held)";
    case NodeState::kWaiting:
      return "waits for " + std::to_string(node.parents_left) + " node(s) that never end";
    default:
      break;
  }
  switch (node.type) {
    case NodeType::kCommRecv:
      return "waits for " + std::to_string(node.bytes) + " bytes with tag " +
             std::to_string(node.tag) + " from NPU " + std::to_string(node.peer) +
             ", which are never sent";
    case NodeType::kCommSend:
      return "waits to send " + std::to_string(node.bytes) + " bytes with tag " +
             std::to_string(node.tag) + " to NPU " + std::to_string(node.peer);
    case NodeType::kCommColl:
      return "waits in " + collective(node) +
             (node.group == 0 ? "" : " of group " + std::to_string(node.group)) +
             " for messages of other NPUs, which never come";
    default:
      return "never ends";
  }
}

}  // namespace

std::uint64_t explain_waiting(const Trace& trace, std::vector<std::string>& sentences) {
  std::uint64_t left = 0;
  for (const TraceNode& node : trace.nodes) left += node.state != NodeState::kDone ? 1 : 0;
  if (left == 0) return 0;
  for (const NodeState state : {NodeState::kRunning, NodeState::kReady, NodeState::kWaiting}) {
    for (std::size_t npu = 0; npu + 1 < trace.first.size(); ++npu) {
      for (std::uint32_t at = trace.first[npu]; at < trace.first[npu + 1]; ++at) {
        const TraceNode& node = trace.nodes[at];
        if (node.state != state || sentences.size() >= kSentences) continue;
        sentences.push_back("NPU " + std::to_string(npu) + ": node " + std::to_string(node.id) +
                            " " + reason(node));
      }
    }
  }
  return left;
}

}  // namespace astra_sim::strict
