#include "network/shared_network.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "model/base/arithmetic.h"

namespace llmsim {

namespace {

constexpr std::int64_t kFastest =
    (std::int64_t{1} << 47) - 1;  // bytes/s; what the fair-share solver can hold

bool near(const NetworkNode& a, const NetworkNode& b) {
  return a.island == b.island || a.island == kEveryIsland || b.island == kEveryIsland;
}

}  // namespace

void NetworkConfig::add_topology(std::shared_ptr<const astra_sim::model::Topology> added) {
  topology = std::move(added);
  first_of_topology = static_cast<NetworkLinkId>(links.size());
  for (const astra_sim::model::Link& link : topology->links())
    links.push_back({link.bandwidth_bytes_per_s, link.latency_ps});
}

SharedNetwork::SharedNetwork(NetworkConfig config)
    : config_(std::move(config)),
      counters_(config_.links.size()),
      free_at_(config_.links.size(), 0) {
  std::vector<std::int64_t> capacities;
  for (const NetworkLink& link : config_.links) {
    if (link.bytes_per_s < 1 || link.bytes_per_s > kFastest)
      throw std::invalid_argument("a link of " + std::to_string(link.bytes_per_s) +
                                  " bytes/s: between 1 and 2^47");
    if (link.latency < 0 || link.latency > kHorizon)
      throw std::invalid_argument("a link's latency is out of range");
    capacities.push_back(link.bytes_per_s);
  }
  for (const NetworkNode& place : config_.places) {
    if (place.near_latency < 0 || place.near_latency > kHorizon || place.far_latency < 0 ||
        place.far_latency > kHorizon)
      throw std::invalid_argument("a latency of the way out of a place is out of range");
    if (place.device != astra_sim::model::kNone &&
        (!config_.topology || place.device >= config_.topology->num_devices()))
      throw std::invalid_argument("a place is a device that no topology has");
    for (const NetworkLinkId link : {place.near.out, place.near.in, place.far.out, place.far.in})
      if (link != kNoLink && link >= config_.links.size())
        throw std::invalid_argument("a place names an unknown link");
  }
  if (fair()) share_ = std::make_unique<astra_sim::engine::FairShare>(capacities);
}

std::span<const NetworkLinkId> SharedNetwork::route(NetworkNodeId from, NetworkNodeId to) {
  const NetworkNode &a = config_.places.at(static_cast<std::size_t>(from)),
                    &b = config_.places.at(static_cast<std::size_t>(to));
  route_.clear();
  if (from == to) return route_;
  if (a.device != astra_sim::model::kNone && b.device != astra_sim::model::kNone) {
    config_.topology->route(a.device, b.device, route_);
    for (NetworkLinkId& link : route_) link += config_.first_of_topology;
    return route_;
  }
  const bool by_near = near(a, b);
  const NetworkLinkId out = by_near ? a.near.out : a.far.out, in = by_near ? b.near.in : b.far.in;
  if (out == kNoLink || in == kNoLink)
    throw std::invalid_argument("no route leads from place " + std::to_string(from) + " to place " +
                                std::to_string(to));
  route_.push_back(out);
  if (in != out) route_.push_back(in);
  return route_;
}

Ps SharedNetwork::way_out(NetworkNodeId from, NetworkNodeId to) const {
  if (from == to) return 0;
  const NetworkNode& memory = config_.places.at(static_cast<std::size_t>(from));
  return near(memory, config_.places.at(static_cast<std::size_t>(to))) ? memory.near_latency
                                                                       : memory.far_latency;
}

Ps SharedNetwork::alone(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes) {
  Ps latency = 0, slowest = 0;
  for (const NetworkLinkId link : route(from, to)) {
    latency += config_.links[link].latency;
    if (bytes > 0)
      slowest = std::max(
          slowest, astra_sim::model::serialisation_ps(bytes, config_.links[link].bytes_per_s));
  }
  return latency + slowest;
}

std::int64_t SharedNetwork::most_within(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes,
                                        Ps ps) {
  Ps left = ps;
  std::int64_t slowest = kFastest;
  for (const NetworkLinkId link : route(from, to)) {
    left -= config_.links[link].latency;
    slowest = std::min(slowest, config_.links[link].bytes_per_s);
  }
  if (left < 0) return -1;
  const int128 most = static_cast<int128>(left) * slowest / kPsPerSecond;
  return most < bytes ? static_cast<std::int64_t>(most) : bytes;
}

TransferId SharedNetwork::transfer(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes, Ps now,
                                   TransferOwner& owner, std::uint64_t token, Purpose purpose) {
  return transfer_at(from, to, bytes, now, now, owner, token, purpose);
}

TransferId SharedNetwork::transfer_at(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes,
                                      Ps at, Ps now, TransferOwner& owner, std::uint64_t token,
                                      Purpose purpose) {
  if (bytes < 0) throw std::invalid_argument("a transfer of a negative number of bytes");
  const Departure departure{at, {next_id_++, token, &owner, 0}, from, to, bytes, purpose};
  ++in_flight_;
  if (recorded_) {
    recorded_->sender.push_back(from);
    recorded_->receiver.push_back(to);
    recorded_->bytes.push_back(bytes);
    recorded_->purpose.push_back(static_cast<std::int32_t>(purpose));
    recorded_->start_ps.push_back(std::max(at, now));
    recorded_->end_ps.push_back(-1);
  }
  if (at > now) {
    departures_.push(departure);
  } else {
    depart(departure);
  }
  wake(now);
  return departure.cargo.id;
}

void SharedNetwork::wake(Ps now) {
  if (unsettled_) return;
  unsettled_ = true;
  if (wake_) wake_(now);
}

void SharedNetwork::depart(const Departure& departure) {
  route(departure.from, departure.to);
  Cargo cargo = departure.cargo;
  for (const NetworkLinkId link : route_) {
    cargo.latency = std::min(cargo.latency + config_.links[link].latency, kHorizon);
    counters_[link].bytes += departure.bytes;
    ++counters_[link].transfers;
  }
  PurposeCounters& counted = purposes_[static_cast<std::size_t>(departure.purpose)];
  counted.bytes += departure.bytes;
  ++counted.transfers;
  if (departure.bytes == 0 || route_.empty()) {
    land_at(departure.at + cargo.latency, cargo);
  } else if (!fair()) {
    land_at(leave_fifo(departure.at, departure.bytes) + cargo.latency, cargo);
  } else {
    const astra_sim::engine::FlowId flow = share_->start(departure.at, route_, departure.bytes);
    if (flow >= moving_.size()) moving_.resize(flow + 1);
    moving_[flow] = cargo;
  }
}

// Cut through: a link takes the first byte as soon as the link before has it, and is never done
// before that one is.
Ps SharedNetwork::leave_fifo(Ps now, std::int64_t bytes) {
  Ps begin = now, left = now;
  for (const NetworkLinkId id : route_) {
    const Ps occupied = astra_sim::model::serialisation_ps(bytes, config_.links[id].bytes_per_s);
    begin = std::max(begin, free_at_[id]);
    left = std::max(begin + occupied, left);
    free_at_[id] = left;
    counters_[id].busy += occupied;
    if (left > kHorizon)
      throw std::overflow_error(
          "a transfer ends beyond the simulated time's horizon of 2^62 ps (53 days)");
  }
  return left;
}

void SharedNetwork::settle(Ps now) {
  unsettled_ = false;
  if (fair()) share_->solve(now);
}

Ps SharedNetwork::next_event() const {
  Ps next = landings_.empty() ? kEndOfTime : landings_.top().at;
  if (!departures_.empty()) next = std::min(next, departures_.top().at);
  if (fair()) next = std::min(next, share_->next_end());
  return next;
}

void SharedNetwork::advance(Ps now) {
  if (fair()) {
    ended_.clear();
    share_->end_due(now, ended_);
    for (const astra_sim::engine::FlowId flow : ended_)
      land_at(now + moving_[flow].latency, moving_[flow]);
  }
  for (; !departures_.empty() && departures_.top().at <= now; departures_.pop())
    depart(departures_.top());
  while (!landings_.empty() && landings_.top().at <= now) {
    const Cargo cargo = landings_.top().cargo;
    landings_.pop();
    --in_flight_;
    if (recorded_) recorded_->end_ps[static_cast<std::size_t>(cargo.id)] = now;
    cargo.owner->landed(cargo.id, cargo.token, now);
  }
}

void SharedNetwork::sample(Ps now) {
  sampled_.resize(counters_.size());
  for (std::size_t link = 0; link < counters_.size(); ++link) {
    if (counters_[link].transfers == 0) continue;
    const NetworkLinkCounters here = link_counters(static_cast<NetworkLinkId>(link), now);
    NetworkLinkCounters& last = sampled_[link];
    if (here.busy == last.busy && here.bytes == last.bytes) continue;
    series_.time_ps.push_back(now);
    series_.link.push_back(static_cast<std::int32_t>(link));
    series_.bytes.push_back(here.bytes - last.bytes);
    series_.busy_ps.push_back(here.busy - last.busy);
    last = here;
  }
}

NetworkLinkCounters SharedNetwork::link_counters(NetworkLinkId link, Ps now) const {
  NetworkLinkCounters counters = counters_.at(link);
  if (fair()) {
    counters.bytes -= share_->bytes_left_on(link, now);
    counters.busy = share_->busy_ps(link, now);
  }
  return counters;
}

}  // namespace llmsim
