// Turns parcels into flows, and the ends of flows into arrivals.
#include "engine/network/fair_network.h"

#include <algorithm>
#include <utility>

namespace astra_sim::engine {

namespace {

std::vector<model::BytesPerSecond> capacities_of(const Topology& topology,
                                                 std::span<const model::Link> more) {
  std::vector<model::BytesPerSecond> out;
  for (const model::Link& link : topology.links()) out.push_back(link.bandwidth_bytes_per_s);
  for (const model::Link& link : more) out.push_back(link.bandwidth_bytes_per_s);
  return out;
}

}  // namespace

FairNetwork::FairNetwork(std::shared_ptr<const Topology> topology, EventQueue& queue,
                         Ps endpoint_delay_ps, RateQuantum quantum,
                         std::span<const model::Link> more, const RouteTable& routes,
                         const Incast& incast)
    : topology_(std::move(topology)),
      queue_(queue),
      endpoint_delay_ps_(endpoint_delay_ps),
      routes_(routes),
      share_(capacities_of(*topology_, more), quantum),
      count_(topology_->links().size() + more.size()) {
  for (const model::Link& link : topology_->links()) latency_.push_back(link.latency_ps);
  for (const model::Link& link : more) latency_.push_back(link.latency_ps);
  std::vector<model::LinkId> queues;  // links that leave a switch
  for (model::LinkId id = 0; id < topology_->links().size(); ++id) {
    if (topology_->links()[id].from >= topology_->num_devices()) queues.push_back(id);
  }
  share_.crowd(incast, queues);
}

Ps FairNetwork::send(Ps now, const Parcel& parcel) {
  route_.clear();
  if (parcel.via != model::kNone) {
    route_ = routes_[parcel.via];
  } else if (parcel.link != model::kNone) {
    route_.push_back(parcel.link);
  } else {
    topology_->route(parcel.from, parcel.to, route_);
  }
  Ps latency = parcel.via != model::kNone ? 0 : endpoint_delay_ps_;
  for (const model::LinkId id : route_) {
    latency = std::min(latency + latency_[id], model::kHorizon);  // the queue refuses it
    count_[id].bytes += parcel.exact_bytes;
    ++count_[id].messages;
  }
  const std::uint64_t entity = (static_cast<std::uint64_t>(parcel.from) << 28) | parcel.to;
  if (parcel.timing_bytes == 0) {
    arrive(now, latency, entity, parcel.token);
    return now;
  }
  const FlowId flow = share_.start(now, route_, parcel.timing_bytes);
  if (flow >= cargo_.size()) cargo_.resize(flow + 1);
  cargo_[flow] = {serial_++, parcel.token, parcel.sender, entity, latency, parcel.exact_bytes};
  return kOnItsWay;
}

void FairNetwork::arrive(Ps left, Ps latency, std::uint64_t entity, std::uint64_t token) {
  queue_.push(latency > model::kHorizon - left ? model::kHorizon + 1 : left + latency,
              EventKind::kArrival, entity, token);
}

void FairNetwork::pass_on(Ps now, std::uint64_t) {
  if (posted_ <= now) posted_ = FairShare::kNever;
  ended_.clear();
  share_.end_due(now, ended_);
  unloaded_
      .clear();  // who hears of a departure may send at once, and reuse the numbers of ended flows
  for (const FlowId flow : ended_) unloaded_.push_back(cargo_[flow]);
  // Flows between the same two devices that end together arrive in the order in which they were
  // sent.
  std::sort(unloaded_.begin(), unloaded_.end(),
            [](const Cargo& a, const Cargo& b) { return a.serial < b.serial; });
  for (const Cargo& cargo : unloaded_) arrive(now, cargo.latency, cargo.entity, cargo.token);
  for (const Cargo& cargo : unloaded_) {
    if (cargo.sender != kNobody) departures_->left(cargo.sender, now);
  }
}

std::vector<std::uint64_t> FairNetwork::forget(Ps now, const TokenSet& which) {
  std::vector<std::uint64_t> senders;
  share_.solve(now);  // rates and volumes of flows that started at this time
  for (FlowId flow = 0; flow < cargo_.size(); ++flow) {
    if (!share_.in_motion(flow) || !which.contains(cargo_[flow].token)) continue;
    const Bytes left = std::min(share_.bytes_left(flow, now), cargo_[flow].bytes);
    for (const model::LinkId id : share_.route(flow)) count_[id].bytes -= left;
    share_.stop(now, flow);
    senders.push_back(cargo_[flow].sender);
  }
  settle(now);
  return senders;
}

void FairNetwork::settle(Ps now) {
  share_.solve(now);
  const Ps next = share_.next_end();
  if (next >= posted_) return;
  posted_ = next;
  queue_.push(next, EventKind::kHop, 0, 0);
}

std::vector<LinkCounters> FairNetwork::counters(Ps now) const {
  std::vector<LinkCounters> out(count_);
  for (model::LinkId id = 0; id < out.size(); ++id) {
    out[id].busy_ps = share_.busy_ps(id, now);
    out[id].peak_messages = share_.peak_flows_on(id);
  }
  return out;
}

FairShareCounters FairNetwork::fair_share() const {
  return {share_.num_flows(), share_.num_solves(), share_.num_visits(), share_.num_deferred(),
          share_.num_overflows()};
}

}  // namespace astra_sim::engine
