// When nodes of steps ran whose times a step alone does not tell: collectives, hand-overs, copies
// and rows over links that others use, copies and launches that ran ahead of their step, what the
// power limit added, and where members and stages began to work on one.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "base/columns.h"
#include "step/step_graph.h"

namespace llmsim {

// All ranks of a stage have run the node at the same time.
inline constexpr std::int32_t kAllRanks = -1;

// By group, in the order of their ends. `step` counts the steps of the group's executor from 0,
// dummies too; `role` is a NodeRole, and `op` is of the group's program. A start of kNever stands
// for the time when all was there that the node had waited for.
struct NodeSpanTable {
  std::vector<std::int64_t> step;
  std::vector<std::int32_t> group, role, op, execution, lane, stage, rank;
  std::vector<Ps> start_ps, end_ps;

  static constexpr auto columns() {
    return std::tuple{
        Column{"step", &NodeSpanTable::step},           Column{"group", &NodeSpanTable::group},
        Column{"role", &NodeSpanTable::role},           Column{"op", &NodeSpanTable::op},
        Column{"execution", &NodeSpanTable::execution}, Column{"lane", &NodeSpanTable::lane},
        Column{"stage", &NodeSpanTable::stage},         Column{"rank", &NodeSpanTable::rank},
        Column{"start_ps", &NodeSpanTable::start_ps},   Column{"end_ps", &NodeSpanTable::end_ps},
    };
  }
};

// The spans of one group.
class NodeSpans {
 public:
  explicit NodeSpans(std::int32_t group) : group_(group) {}

  const NodeSpanTable& table() const { return table_; }
  // The node, which is on a stream, has run on a rank of its stage, or on kAllRanks.
  void add(std::int64_t step, const StepGraph& graph, const StepNode& node, std::int32_t rank,
           Ps start, Ps end);
  // The same of a group alone in one stage, on one of its streams.
  void add_alone(std::int64_t step, NodeRole role, DeviceStream stream, Ps start, Ps end);

 private:
  std::int32_t group_;
  NodeSpanTable table_;
};

// A member, or a stage of one, begins to work on the step.
inline bool begins_unit(const StepNode& node) {
  return node.role == NodeRole::kBegin || node.role == NodeRole::kReceive;
}
// The host works on the step, maybe before its devices do.
inline bool launches(const StepNode& node) {
  return node.role == NodeRole::kPrepare || node.role == NodeRole::kLaunch;
}
// What other steps decide of every step: where it begins, when the host works on it, and what the
// power limit adds.
inline bool follows_others(const StepNode& node) {
  return begins_unit(node) || launches(node) || node.role == NodeRole::kSlowed;
}
// Whether the node's stream carries what may run ahead of its step, or behind it: copies, and what
// the memory that computes does.
bool runs_beside_steps(const StepNode& node);

}  // namespace llmsim
