// The remote-memory file (JSON): who shares which memory server, and what an access costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/config/memory_tiers.h"

namespace astra_sim::config {

enum class MemoryKind : std::uint8_t { kNone, kPerNpu, kPerNode, kPool };

struct MemoryConfig {
  MemoryKind kind = MemoryKind::kNone;
  std::int64_t latency_ns = 0;
  std::int64_t bandwidth_bytes_per_ns = 0;
  std::int64_t nodes = 0;          // per_node
  std::int64_t npus_per_node = 0;  // per_node
  std::vector<MemoryTier> tiers;   // of our own, instead of a remote memory; default rules only
  std::string path;
  std::vector<std::string> notes;
};

// Throws model::InputError naming file, place and field.
MemoryConfig read_memory(const std::string& path);

}  // namespace astra_sim::config
