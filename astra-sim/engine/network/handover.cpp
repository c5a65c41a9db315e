#include "engine/network/handover.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "model/base/errors.h"

namespace astra_sim::engine {

namespace {

// Numbers the messages of every pair of devices.
class PairCounter {
 public:
  MessageKey next(const Parcel& parcel) {
    const std::uint64_t pair = static_cast<std::uint64_t>(parcel.from) << 32 | parcel.to;
    return {parcel.from, parcel.to, count_[pair]++};
  }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> count_;  // only looked up
};

bool crosses_given_links(const Parcel& parcel) {
  return parcel.link != model::kNone || parcel.via != model::kNone;
}

class RecordingNetwork final : public Network {
 public:
  RecordingNetwork(std::unique_ptr<Network> network, std::vector<SentMessage>& sent)
      : network_(std::move(network)), sent_(sent) {}

  Ps send(Ps now, const Parcel& parcel) override {
    if (!crosses_given_links(parcel))
      sent_.push_back({counter_.next(parcel), parcel.timing_bytes, now});
    return network_->send(now, parcel);
  }
  void pass_on(Ps now, std::uint64_t token) override { network_->pass_on(now, token); }
  std::vector<std::uint64_t> forget(Ps now, const TokenSet& which) override {
    return network_->forget(now, which);
  }
  bool forget_hop(std::uint64_t token, const TokenSet& which) override {
    return network_->forget_hop(token, which);
  }
  void settle(Ps now) override { network_->settle(now); }
  std::vector<LinkCounters> counters(Ps now) const override { return network_->counters(now); }
  FairShareCounters fair_share() const override { return network_->fair_share(); }
  void tell(Departures* departures) override { network_->tell(departures); }

 private:
  std::unique_ptr<Network> network_;
  std::vector<SentMessage>& sent_;
  PairCounter counter_;
};

class TimedNetwork final : public Network {
 public:
  TimedNetwork(std::shared_ptr<const MessageTimes> times, EventQueue& queue, Ps endpoint_delay_ps,
               std::size_t num_links)
      : times_(std::move(times)),
        queue_(queue),
        endpoint_delay_ps_(endpoint_delay_ps),
        num_links_(num_links) {}

  Ps send(Ps now, const Parcel& parcel) override {
    if (crosses_given_links(parcel)) {
      throw model::InvalidTopology(
          times_->source +
          " has times of messages between NPUs; memory tiers over the network and inSwitch need "
          "another --network-backend");
    }
    const MessageKey key = counter_.next(parcel);
    const auto found = times_->duration_ps.find(key);
    if (found == times_->duration_ps.end()) {
      throw model::InvalidTopology(times_->source + " has no time of message " +
                                   std::to_string(key.number) + " (" +
                                   std::to_string(parcel.timing_bytes) + " bytes) from NPU " +
                                   std::to_string(key.from) + " to NPU " + std::to_string(key.to));
    }
    const Ps left = std::min(now + found->second, model::kHorizon);
    const std::uint64_t entity = static_cast<std::uint64_t>(parcel.from) << 28 | parcel.to;
    queue_.push(endpoint_delay_ps_ > model::kHorizon - left ? model::kHorizon + 1
                                                            : left + endpoint_delay_ps_,
                EventKind::kArrival, entity, parcel.token);
    return left;
  }
  void pass_on(Ps, std::uint64_t) override {}  // has no hops
  std::vector<LinkCounters> counters(Ps) const override {
    return std::vector<LinkCounters>(num_links_);
  }

 private:
  std::shared_ptr<const MessageTimes> times_;
  EventQueue& queue_;
  Ps endpoint_delay_ps_;
  std::size_t num_links_;
  PairCounter counter_;
};

}  // namespace

std::unique_ptr<Network> make_recording(std::unique_ptr<Network> network,
                                        std::vector<SentMessage>& sent) {
  return std::make_unique<RecordingNetwork>(std::move(network), sent);
}

std::unique_ptr<Network> make_timed(std::shared_ptr<const MessageTimes> times, EventQueue& queue,
                                    Ps endpoint_delay_ps, std::size_t num_links) {
  return std::make_unique<TimedNetwork>(std::move(times), queue, endpoint_delay_ps, num_links);
}

}  // namespace astra_sim::engine
