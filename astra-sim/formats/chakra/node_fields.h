// What executors read of a node: its type and the attributes that matter, with their types and
// ranges checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/chakra/node.h"
#include "model/graph/graph.h"

namespace astra_sim::chakra {

struct NodeFields {
  std::uint64_t id = 0;
  std::uint64_t duration_micros = 0;
  std::int64_t duration_ps = -1;  // an attribute of ours, finer than duration_micros; -1: not given
  std::int64_t bytes = 0;         // comm_size or tensor_size
  std::int64_t operations = 0;    // num_ops
  std::uint32_t peer = 0;
  std::uint32_t tag = 0;
  std::uint32_t group = 0;         // 0: all NPUs
  std::uint32_t dimensions = ~0u;  // involved_dim as bits
  std::uint32_t root = 0;          // root_rank: its place in the group
  std::uint32_t tier = 0;  // memory_tier, an attribute of ours: its place in the memory file
  model::Stream stream =
      model::Stream::kNone;  // engine_stream, an attribute of ours; none: not given
  NodeType type = NodeType::kInvalid;
  CollectiveKind collective = CollectiveKind::kAllReduce;
  bool on_cpu = false;
};

// What the rules need of a node; the rest of its attributes may be missing or of any type.
struct FieldRules {
  bool upstream =
      true;  // only what ASTRA-sim runs: five collectives, messages of one byte at least
  bool replay_only = false;  // durations only
  bool roofline = false;
  bool any_rank = false;  // the file's NPU is not known
  bool custom =
      false;  // a custom collective: peers are ranks, and only sends, receives and compute
  std::uint32_t npus = 0;                           // peers are below it
  const std::vector<std::string>* tiers = nullptr;  // names that memory_tier may have; null: any
};

// `rank` is the NPU (or the rank within a custom collective) that the file at `path` belongs to.
// Throws model::InputError naming file, node and attribute.
NodeFields read_fields(const Node& node, const std::string& path, std::uint32_t rank,
                       const FieldRules& rules);

// `path: node 7 (COMP "name"): `, for messages.
std::string place_of(const Node& node, const std::string& path);

}  // namespace astra_sim::chakra
