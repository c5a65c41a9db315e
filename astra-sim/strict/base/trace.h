// The nodes of an execution trace as flat arrays, ready to run: checked, dependencies as indexes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/chakra/node_fields.h"
#include "strict/base/events.h"

namespace astra_sim::strict {

enum class NodeState : std::uint8_t { kWaiting, kReady, kRunning, kDone };

struct TraceNode {
  std::uint64_t id = 0;
  Ns duration_ns = 1;
  std::int64_t bytes = 0;       // comm_size or tensor_size
  std::int64_t operations = 0;  // num_ops
  Ns issued_ns = -1;
  Ns done_ns = -1;
  std::uint32_t parents_left = 0;
  std::uint32_t first_child = 0;  // in Trace::children
  std::uint32_t child_count = 0;
  std::uint32_t peer = 0;
  std::uint32_t tag = 0;
  std::uint32_t group = 0;         // 0: all NPUs
  std::uint32_t dimensions = ~0u;  // involved_dim as bits
  chakra::NodeType type = chakra::NodeType::kInvalid;
  chakra::CollectiveKind collective = chakra::CollectiveKind::kAllReduce;
  bool on_cpu = false;
  NodeState state = NodeState::kWaiting;
};

struct Trace {
  std::vector<TraceNode> nodes;         // by ascending id within each file
  std::vector<std::uint32_t> children;  // indexes into nodes
  std::vector<std::uint32_t> first;     // per file: its first node; one more at the end
  // Custom collectives only (FieldRules::custom): the nodes as their files list them.
  std::vector<std::uint32_t> order;
};

// Appends one file to a trace. `rank` is the NPU (or the rank within a custom collective) that the
// file belongs to. Throws model::InputError naming file and node: a parent that is absent, no node
// without parents, a wrong attribute.
void load_trace(const std::string& path, std::uint32_t rank, const chakra::FieldRules& rules,
                Trace& trace);

}  // namespace astra_sim::strict
