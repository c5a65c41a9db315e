#include "network/shared_network.h"

#include <algorithm>
#include <numeric>
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

// The port by which a place reaches another one.
const Port& port_towards(const NetworkNode& from, const NetworkNode& to) {
  if (!near(from, to)) return from.far;
  return to.below && !from.below ? from.host : from.near;
}

std::vector<std::int64_t> capacities_of(const NetworkConfig& config) {
  std::vector<std::int64_t> capacities;
  for (const NetworkLink& link : config.links) capacities.push_back(link.bytes_per_s);
  return capacities;
}

std::vector<NetworkLinkId> switch_ports(const NetworkConfig& config) {
  std::vector<NetworkLinkId> ports;
  if (!config.topology) return ports;
  NetworkLinkId number = config.first_of_topology;
  for (const astra_sim::model::Link& link : config.topology->links()) {
    if (link.from >= config.topology->num_devices()) ports.push_back(number);
    ++number;
  }
  return ports;
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
  for (const NetworkLink& link : config_.links) {
    if (link.bytes_per_s < 1 || link.bytes_per_s > kFastest)
      throw std::invalid_argument("a link of " + std::to_string(link.bytes_per_s) +
                                  " bytes/s: between 1 and 2^47");
    if (link.latency < 0 || link.latency > kHorizon)
      throw std::invalid_argument("a link's latency is out of range");
  }
  for (const NetworkNode& place : config_.places) {
    if (place.near_latency < kOfReader || place.near_latency > kHorizon || place.far_latency < 0 ||
        place.far_latency > kHorizon || place.host_latency < 0 || place.host_latency > kHorizon)
      throw std::invalid_argument("a latency of the way out of a place is out of range");
    if (place.device != astra_sim::model::kNone &&
        (!config_.topology || place.device >= config_.topology->num_devices()))
      throw std::invalid_argument("a place is a device that no topology has");
    for (const NetworkLinkId link : {place.near.out, place.near.in, place.far.out, place.far.in,
                                     place.host.out, place.host.in})
      if (link != kNoLink && link >= config_.links.size())
        throw std::invalid_argument("a place names an unknown link");
  }
  if (!fair()) return;
  share_ = std::make_unique<astra_sim::engine::FairShare>(capacities_of(config_));
  share_->crowd(config_.incast, switch_ports(config_));
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
  const NetworkLinkId out = port_towards(a, b).out, in = port_towards(b, a).in;
  if (out == kNoLink || in == kNoLink)
    throw std::invalid_argument("no route leads from place " + std::to_string(from) + " to place " +
                                std::to_string(to));
  route_.push_back(out);
  if (in != out) route_.push_back(in);
  return route_;
}

Ps SharedNetwork::way_out(NetworkNodeId from, NetworkNodeId to) const {
  if (from == to) return 0;
  const NetworkNode &memory = config_.places.at(static_cast<std::size_t>(from)),
                    &reader = config_.places.at(static_cast<std::size_t>(to));
  if (!near(memory, reader)) return memory.far_latency;
  return memory.near_latency == kOfReader ? reader.host_latency : memory.near_latency;
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
  const FlowEnds ends{from, to};
  const Cargo cargo{next_id_, token, &owner, 0};
  return enter({at, cargo, ends, Bundles::kNone, bytes, purpose}, {&ends, 1}, now);
}

BundleId SharedNetwork::add_bundle(std::vector<FlowEnds> ends) {
  std::vector<Bundles::Flow> flows;
  for (const FlowEnds& flow : ends) {
    const auto links = route(flow.from, flow.to);
    flows.push_back({{links.begin(), links.end()}, latency_of(links)});
  }
  return add(std::move(ends), std::move(flows));
}

BundleId SharedNetwork::add_bundle(const std::vector<PartialFlow>& partial) {
  std::vector<FlowEnds> ends;
  std::vector<Bundles::Flow> flows;
  for (const PartialFlow& flow : partial) {
    for (const NetworkLinkId link : flow.links)
      if (link >= config_.links.size()) throw std::invalid_argument("a flow over an unknown link");
    ends.push_back(flow.ends);
    flows.push_back({flow.links, 0});
  }
  return add(std::move(ends), std::move(flows));
}

