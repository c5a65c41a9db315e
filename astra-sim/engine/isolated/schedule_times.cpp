#include "engine/isolated/schedule_times.h"

#include <algorithm>
#include <string>

#include "model/base/arithmetic.h"
#include "model/base/errors.h"

namespace astra_sim::engine {

ScheduleTimes::ScheduleTimes(const Topology& topology, NetworkKind network, Ps endpoint_delay_ps,
                             std::shared_ptr<const model::Schedule> schedule,
                             std::span<const model::DeviceId> group)
    : network_(network),
      endpoint_delay_ps_(endpoint_delay_ps),
      schedule_(std::move(schedule)),
      messages_(schedule_->messages()),
      released_(schedule_->waits().size()) {
  for (const model::Link& link : topology.links())
    hops_.push_back({link.latency_ps, link.bandwidth_bytes_per_s, 0, 0, 0});
  for (const model::Message& message : messages_) add_route(topology, message, group);
  first_hop_.push_back(static_cast<std::uint32_t>(route_.size()));
  order_items();
}

void ScheduleTimes::add_route(const Topology& topology, const model::Message& message,
                              std::span<const model::DeviceId> group) {
  first_hop_.push_back(static_cast<std::uint32_t>(route_.size()));
  if (message.link != model::kNone) return route_.push_back(message.link);
  topology.route(group[message.from], group[message.to], route_);
}

void ScheduleTimes::order_items() {
  std::vector<std::uint32_t> waits(schedule_->waits().begin(), schedule_->waits().end());
  const auto release = [&](std::uint32_t item) {
    if (--waits[item] == 0) order_.push_back(item);
  };
  for (std::uint32_t rank = 0; rank < schedule_->num_ranks(); ++rank)
    for (const std::uint32_t message : schedule_->of_rank(rank)) release(message);
  for (std::size_t at = 0; at < order_.size(); ++at) {
    const std::uint32_t item = order_[at];
    const bool is_message = item < messages_.size();
    if (is_message && messages_[item].next != model::kNone) release(messages_[item].next);
    for (const std::uint32_t later : schedule_->after(item)) release(later);
  }
}

ScheduleTimes::Passage ScheduleTimes::pass(std::uint32_t message, Bytes bytes, Ps now) {
  const bool aware = network_ == NetworkKind::kCongestionAware;
  Ps left = now;
  Ps there = now;
  Ps latency = 0;
  Ps slowest = 0;
  for (std::uint32_t at = first_hop_[message]; at < first_hop_[message + 1]; ++at) {
    Hop& hop = hops_[route_[at]];
    if (bytes != hop.last_bytes) {
      hop.last_ps = model::serialisation_ps(bytes, hop.bandwidth);
      hop.last_bytes = bytes;
    }
    latency += hop.latency;
    slowest = std::max(slowest, hop.last_ps);
    if (!aware) continue;
    hop.free_at = std::max(there, hop.free_at) + hop.last_ps;
    there = hop.free_at + hop.latency;
    if (at == first_hop_[message]) left = hop.free_at;
    if (there > model::kHorizon) break;
  }
  if (!aware) left = now + slowest;
  if (!aware) there = left + std::min(latency, model::kHorizon);
  if (there > model::kHorizon)
    throw model::OutOfRange(
        "a collective of several messages ends after the engine's limit of "
        "2^62 ps (53 days)");
  return {left, there + endpoint_delay_ps_};
}

Ps ScheduleTimes::duration(Bytes bytes) {
  std::fill(released_.begin(), released_.end(), 0);
  for (Hop& hop : hops_) hop.free_at = 0;
  Ps end = 0;
  const bool fair = network_ == NetworkKind::kFairShare;
  for (const std::uint32_t item : order_) {
    Ps happened = released_[item];
    if (item < messages_.size()) {
      const model::Message& message = messages_[item];
      const Passage passage = pass(item, schedule_->timing_bytes(message, bytes), happened);
      if (message.next != model::kNone) {
        // On a fair network the next message of a channel waits until this one has left.
        Ps& next = released_[message.next];
        next = std::max(next, fair ? passage.left : happened);
      }
      happened = passage.there;
      end = std::max({end, passage.left, passage.there});
    }
    for (const std::uint32_t later : schedule_->after(item))
      released_[later] = std::max(released_[later], happened);
  }
  return end;
}

}  // namespace astra_sim::engine
