#include "strict/loop/waiting.h"

#include <algorithm>
#include <unordered_map>

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

// Collectives of all NPUs that wait with different numbers: upstream counts an NPU's streams in
// groups too, so their messages never match.
class Disagreements {
 public:
  Disagreements(const Trace& trace, const WaitingStreams& streams) : trace_(trace) {
    if (streams.empty()) return;
    const auto number = [](const auto& a, const auto& b) { return a.second < b.second; };
    lowest_ = *std::min_element(streams.begin(), streams.end(), number);
    highest_ = *std::max_element(streams.begin(), streams.end(), number);
    of_node_.insert(streams.begin(), streams.end());
  }

  // "" where the node waits for another reason.
  std::string reason(std::uint32_t node) const {
    if (lowest_.second == highest_.second) return "";
    const auto found = of_node_.find(node);
    if (found == of_node_.end()) return "";
    const auto& other = found->second == lowest_.second ? highest_ : lowest_;
    return ": it follows " + std::to_string(found->second) +
           " chunks of collectives on its NPU and " + std::to_string(other.second) + " on NPU " +
           std::to_string(npu_of(other.first)) +
           ", and ASTRA-sim, which counts those of groups too, waits for ever; --rules default "
           "runs "
           "it";
  }

 private:
  std::size_t npu_of(std::uint32_t node) const {
    const auto after = std::upper_bound(trace_.first.begin(), trace_.first.end(), node);
    return static_cast<std::size_t>(after - trace_.first.begin()) - 1;
  }
  const Trace& trace_;
  std::unordered_map<std::uint32_t, std::uint64_t> of_node_;
  std::pair<std::uint32_t, std::uint64_t> lowest_{}, highest_{};
};

}  // namespace

std::uint64_t explain_waiting(const Trace& trace, const WaitingStreams& streams,
                              std::vector<std::string>& sentences) {
  std::uint64_t left = 0;
  for (const TraceNode& node : trace.nodes) left += node.state != NodeState::kDone ? 1 : 0;
  if (left == 0) return 0;
  const Disagreements disagreements(trace, streams);
  for (const NodeState state : {NodeState::kRunning, NodeState::kReady, NodeState::kWaiting}) {
    for (std::size_t npu = 0; npu + 1 < trace.first.size(); ++npu) {
      for (std::uint32_t at = trace.first[npu]; at < trace.first[npu + 1]; ++at) {
        const TraceNode& node = trace.nodes[at];
        if (node.state != state || sentences.size() >= kSentences) continue;
        sentences.push_back("NPU " + std::to_string(npu) + ": node " + std::to_string(node.id) +
                            " " + reason(node) + disagreements.reason(at));
      }
    }
  }
  return left;
}

}  // namespace astra_sim::strict
