// Memory: the changing half of the memory tiers: who uses which channel, who waits, and what is
// reserved.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "engine/network/network.h"
#include "model/graph/results.h"
#include "model/memory/memory.h"

namespace astra_sim::engine {

// One load or store; its end arrives as a message with this token.
struct Access {
  model::TierId tier;
  DeviceId device;
  Bytes bytes;
  bool store;
  std::uint64_t token;
};

class Memory {
 public:
  // `system` may be null: no tiers. All must outlive it.
  Memory(const model::MemorySystem* system, NetworkKind kind, Network& network, EventQueue& queue,
         RouteTable& routes);

  // The tier exists and the device can reach it.
  bool reaches(model::TierId tier, DeviceId device) const;
  // Begins at `now`, or waits for a channel. Needs reaches().
  void start(const Access& access, Ps now);
  // The access has left its channel; the next one may begin.
  void left(std::uint32_t index, Ps now);
  // Accesses that wait for a channel and have such a token will not begin.
  void forget(const TokenSet& which);

  // Space of an instance. Throws OutOfMemory naming tier and sizes, InvalidGraph for what cannot
  // be.
  void reserve(model::TierId tier, DeviceId device, Bytes bytes);
  void free(model::TierId tier, DeviceId device, Bytes bytes);
  // By place (MemorySystem::place).
  const std::vector<model::TierCounters>& counters() const { return counters_; }

 private:
  struct Waiting {
    Access access;
    Ps since;
  };
  struct Place {
    std::vector<std::uint32_t> users;  // by channel: accesses that have begun and not left
    std::deque<Waiting> waiting;
  };
  struct Begun {  // an access whose channel is told when it leaves
    std::uint32_t place;
    std::uint32_t channel;
  };
  std::uint32_t place_of(model::TierId tier, DeviceId device) const;
  std::uint32_t known_place(model::TierId tier, DeviceId device) const;
  bool waits_in_line(const model::Tier& tier) const;
  void begin(const Access& access, std::uint32_t place, std::uint32_t channel, Ps now);

  const model::MemorySystem* system_;
  NetworkKind kind_;
  Network& network_;
  EventQueue& queue_;
  RouteTable& routes_;
  std::vector<Place> places_;
  std::vector<model::TierCounters> counters_;
  std::vector<Begun> begun_;
  std::vector<std::uint32_t> free_;
  std::map<std::tuple<model::TierId, DeviceId, std::uint32_t, bool>, std::uint32_t>
      known_;  // routes
  std::vector<model::LinkId> route_;
};

}  // namespace astra_sim::engine
