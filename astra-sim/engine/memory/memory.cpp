// Accesses to memory tiers: the choice of a channel, lines of waiting accesses, and space.
#include "engine/memory/memory.h"

#include <algorithm>
#include <string>

#include "model/base/errors.h"

namespace astra_sim::engine {

using model::TierId;

Memory::Memory(const model::MemorySystem* system, NetworkKind kind, Network& network,
               EventQueue& queue, RouteTable& routes)
    : system_(system), kind_(kind), network_(network), queue_(queue), routes_(routes) {
  if (system_ == nullptr) return;
  for (TierId tier = 0; tier < system_->tiers().size(); ++tier) {
    for (std::uint32_t i = 0; i < system_->num_instances(tier); ++i) {
      places_.push_back({std::vector<std::uint32_t>(system_->tiers()[tier].channels, 0), {}});
    }
  }
  counters_.resize(places_.size());
}

bool Memory::reaches(TierId tier, DeviceId device) const {
  if (system_ == nullptr || tier >= system_->tiers().size()) return false;
  const auto& instance_of = system_->tiers()[tier].instance_of;
  return device < instance_of.size() && instance_of[device] != model::kNone;
}

std::uint32_t Memory::place_of(TierId tier, DeviceId device) const {
  return system_->place(tier, system_->tiers()[tier].instance_of[device]);
}

// A congestion-aware network's links are lines by themselves.
bool Memory::waits_in_line(const model::Tier& tier) const {
  return tier.sharing == model::TierSharing::kFifo && kind_ != NetworkKind::kCongestionAware;
}

void Memory::start(const Access& access, Ps now) {
  const std::uint32_t where = place_of(access.tier, access.device);
  Place& place = places_[where];
  ++(access.store ? counters_[where].stores : counters_[where].loads);
  const auto channel = std::min_element(place.users.begin(), place.users.end());
  if (*channel > 0 && waits_in_line(system_->tiers()[access.tier])) {
    place.waiting.push_back({access, now});
    counters_[where].peak_waiting =
        std::max(counters_[where].peak_waiting, static_cast<std::int64_t>(place.waiting.size()));
    return;
  }
  begin(access, where, static_cast<std::uint32_t>(channel - place.users.begin()), now);
}

void Memory::begin(const Access& access, std::uint32_t place, std::uint32_t channel, Ps now) {
  const auto [known, fresh] =
      known_.try_emplace({access.tier, access.device, channel, access.store},
                         static_cast<std::uint32_t>(routes_.size()));
  if (fresh) {
    route_.clear();
    system_->route(access.tier, access.device, channel, access.store, route_);
    routes_.push_back(route_);
  }
  ++places_[place].users[channel];
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(begun_.size()));
    begun_.emplace_back();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  begun_[index] = {place, channel};
  const std::uint64_t sender = Token{Owner::kChannel, kNoRun, index}.pack();
  // For the order of events: the device, and a number for the place beyond all vertices.
  const model::VertexId server = system_->topology().num_vertices() + place;
  const Ps left = network_.send(now, {access.device, server, access.bytes, access.bytes,
                                      access.token, sender, model::kNone, known->second});
  if (left != kOnItsWay) queue_.push(left, EventKind::kNodeEnd, server, sender);
}

void Memory::left(std::uint32_t index, Ps now) {
  const auto [where, channel] = begun_[index];
  free_.push_back(index);
  Place& place = places_[where];
  --place.users[channel];
  if (place.waiting.empty() || place.users[channel] > 0) return;
  const Waiting next = place.waiting.front();
  place.waiting.pop_front();
  model::add_up_to_end(counters_[where].waiting_ps, now - next.since);
  begin(next.access, where, channel, now);
}

void Memory::forget(const TokenSet& which) {
  for (Place& place : places_) {
    std::erase_if(place.waiting,
                  [&](const Waiting& item) { return which.contains(item.access.token); });
  }
}

std::uint32_t Memory::known_place(TierId tier, DeviceId device) const {
  if (!reaches(tier, device)) {
    throw model::InvalidGraph("device " + std::to_string(device) + " reaches no memory tier " +
                              std::to_string(tier) + ": the engine has " +
                              std::to_string(system_ == nullptr ? 0 : system_->tiers().size()) +
                              " tiers");
  }
  return place_of(tier, device);
}

void Memory::reserve(TierId tier, DeviceId device, Bytes bytes) {
  model::TierCounters& count = counters_[known_place(tier, device)];
  const model::Tier& what = system_->tiers()[tier];
  if (bytes < 0 || bytes > what.capacity_bytes - count.used_bytes) {
    throw model::OutOfMemory(std::to_string(bytes) + " bytes do not fit into memory tier '" +
                             what.name + "' of device " + std::to_string(device) + ": " +
                             std::to_string(count.used_bytes) + " of its " +
                             std::to_string(what.capacity_bytes) + " bytes are in use");
  }
  count.used_bytes += bytes;
  count.peak_used_bytes = std::max(count.peak_used_bytes, count.used_bytes);
}

void Memory::free(TierId tier, DeviceId device, Bytes bytes) {
  model::TierCounters& count = counters_[known_place(tier, device)];
  if (bytes < 0 || bytes > count.used_bytes) {
    throw model::InvalidGraph(std::to_string(bytes) + " bytes cannot be freed in memory tier '" +
                              system_->tiers()[tier].name + "' of device " +
                              std::to_string(device) + ": " + std::to_string(count.used_bytes) +
                              " are in use");
  }
  count.used_bytes -= bytes;
}

}  // namespace astra_sim::engine
