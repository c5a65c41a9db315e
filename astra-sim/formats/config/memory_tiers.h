// Memory tiers of our own in the remote-memory file: kinds of memory beside each other, with
// channels and ports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/text/json.h"

namespace astra_sim::config {

// Who shares an instance.
enum class TierReach : std::uint8_t { kNpu, kNode, kAll };

// Bandwidths in GB/s of 10^9 bytes; GB likewise.
struct MemoryTier {
  std::string name;
  TierReach per = TierReach::kNpu;
  std::uint32_t npus_per_node = 0;
  double gb_per_s = 0;
  double write_gb_per_s = 0;  // 0: reads and writes share the bandwidth
  double latency_ns = 0;
  double capacity_gb = 0;  // 0: not given
  std::uint32_t channels = 1;
  bool fifo = false;
  double port_gb_per_s = 0;  // 0: none
  std::uint32_t npus_per_port = 0;
  std::vector<std::uint32_t> held_by;  // NPU of each instance, where it is reached over the network
};

// The list `tiers`. Throws model::InputError naming file, line, column and field. Unknown fields
// are errors: the format is ours.
std::vector<MemoryTier> read_tiers(const std::string& path, const Json& tiers);

}  // namespace astra_sim::config
