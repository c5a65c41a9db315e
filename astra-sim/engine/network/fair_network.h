// The fair-share network: messages are flows that share the links of their routes max-min fairly.
#pragma once

#include <memory>
#include <vector>

#include "engine/network/fair_share.h"
#include "engine/network/network.h"

namespace astra_sim::engine {

// A message moves as soon as it is sent, at the rate that FairShare gives it, and arrives its
// route's latencies after its last byte has left. Rates change only between picoseconds: all starts
// and ends of one time are seen together.
class FairNetwork final : public Network {
 public:
  FairNetwork(std::shared_ptr<const Topology> topology, EventQueue& queue, Ps endpoint_delay_ps,
              RateQuantum quantum, std::span<const model::Link> more, const RouteTable& routes,
              const Incast& incast);

  Ps send(Ps now, const Parcel& parcel) override;
  void pass_on(Ps now, std::uint64_t token) override;  // a flow may have ended
  std::vector<std::uint64_t> forget(Ps now, const TokenSet& which) override;
  void settle(Ps now) override;
  std::vector<LinkCounters> counters(Ps now) const override;
  FairShareCounters fair_share() const override;

 private:
  // What is known of a flow besides its volume.
  struct Cargo {
    std::uint64_t serial;
    std::uint64_t token;
    std::uint64_t sender;
    std::uint64_t entity;
    Ps latency;
    Bytes bytes;  // exact, as counted
  };
  void arrive(Ps left, Ps latency, std::uint64_t entity, std::uint64_t token);

  std::shared_ptr<const Topology> topology_;
  EventQueue& queue_;
  Ps endpoint_delay_ps_;
  const RouteTable& routes_;
  std::vector<Ps> latency_;  // by link
  FairShare share_;
  std::vector<Cargo> cargo_;  // by flow
  std::vector<LinkCounters> count_;
  std::uint64_t serial_ = 0;
  Ps posted_ = FairShare::kNever;  // the earliest pending wake-up
  std::vector<model::LinkId> route_;
  std::vector<FlowId> ended_;
  std::vector<Cargo> unloaded_;
};

}  // namespace astra_sim::engine
