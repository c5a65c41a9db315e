#include "formats/traces/tiers.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "formats/traces/costs.h"
#include "model/base/errors.h"
#include "model/base/input_error.h"

namespace astra_sim::traces {

using model::InputError;

namespace {

model::Tier remote(const config::MemoryConfig& memory, std::uint32_t npus) {
  using Kind = config::MemoryKind;
  model::Tier tier;
  tier.name = "remote memory";
  tier.capacity_bytes = model::kMaxBytes;
  tier.latency_ps = to_ps(static_cast<double>(memory.latency_ns), 1000, "remote-mem-latency");
  if (memory.bandwidth_bytes_per_ns > 1'000'000'000) {
    throw InputError(memory.path + ": remote-mem-bw is " +
                     std::to_string(memory.bandwidth_bytes_per_ns) +
                     "; at most 10^9 GB/s run under --rules default");
  }
  tier.read_bytes_per_s = memory.bandwidth_bytes_per_ns * 1'000'000'000;
  tier.sharing = model::TierSharing::kFifo;
  if (memory.kind == Kind::kPerNpu) {
    tier.instance_of = model::one_per_device(npus);
  } else if (memory.kind == Kind::kPool) {
    tier.instance_of = model::one_for_all(npus);
  } else {
    if (memory.nodes < (npus - 1) / memory.npus_per_node + 1) {
      throw InputError(memory.path +
                       ": num-nodes times num-npus-per-node is less than the network's " +
                       std::to_string(npus) + " NPUs");
    }
    const auto most = static_cast<std::int64_t>(npus);
    tier.instance_of =
        model::one_per_node(npus, static_cast<std::uint32_t>(std::min(memory.npus_per_node, most)));
  }
  return tier;
}

model::Tier given(const config::MemoryTier& one, std::uint32_t npus) {
  using Reach = config::TierReach;
  model::Tier tier;
  tier.name = one.name;
  tier.capacity_bytes =
      one.capacity_gb > 0 ? static_cast<model::Bytes>(one.capacity_gb * 1e9) : model::kMaxBytes;
  tier.latency_ps = to_ps(one.latency_ns, 1000, "latency_ns");
  tier.read_bytes_per_s = bytes_per_s(one.gb_per_s, "a tier's bandwidth");
  if (one.write_gb_per_s > 0)
    tier.write_bytes_per_s = bytes_per_s(one.write_gb_per_s, "a tier's bandwidth");
  tier.channels = one.channels;
  tier.sharing = one.fifo ? model::TierSharing::kFifo : model::TierSharing::kNetwork;
  tier.instance_of = one.per == Reach::kNpu    ? model::one_per_device(npus)
                     : one.per == Reach::kNode ? model::one_per_node(npus, one.npus_per_node)
                                               : model::one_for_all(npus);
  if (one.port_gb_per_s > 0) {
    tier.port_of = model::one_per_node(npus, one.npus_per_port);
    tier.port_bytes_per_s = bytes_per_s(one.port_gb_per_s, "a tier's port");
  }
  tier.held_by = one.held_by;
  return tier;
}

}  // namespace

model::BytesPerSecond bytes_per_s(double gb_per_s, const char* what) {
  const double value = std::floor(gb_per_s * 1e9 + 0.5);
  if (value < 1 || value > 1e18) {
    char text[64];
    std::snprintf(text, sizeof text, "%g", gb_per_s);
    throw InputError(std::string(what) + " is " + text +
                     " GB/s; 1 byte/s to 10^9 GB/s run under --rules default");
  }
  return static_cast<model::BytesPerSecond>(value);
}

std::shared_ptr<const model::MemorySystem> memory_of(
    const config::MemoryConfig& memory, std::shared_ptr<const model::Topology> topology) {
  const std::uint32_t npus = topology->num_devices();
  std::vector<model::Tier> tiers;
  if (memory.kind != config::MemoryKind::kNone) tiers.push_back(remote(memory, npus));
  try {
    for (const config::MemoryTier& one : memory.tiers) tiers.push_back(given(one, npus));
    return tiers.empty() ? nullptr
                         : model::MemorySystem::make(std::move(topology), std::move(tiers));
  } catch (const model::EngineError& error) {
    throw InputError(memory.path + ": " + error.what());
  }
}

std::vector<TierUse> uses_of(const model::MemorySystem& memory, const engine::Engine& engine) {
  std::vector<TierUse> out;
  const std::vector<model::LinkCounters> links = engine.link_counters();
  for (model::TierId id = 0; id < memory.tiers().size(); ++id) {
    const model::Tier& tier = memory.tiers()[id];
    for (std::uint32_t instance = 0; instance < memory.num_instances(id); ++instance) {
      TierUse use{tier.name, instance, engine.tier_counters()[memory.place(id, instance)], 0, 0};
      if (use.count.loads + use.count.stores == 0) continue;
      for (std::uint32_t channel = 0; channel < tier.channels; ++channel) {
        for (const bool store : {false, true}) {
          if (store && tier.write_bytes_per_s == 0) continue;  // the same link
          const model::LinkCounters& link = links[memory.channel(id, instance, channel, store)];
          use.bytes += link.bytes;
          model::add_up_to_end(use.busy_ps, link.busy_ps);
        }
      }
      out.push_back(std::move(use));
    }
  }
  return out;
}

}  // namespace astra_sim::traces
