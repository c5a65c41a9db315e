// The traces of all NPUs as the engine will see them: every node with its fields, in an order that
// dependencies allow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/chakra/node_fields.h"

namespace astra_sim::traces {

inline constexpr std::uint32_t kNobody = 0xffffffffU;

// Nodes of NPU i are nodes[first[i] .. first[i + 1]): parents before children, the lowest number
// first. Parents are indexes into nodes.
struct Workload {
  std::vector<chakra::NodeFields> nodes;
  std::vector<std::uint32_t> first{0};
  std::vector<std::uint32_t> parent_begin{0};
  std::vector<std::uint32_t> parents;

  std::uint32_t npus() const { return static_cast<std::uint32_t>(first.size() - 1); }
  std::uint32_t npu_of(std::uint32_t node) const;
  std::string name(std::uint32_t node) const;  // "NPU 3, node 7"
};

// Appends one file. Throws model::InputError naming file and node: repeated numbers, absent
// parents, a cycle, a wrong attribute. A file without nodes is an NPU with nothing to do.
void load_file(const std::string& path, std::uint32_t rank, const chakra::FieldRules& rules,
               Workload& workload);

// PREFIX.<npu>.et for every NPU.
Workload load_workload(const std::string& prefix, const chakra::FieldRules& rules);

}  // namespace astra_sim::traces
