// Checks of memory tiers, their links and the ways to them.
#include "model/memory/memory.h"

#include <algorithm>

#include "model/base/errors.h"

namespace astra_sim::model {

namespace {

constexpr std::size_t kMaxChannels = std::size_t{1} << 27;

// One more than the largest number in use.
std::uint32_t count_of(std::span<const std::uint32_t> numbers) {
  std::uint32_t count = 0;
  for (const std::uint32_t number : numbers) {
    if (number != kNone) count = std::max(count, number + 1);
  }
  return count;
}

}  // namespace

std::vector<std::uint32_t> one_per_device(std::uint32_t num_devices) {
  return one_per_node(num_devices, 1);
}

std::vector<std::uint32_t> one_per_node(std::uint32_t num_devices, std::uint32_t devices_per_node) {
  if (devices_per_node == 0)
    throw InvalidTopology("a node of memory users needs at least one device");
  std::vector<std::uint32_t> out(num_devices);
  for (std::uint32_t device = 0; device < num_devices; ++device)
    out[device] = device / devices_per_node;
  return out;
}

std::vector<std::uint32_t> one_for_all(std::uint32_t num_devices) {
  return std::vector<std::uint32_t>(num_devices, 0);
}

std::shared_ptr<const MemorySystem> MemorySystem::make(std::shared_ptr<const Topology> topology,
                                                       std::vector<Tier> tiers) {
  std::shared_ptr<MemorySystem> out(new MemorySystem);
  out->topology_ = std::move(topology);
  for (const Tier& tier : tiers) {
    out->check(tier);
    out->lay(tier);
  }
  out->tiers_ = std::move(tiers);
  return out;
}

void MemorySystem::check(const Tier& tier) const {
  const auto complain = [&](const std::string& what) {
    throw InvalidTopology("memory tier '" + tier.name + "' " + what);
  };
  const std::uint32_t devices = topology_->num_devices();
  const auto in_range = [](std::int64_t value, std::int64_t low, std::int64_t high) {
    return value >= low && value <= high;
  };
  if (!in_range(tier.capacity_bytes, 0, kMaxBytes)) {
    complain("has a capacity of " + std::to_string(tier.capacity_bytes) +
             " bytes: 0 to 2^60 is possible");
  }
  if (!in_range(tier.latency_ps, 0, kMaxSpan)) {
    complain("has a latency of " + std::to_string(tier.latency_ps) + " ps: 0 to 2^60 is possible");
  }
  if (!in_range(tier.read_bytes_per_s, 1, kMaxBytes) ||
      !in_range(tier.write_bytes_per_s, 0, kMaxBytes)) {
    complain("reads " + std::to_string(tier.read_bytes_per_s) + " and writes " +
             std::to_string(tier.write_bytes_per_s) +
             " bytes/s: at least 1 is needed (writing 0: shared)");
  }
  if (tier.channels < 1 || tier.channels > 65536) {
    complain("has " + std::to_string(tier.channels) + " channels: 1 to 65,536 are possible");
  }
  if (tier.instance_of.size() != devices) {
    complain("says for " + std::to_string(tier.instance_of.size()) +
             " devices which instance they use, but the " + topology_->describe() + " has " +
             std::to_string(devices));
  }
  if (!tier.port_of.empty() && (tier.port_of.size() != devices || tier.port_bytes_per_s < 1 ||
                                tier.port_bytes_per_s > kMaxBytes)) {
    complain("has ports of " + std::to_string(tier.port_bytes_per_s) + " bytes/s for " +
             std::to_string(tier.port_of.size()) +
             " devices: at least 1 byte/s, and a port number for each of " +
             std::to_string(devices) + " devices are needed");
  }
  const std::uint32_t instances = count_of(tier.instance_of);
  if (instances == 0) complain("is reached by no device");
  if (instances > devices || count_of(tier.port_of) > devices) {
    complain("has more instances or ports than there are devices: number them from 0 on");
  }
  if (!tier.held_by.empty()) {
    const bool known =
        std::all_of(tier.held_by.begin(), tier.held_by.end(), [&](auto d) { return d < devices; });
    if (tier.held_by.size() != instances || !known) {
      complain("is held by " + std::to_string(tier.held_by.size()) +
               " devices: one of the topology for each of " + std::to_string(instances) +
               " instances is needed");
    }
  }
}

// Per instance and channel a link for reads, and one for writes where they do not share it; then
// two per port.
void MemorySystem::lay(const Tier& tier) {
  const auto base = static_cast<LinkId>(topology_->links().size());
  const std::uint32_t instances = count_of(tier.instance_of);
  const std::uint32_t ports = count_of(tier.port_of);
  const std::size_t wanted =
      links_.size() + std::size_t{instances} * tier.channels * 2 + std::size_t{ports} * 2;
  if (wanted > kMaxChannels)
    throw InvalidTopology("memory tier '" + tier.name + "' has more than 2^27 channels");
  places_.push_back({instances, num_places_, base + static_cast<LinkId>(links_.size()), kNone});
  num_places_ += instances;
  for (std::uint32_t i = 0; i < instances * tier.channels; ++i) {
    links_.push_back({kNone, kNone, tier.read_bytes_per_s, tier.latency_ps});
    if (tier.write_bytes_per_s != 0)
      links_.push_back({kNone, kNone, tier.write_bytes_per_s, tier.latency_ps});
  }
  places_.back().first_port = base + static_cast<LinkId>(links_.size());
  for (std::uint32_t i = 0; i < 2 * ports; ++i)
    links_.push_back({kNone, kNone, tier.port_bytes_per_s, 0});
}

LinkId MemorySystem::channel(TierId tier, std::uint32_t instance, std::uint32_t channel,
                             bool store) const {
  const std::uint32_t at = instance * tiers_[tier].channels + channel;
  const bool apart = tiers_[tier].write_bytes_per_s != 0;
  return places_[tier].first_channel + (apart ? 2 * at + (store ? 1 : 0) : at);
}

void MemorySystem::route(TierId id, DeviceId device, std::uint32_t channel_number, bool store,
                         std::vector<LinkId>& out) const {
  const Tier& tier = tiers_[id];
  const std::uint32_t instance = tier.instance_of[device];
  const LinkId server = channel(id, instance, channel_number, store);
  const bool has_port = !tier.port_of.empty() && tier.port_of[device] != kNone;
  const LinkId port =
      has_port ? places_[id].first_port + 2 * tier.port_of[device] + (store ? 1 : 0) : kNone;
  const DeviceId holder = tier.held_by.empty() ? device : tier.held_by[instance];
  if (!store) out.push_back(server);
  if (store && has_port) out.push_back(port);
  topology_->route(store ? device : holder, store ? holder : device, out);
  if (!store && has_port) out.push_back(port);
  if (store) out.push_back(server);
}

}  // namespace astra_sim::model
