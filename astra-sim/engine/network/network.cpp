// The congestion-unaware and the congestion-aware network.
#include "engine/network/network.h"

#include <deque>
#include <utility>

#include "engine/network/fair_network.h"
#include "model/base/arithmetic.h"

namespace astra_sim::engine {

namespace {

using model::LinkId;
using model::VertexId;

// Everything about one link in two cache lines; the last serialisation is kept because collectives
// repeat sizes.
struct LinkState {
  Ps latency_ps;
  model::BytesPerSecond bandwidth;
  Ps free_at = 0;
  Bytes last_bytes = 0;
  Ps last_ps = 0;
  VertexId to;
  LinkCounters count;

  explicit LinkState(const model::Link& link)
      : latency_ps(link.latency_ps), bandwidth(link.bandwidth_bytes_per_s), to(link.to) {}

  Ps serialisation(Bytes bytes) {
    if (bytes != last_bytes) {
      last_ps = model::serialisation_ps(bytes, bandwidth);
      last_bytes = bytes;
    }
    return last_ps;
  }
};

class NetworkBase : public Network {
 public:
  NetworkBase(std::shared_ptr<const Topology> topology, EventQueue& queue, Ps endpoint_delay_ps,
              std::span<const model::Link> more, const RouteTable& routes)
      : topology_(std::move(topology)),
        queue_(queue),
        endpoint_delay_ps_(endpoint_delay_ps),
        routes_(routes) {
    links_.reserve(topology_->links().size() + more.size());
    for (const model::Link& link : topology_->links()) links_.emplace_back(link);
    for (const model::Link& link : more) links_.emplace_back(link);
  }

  std::vector<LinkCounters> counters(Ps) const override {
    std::vector<LinkCounters> out;
    out.reserve(links_.size());
    for (const LinkState& link : links_) out.push_back(link.count);
    return out;
  }

 protected:
  LinkId next_link(VertexId at, const Parcel& parcel) const {
    return parcel.link != model::kNone ? parcel.link
                                       : topology_->next_link(at, parcel.from, parcel.to);
  }

  std::shared_ptr<const Topology> topology_;
  EventQueue& queue_;
  Ps endpoint_delay_ps_;
  const RouteTable& routes_;
  std::vector<LinkState> links_;
};

class UnawareNetwork final : public NetworkBase {
 public:
  using NetworkBase::NetworkBase;

  Ps send(Ps now, const Parcel& parcel) override {
    Ps latency = 0;
    Ps slowest = 0;
    const auto cross = [&](LinkState& link) {
      const Ps occupied = link.serialisation(parcel.timing_bytes);
      latency += link.latency_ps;
      if (latency > model::kHorizon) latency = model::kHorizon;  // the event queue refuses it
      slowest = occupied > slowest ? occupied : slowest;
      link.count.bytes += parcel.exact_bytes;
      model::add_up_to_end(link.count.busy_ps, occupied);
      ++link.count.messages;
    };
    if (parcel.via != model::kNone) {
      for (const LinkId id : routes_[parcel.via]) cross(links_[id]);
    } else {
      latency = endpoint_delay_ps_;
      for (VertexId at = parcel.from; at != parcel.to;) {
        LinkState& link = links_[next_link(at, parcel)];
        cross(link);
        at = link.to;
      }
    }
    const std::uint64_t entity = (static_cast<std::uint64_t>(parcel.from) << 28) | parcel.to;
    const Ps left = now + slowest;
    queue_.push(latency > model::kHorizon - left ? model::kHorizon + 1 : left + latency,
                EventKind::kArrival, entity, parcel.token);
    return left;
  }

  void pass_on(Ps, std::uint64_t) override {}  // has no hops
};

// A FIFO link is a server: in time order, a message begins when the one before has left. One event
// per hop suffices.
class AwareNetwork final : public NetworkBase {
 public:
  using NetworkBase::NetworkBase;

  Ps send(Ps now, const Parcel& parcel) override { return enter(now, parcel.from, 0, parcel); }

  // A link serves without a break until it is free: what lies ahead of `now` is not over yet.
  std::vector<LinkCounters> counters(Ps now) const override {
    std::vector<LinkCounters> out = NetworkBase::counters(now);
    for (LinkId id = 0; id < out.size(); ++id) {
      if (links_[id].free_at > now) out[id].busy_ps -= links_[id].free_at - now;
    }
    return out;
  }

  void pass_on(Ps now, std::uint64_t token) override {
    const auto index = static_cast<std::uint32_t>(token);
    free_.push_back(index);
    const Travelling travelling = travelling_[index];
    enter(now, travelling.at, travelling.step, travelling.parcel);
  }

  bool forget_hop(std::uint64_t token, const TokenSet& which) override {
    const auto index = static_cast<std::uint32_t>(token);
    if (!which.contains(travelling_[index].parcel.token)) return false;
    free_.push_back(index);
    return true;
  }

 private:
  struct Travelling {
    VertexId at;
    std::uint32_t step;  // how many links of its `via` it has crossed
    Parcel parcel;
  };

  Ps enter(Ps now, VertexId at, std::uint32_t step, const Parcel& parcel) {
    const bool given = parcel.via != model::kNone;
    const LinkId id = given ? routes_[parcel.via][step] : next_link(at, parcel);
    LinkState& link = links_[id];
    const Ps begin = now > link.free_at ? now : link.free_at;
    const Ps occupied = link.serialisation(parcel.timing_bytes);
    const Ps left = begin + occupied;
    link.free_at = left;
    link.count.bytes += parcel.exact_bytes;
    link.count.busy_ps += occupied;
    ++link.count.messages;
    if (begin > now) {
      model::add_up_to_end(link.count.queue_ps, begin - now);
      if (begin - now > link.count.peak_queue_ps) link.count.peak_queue_ps = begin - now;
    }
    if (left > model::kHorizon)
      queue_.push(left, EventKind::kArrival, id, parcel.token);  // refuses it
    const Ps there = left + link.latency_ps;
    if (given ? step + 1 == routes_[parcel.via].size() : link.to == parcel.to) {
      queue_.push(there + (given ? 0 : endpoint_delay_ps_), EventKind::kArrival, id, parcel.token);
    } else {
      queue_.push(there, EventKind::kHop, id, store({link.to, step + 1, parcel}));
    }
    return left;
  }

  std::uint32_t store(const Travelling& travelling) {
    if (free_.empty()) {
      travelling_.push_back(travelling);
      return static_cast<std::uint32_t>(travelling_.size() - 1);
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    travelling_[index] = travelling;
    return index;
  }

  std::deque<Travelling> travelling_;  // grows without copying
  std::vector<std::uint32_t> free_;
};

}  // namespace

std::unique_ptr<Network> make_network(NetworkKind kind, std::shared_ptr<const Topology> topology,
                                      EventQueue& queue, Ps endpoint_delay_ps, RateQuantum quantum,
                                      std::span<const model::Link> more, const RouteTable& routes,
                                      const Incast& incast) {
  if (kind == NetworkKind::kFairShare) {
    return std::make_unique<FairNetwork>(std::move(topology), queue, endpoint_delay_ps, quantum,
                                         more, routes, incast);
  }
  if (kind == NetworkKind::kCongestionUnaware) {
    return std::make_unique<UnawareNetwork>(std::move(topology), queue, endpoint_delay_ps, more,
                                            routes);
  }
  return std::make_unique<AwareNetwork>(std::move(topology), queue, endpoint_delay_ps, more,
                                        routes);
}

}  // namespace astra_sim::engine
