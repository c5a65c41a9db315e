// Memory tiers: what devices load from and store to besides each other; immutable, shared by
// engines.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/base/types.h"
#include "model/topology/topology.h"

namespace astra_sim::model {

using TierId = std::uint32_t;

// How accesses to one instance of a tier meet. network: as messages do on a link of the engine's
// network (FIFO on a congestion-aware one, max-min fair on a fair-share one, not at all on a
// congestion-unaware one). fifo: one access at a time on each channel, in the order in which they
// come, on every network.
enum class TierSharing : std::uint8_t { kNetwork, kFifo };

// A kind of memory: device HBM, host DRAM, a CXL pool, SSDs, a remote store. Each device that can
// reach it uses one of its instances. An access takes one channel: the one with the fewest accesses
// at that time, the lowest when tied.
struct Tier {
  std::string name;
  Bytes capacity_bytes = 0;              // of each instance
  Ps latency_ps = 0;                     // of each access, after its last byte
  BytesPerSecond read_bytes_per_s = 0;   // of each channel
  BytesPerSecond write_bytes_per_s = 0;  // 0: reads and writes share a channel's bandwidth
  std::uint32_t channels = 1;
  TierSharing sharing = TierSharing::kNetwork;
  std::vector<std::uint32_t> instance_of;  // by device; kNone: cannot reach it
  // The way to the tier, full duplex and shared by the devices with equal numbers (the CXL or PCIe
  // port of a node).
  std::vector<std::uint32_t> port_of;  // by device; empty: none
  BytesPerSecond port_bytes_per_s = 0;
  // By instance: the device of the topology that holds it; other devices' accesses cross the
  // network. Empty: none.
  std::vector<DeviceId> held_by;
};

// Values for instance_of and port_of.
std::vector<std::uint32_t> one_per_device(std::uint32_t num_devices);
std::vector<std::uint32_t> one_per_node(std::uint32_t num_devices, std::uint32_t devices_per_node);
std::vector<std::uint32_t> one_for_all(std::uint32_t num_devices);

// The tiers of one topology. Their channels and ports are links, numbered after those of the
// topology.
class MemorySystem {
 public:
  // Throws InvalidTopology naming the tier and the field.
  static std::shared_ptr<const MemorySystem> make(std::shared_ptr<const Topology> topology,
                                                  std::vector<Tier> tiers);

  std::span<const Tier> tiers() const { return tiers_; }
  const Topology& topology() const { return *topology_; }
  std::span<const Link> links() const {
    return links_;
  }  // the first has number topology().links().size()
  std::uint32_t num_instances(TierId tier) const { return places_[tier].instances; }
  // Of all instances of all tiers: a number for each.
  std::uint32_t place(TierId tier, std::uint32_t instance) const {
    return places_[tier].first_place + instance;
  }
  std::uint32_t num_places() const { return num_places_; }
  LinkId channel(TierId tier, std::uint32_t instance, std::uint32_t channel, bool store) const;
  // Appends the links of an access in the order that its bytes cross them.
  void route(TierId tier, DeviceId device, std::uint32_t channel, bool store,
             std::vector<LinkId>& out) const;

 private:
  struct Place {
    std::uint32_t instances;
    std::uint32_t first_place;
    LinkId first_channel;
    LinkId first_port;
  };
  MemorySystem() = default;
  void check(const Tier& tier) const;
  void lay(const Tier& tier);

  std::shared_ptr<const Topology> topology_;
  std::vector<Tier> tiers_;
  std::vector<Place> places_;  // by tier
  std::vector<Link> links_;
  std::uint32_t num_places_ = 0;
};

}  // namespace astra_sim::model
