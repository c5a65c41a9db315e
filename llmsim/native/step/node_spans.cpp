#include "step/node_spans.h"

namespace llmsim {

void NodeSpans::add(std::int64_t step, const StepGraph& graph, const StepNode& node,
                    std::int32_t rank, Ps start, Ps end) {
  table_.step.push_back(step);
  table_.group.push_back(group_);
  table_.role.push_back(static_cast<std::int32_t>(node.role));
  table_.op.push_back(node.op);
  table_.execution.push_back(node.execution);
  table_.lane.push_back(node.lane);
  table_.stage.push_back(node.stream / kNumDeviceStreams % graph.stages);
  table_.rank.push_back(rank);
  table_.start_ps.push_back(start);
  table_.end_ps.push_back(end);
}

void NodeSpans::add_alone(std::int64_t step, NodeRole role, DeviceStream stream, Ps start, Ps end) {
  StepGraph graph;
  StepNode node;
  node.role = role;
  node.stream = stream_of(0, stream);
  add(step, graph, node, kAllRanks, start, end);
}

bool runs_beside_steps(const StepNode& node) {
  if (node.stream == kNoStream) return false;
  switch (static_cast<DeviceStream>(node.stream % kNumDeviceStreams)) {
    case DeviceStream::kCopyIn:
    case DeviceStream::kCopyOut:
    case DeviceStream::kPull:
    case DeviceStream::kPim:
      return true;
    default:
      return false;
  }
}

}  // namespace llmsim
