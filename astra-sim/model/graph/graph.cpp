// Names of node kinds and streams, and how messages refer to a node.
#include "model/graph/graph.h"

namespace astra_sim::model {

const char* name_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::kCompute:
      return "compute";
    case NodeKind::kCollective:
      return "collective";
    case NodeKind::kTransfer:
      return "transfer";
    case NodeKind::kSend:
      return "send";
    case NodeKind::kRecv:
      return "recv";
    case NodeKind::kMemoryLoad:
      return "memory load";
    case NodeKind::kMemoryStore:
      return "memory store";
  }
  return "unknown";
}

const char* name_of(Stream stream) {
  switch (stream) {
    case Stream::kCompute:
      return "compute";
    case Stream::kComm:
      return "comm";
    case Stream::kCopyIn:
      return "copy_in";
    case Stream::kCopyOut:
      return "copy_out";
    case Stream::kPim:
      return "pim";
    case Stream::kHost:
      return "host";
    case Stream::kNone:
      return "none";
  }
  return "unknown";
}

std::string ExecutionGraph::describe(NodeIndex node) const {
  const std::uint64_t number = id.empty() ? node : id[node];
  return "node " + std::to_string(number) + " (" + name_of(kind[node]) + " on device " +
         std::to_string(device[node]) + ")";
}

}  // namespace astra_sim::model