BundleId SharedNetwork::add(std::vector<FlowEnds> ends, std::vector<Bundles::Flow> flows) {
  ends_.push_back(std::move(ends));
  gathering_.open.emplace_back();
  const BundleId bundle = bundles_.add(std::move(flows));
  if (!bundles_.built()) return bundle;
  // Of a group that comes while nothing moves: components form anew, and begin without a past.
  for (NetworkLinkId link = 0; link < config_.links.size(); ++link)
    counters_[link].busy += bundles_.carried(link, kEndOfTime).busy;
  bundles_.build(capacities_of(config_));
  return bundle;
}

TransferId SharedNetwork::start_at(BundleId bundle, std::int64_t bytes, Ps at, Ps now,
                                   TransferOwner& owner, std::uint64_t token, Purpose purpose) {
  const Cargo cargo{next_id_, token, &owner, 0};
  return enter({at, cargo, {}, bundle, bytes, purpose}, ends_[bundle], now);
}

TransferId SharedNetwork::enter(const Departure& departure, std::span<const FlowEnds> flows,
                                Ps now) {
  if (departure.bytes < 0) throw std::invalid_argument("a transfer of a negative number of bytes");
  next_id_ += static_cast<TransferId>(flows.size());
  ++in_flight_;
  for (const FlowEnds& flow : flows) {
    if (!recorded_) break;
    recorded_->sender.push_back(flow.from);
    recorded_->receiver.push_back(flow.to);
    recorded_->bytes.push_back(departure.bytes);
    recorded_->purpose.push_back(static_cast<std::int32_t>(departure.purpose));
    recorded_->start_ps.push_back(std::max(departure.at, now));
    recorded_->end_ps.push_back(-1);
  }
  if (departure.at > now) {
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

Ps SharedNetwork::latency_of(std::span<const NetworkLinkId> route) const {
  Ps latency = 0;
  for (const NetworkLinkId link : route)
    latency = std::min(latency + config_.links[link].latency, kHorizon);
  return latency;
}

void SharedNetwork::depart(const Departure& departure) {
  if (departure.bundle != Bundles::kNone) return depart_together(departure);
  const auto links = route(departure.ends.from, departure.ends.to);
  Cargo cargo = departure.cargo;
  cargo.latency = latency_of(links);
  move(departure, cargo, links);
}

void SharedNetwork::depart_together(const Departure& departure) {
  const BundleId bundle = departure.bundle;
  const Cargo& cargo = departure.cargo;
  const auto flows = bundles_.flows(bundle);
  if (departure.bytes > 0)
    for (const Bundles::Flow& flow : flows) meet(flow.route, departure.at);
  Gathering::Open& open = gathering_.open[bundle];
  if (departure.bytes > 0 && cached(bundle, departure.at) != Bundles::kNone) {
    open = {cargo.id, cargo.owner, cargo.token, 1};
    count(departure.purpose, departure.bytes, static_cast<std::int64_t>(flows.size()));
    bundles_.count(bundle, departure.bytes);
    bundles_.start(departure.at, bundle, departure.bytes);
    return;
  }
  open = {cargo.id, cargo.owner, cargo.token, flows.size()};
  in_flight_ += static_cast<std::int64_t>(flows.size()) - 1;
  for (std::size_t i = 0; i < flows.size(); ++i) {
    const TransferId id = cargo.id + static_cast<TransferId>(i);
    move(departure, {id, bundle, &gathering_, flows[i].latency}, flows[i].route);
  }
}

void SharedNetwork::count(Purpose purpose, std::int64_t bytes, std::int64_t flows) {
  PurposeCounters& counted = purposes_[static_cast<std::size_t>(purpose)];
  counted.bytes += bytes * flows;
  counted.transfers += flows;
}

void SharedNetwork::move(const Departure& departure, const Cargo& cargo,
                         std::span<const NetworkLinkId> route) {
  for (const NetworkLinkId link : route) {
    counters_[link].bytes += departure.bytes;
    ++counters_[link].transfers;
  }
  count(departure.purpose, departure.bytes, 1);
  if (departure.bytes == 0 || route.empty()) {
    land_at(departure.at + cargo.latency, cargo);
  } else if (!fair()) {
    land_at(leave_fifo(departure.at, departure.bytes, route) + cargo.latency, cargo);
  } else {
    meet(route, departure.at);
    for (const NetworkLinkId link : route) leave_to_all(link, departure.at);
    take(share_->start(departure.at, route, departure.bytes), cargo);
  }
}

void SharedNetwork::take(astra_sim::engine::FlowId flow, const Cargo& cargo) {
  if (flow >= moving_.size()) moving_.resize(flow + 1);
  moving_[flow] = cargo;
}

// Recorded flows have times of their own, a queue serves them in order, and what a burst costs
// depends on its bytes.
std::uint32_t SharedNetwork::cached(BundleId bundle, Ps now) {
  if (!fair() || recorded_ || !config_.incast.off()) return Bundles::kNone;
  if (!bundles_.built()) build_bundles(now);
  const std::uint32_t component = bundles_.component_of(bundle), home = bundles_.home_of(bundle);
  if (home == Bundles::kNone) return home;
  if (component == Bundles::kNone) {
    if (!bundles_.repeats(home) || !silent(home)) return Bundles::kNone;
    bundles_.join_again(home);
    return home;
  }
  if (bundles_.repeats(component)) return component;
  dissolve(component, now);
  return Bundles::kNone;
}

bool SharedNetwork::silent(std::uint32_t component) const {
  return std::ranges::all_of(bundles_.links(component),
                             [this](NetworkLinkId link) { return share_->flows_on(link) == 0; });
}

void SharedNetwork::build_bundles(Ps now) {
  bundles_.build(capacities_of(config_));
  for (NetworkLinkId link = 0; link < config_.links.size(); ++link)
    if (counters_[link].transfers > 0) leave_to_all(link, now);
}

// Whatever crosses the link moves as a transfer from now on.
void SharedNetwork::leave_to_all(NetworkLinkId link, Ps now) {
  const std::uint32_t component = bundles_.component_on(link);
  if (component != Bundles::kNone) dissolve(component, now);
}

// Its flows go on as transfers.
void SharedNetwork::dissolve(std::uint32_t component, Ps now) {
  for (const Bundles::Rest& rest : bundles_.dissolve(component, now)) {
    Gathering::Open& open = gathering_.open[rest.bundle];
    const auto flows = bundles_.flows(rest.bundle);
    open.left = rest.flows.size();
    for (const auto& [flow, volume] : rest.flows) {
      const TransferId id = open.first + static_cast<TransferId>(flow);
      const Cargo cargo{id, rest.bundle, &gathering_, flows[flow].latency};
      take(share_->go_on(now, flows[flow].route, volume), cargo);
    }
    if (rest.lands > now) {
      ++open.left;
      land_at(rest.lands, {open.first, rest.bundle, &gathering_, 0});
    }
    in_flight_ += static_cast<std::int64_t>(open.left) - 1;
  }
}

void SharedNetwork::Gathering::landed(TransferId, std::uint64_t bundle, Ps now) {
  if (--open[bundle].left > 0) return;
  const Open done = open[bundle];
  done.owner->landed(done.first, done.token, now);
}

// Cut through: a link takes the first byte as soon as the link before has it, and is never done
// before that one is.
Ps SharedNetwork::leave_fifo(Ps now, std::int64_t bytes, std::span<const NetworkLinkId> route) {
  Ps begin = now, left = now;
  for (const NetworkLinkId id : route) {
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
  if (!fair()) return;
  share_->solve(now);
  bundles_.solve(now);
}

Ps SharedNetwork::next_event() const {
  Ps next = landings_.empty() ? kEndOfTime : landings_.top().at;
  if (!departures_.empty()) next = std::min(next, departures_.top().at);
  if (fair()) next = std::min({next, share_->next_end(), bundles_.next_end()});
  return next;
}

void SharedNetwork::advance(Ps now) {
  if (fair()) {
    ended_.clear();
    share_->end_due(now, ended_);
    for (const astra_sim::engine::FlowId flow : ended_)
      land_at(now + moving_[flow].latency, moving_[flow]);
    together_.clear();
    bundles_.end_due(now, together_);
    for (const Bundles::Landing& landing : together_) land(landing, now);
  }
  while (!departures_.empty() && departures_.top().at <= now) {
    const Departure departure = departures_.top();
    departures_.pop();
    depart(departure);  // whoever is met may start others
  }
  while (!landings_.empty() && landings_.top().at <= now) {
    const Cargo cargo = landings_.top().cargo;
    landings_.pop();
    --in_flight_;
    if (recorded_) recorded_->end_ps[static_cast<std::size_t>(cargo.id)] = now;
    cargo.owner->landed(cargo.id, cargo.token, now);
    if (in_flight_ == 0 && quiet_) quiet_(now);
  }
}

// The last flow of a bundle has ended.
void SharedNetwork::land(const Bundles::Landing& landing, Ps now) {
  const Gathering::Open open = gathering_.open[landing.bundle];
  if (landing.at > now && open.owner->left(open.token, landing.at, now)) {
    if (--in_flight_ == 0 && quiet_) quiet_(now);
    return;
  }
  const auto last = static_cast<TransferId>(ends_[landing.bundle].size()) - 1;
  land_at(landing.at, {open.first + last, landing.bundle, &gathering_, 0});
}

bool SharedNetwork::known_alone(std::span<const BundleId> bundles,
                                std::span<const std::int64_t> rates) const {
  if (!fair() || recorded_ || !config_.incast.off()) return false;
  std::vector<bool> taken(config_.links.size(), false);
  for (std::size_t i = 0; i < bundles.size(); ++i) {
    for (const Bundles::Flow& flow : bundles_.flows(bundles[i])) {
      for (const NetworkLinkId link : flow.route) {
        if (taken[link] || config_.links[link].bytes_per_s < rates[i]) return false;
        taken[link] = true;
      }
      if (flow.latency > 0) return false;
    }
  }
  return true;
}

bool SharedNetwork::silent(std::span<const BundleId> bundles) const {
  const auto moves = [this](NetworkLinkId link) {
    const std::uint32_t component = bundles_.component_on(link);
    return share_->flows_on(link) > 0 || (component != Bundles::kNone && bundles_.moves(component));
  };
  for (const BundleId bundle : bundles)
    for (const Bundles::Flow& flow : bundles_.flows(bundle))
      if (std::ranges::any_of(flow.route, moves)) return false;
  return true;
}

bool SharedNetwork::watch(std::span<const BundleId> bundles, LinkWatcher& watcher, Ps now) {
  watchers_.resize(config_.links.size(), nullptr);
  for (const BundleId bundle : bundles)
    for (const Bundles::Flow& flow : bundles_.flows(bundle)) meet(flow.route, now);
  if (recorded_ || !silent(bundles)) return false;
  for (const BundleId bundle : bundles)
    for (const Bundles::Flow& flow : bundles_.flows(bundle))
      for (const NetworkLinkId link : flow.route) watchers_[link] = &watcher;
  return true;
}

void SharedNetwork::forget(BundleId bundle) {
  for (const Bundles::Flow& flow : bundles_.flows(bundle))
    for (const NetworkLinkId link : flow.route) watchers_[link] = nullptr;
}

void SharedNetwork::meet(std::span<const NetworkLinkId> route, Ps now) {
  if (watchers_.empty()) return;
  for (const NetworkLinkId link : route)
    if (LinkWatcher* watcher = watchers_[link]) tell_watcher(route, *watcher, now);
}

// Of those of the links that it watches.
void SharedNetwork::tell_watcher(std::span<const NetworkLinkId> links, LinkWatcher& watcher,
                                 Ps now) {
  std::vector<NetworkLinkId> watched;
  for (const NetworkLinkId link : links)
    if (watchers_[link] == &watcher) watched.push_back(link);
  for (const NetworkLinkId link : watched) watchers_[link] = nullptr;
  watcher.met(watched, now);
}

void SharedNetwork::catch_up(Ps now) {
  std::vector<NetworkLinkId> all(watchers_.size());
  std::iota(all.begin(), all.end(), NetworkLinkId{0});
  meet(all, now);
}

// With links of its own, the slowest of which is its rate.
Ps SharedNetwork::time_alone(const Bundles::Flow& flow, std::int64_t bytes) const {
  Ps slowest = 0;
  for (const NetworkLinkId link : flow.route)
    slowest = std::max(slowest,
                       astra_sim::model::serialisation_ps(bytes, config_.links[link].bytes_per_s));
  return slowest;
}

void SharedNetwork::count_on_links(const Bundles::Flow& flow, std::int64_t bytes,
                                   std::int64_t times, Ps busy) {
  for (const NetworkLinkId link : flow.route) {
    counters_[link].bytes += bytes * times;
    counters_[link].transfers += times;
    counters_[link].busy += busy * times;
  }
}

void SharedNetwork::count_alone(BundleId bundle, std::int64_t bytes, std::int64_t times,
                                Purpose purpose) {
  const auto flows = bundles_.flows(bundle);
  for (const Bundles::Flow& flow : flows)
    count_on_links(flow, bytes, times, time_alone(flow, bytes));
  count(purpose, bytes, static_cast<std::int64_t>(flows.size()) * times);
}

bool SharedNetwork::go_on(BundleId bundle, std::int64_t bytes, Ps began, Ps now,
                          TransferOwner& owner, std::uint64_t token, Purpose purpose) {
  using astra_sim::engine::FairShare;
  using Volume = FairShare::Volume;
  const auto flows = bundles_.flows(bundle);
  Gathering::Open& open = gathering_.open[bundle];
  open = {next_id_, &owner, token, 0};
  next_id_ += static_cast<TransferId>(flows.size());
  count(purpose, bytes, static_cast<std::int64_t>(flows.size()));
  for (std::size_t i = 0; i < flows.size(); ++i) {
    const Ps taken = time_alone(flows[i], bytes);
    count_on_links(flows[i], bytes, 1, std::min(taken, now - began));
    if (began + taken <= now) continue;
    std::int64_t slowest = kFastest;
    for (const NetworkLinkId link : flows[i].route) {
      slowest = std::min(slowest, config_.links[link].bytes_per_s);
      leave_to_all(link, now);
    }
    const Volume per_ps = FairShare::volume_of(slowest) / static_cast<Volume>(kPsPerSecond);
    const Volume left = FairShare::volume_of(bytes) - per_ps * static_cast<Volume>(now - began);
    take(share_->go_on(now, flows[i].route, left),
         {open.first + static_cast<TransferId>(i), bundle, &gathering_, 0});
    ++open.left;
  }
  in_flight_ += static_cast<std::int64_t>(open.left);
  if (open.left > 0) wake(now);
  return open.left > 0;
}

void SharedNetwork::call_at(Ps at, Ps now, TransferOwner& owner, std::uint64_t token) {
  ++in_flight_;
  land_at(std::max(at, now), {next_id_++, token, &owner, 0});
  wake(now);
}

void SharedNetwork::sample(Ps now) {
  sampled_.resize(counters_.size());
  for (std::size_t link = 0; link < counters_.size(); ++link) {
    const NetworkLinkCounters here = link_counters(static_cast<NetworkLinkId>(link), now);
    if (here.transfers == 0) continue;
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
    const Bundles::Carried together = bundles_.carried(link, now);
    counters.bytes += together.bytes;
    counters.bytes -= share_->bytes_left_on(link, now) + bundles_.bytes_left_on(link, now);
    counters.transfers += together.transfers;
    counters.busy += share_->busy_ps(link, now) + together.busy;
  }
  return counters;
}

}  // namespace llmsim
