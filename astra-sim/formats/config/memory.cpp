#include "formats/config/memory.h"

#include <array>

#include "formats/text/fields.h"

namespace astra_sim::config {

MemoryConfig read_memory(const std::string& path) {
  constexpr std::array<std::string_view, 4> kinds = {"NO_MEMORY_EXPANSION",
                                                     "PER_NPU_MEMORY_EXPANSION",
                                                     "PER_NODE_MEMORY_EXPANSION", "MEMORY_POOL"};
  constexpr std::array<std::string_view, 6> known = {"memory-type",       "remote-mem-latency",
                                                     "remote-mem-bw",     "num-nodes",
                                                     "num-npus-per-node", "tiers"};
  MemoryConfig config;
  config.path = path;
  const Json json = read_json(path);
  const Fields fields(path, json);
  fields.note_unknown(known, config.notes);
  const auto kind = fields.choice("memory-type", kinds);
  if (const Json* tiers = json.find("tiers")) {
    if (kind) fields.fail("tiers", "and memory-type do not go together: a remote memory is a tier");
    config.tiers = read_tiers(path, *tiers);
    return config;
  }
  if (!kind)
    fields.fail("memory-type",
                "is missing; NO_MEMORY_EXPANSION says that there is no remote memory");
  config.kind = static_cast<MemoryKind>(*kind);
  if (config.kind == MemoryKind::kNone) return config;
  const auto latency = fields.integer("remote-mem-latency", 0);
  const auto bandwidth = fields.integer("remote-mem-bw", 1);
  if (!latency) fields.fail("remote-mem-latency", "is missing (ns)");
  if (!bandwidth) fields.fail("remote-mem-bw", "is missing (GB/s)");
  config.latency_ns = *latency;
  config.bandwidth_bytes_per_ns = *bandwidth;
  if (config.kind == MemoryKind::kPerNode) {
    const auto nodes = fields.integer("num-nodes", 1);
    const auto npus = fields.integer("num-npus-per-node", 1);
    if (!nodes) fields.fail("num-nodes", "is missing");
    if (!npus) fields.fail("num-npus-per-node", "is missing");
    config.nodes = *nodes;
    config.npus_per_node = *npus;
  }
  return config;
}

}  // namespace astra_sim::config
