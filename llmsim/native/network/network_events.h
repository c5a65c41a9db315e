// The shared network as an entity: it lands transfers, and makes new rates when all else of a time
// has happened.
#pragma once

#include "events/entity.h"
#include "network/shared_network.h"

namespace llmsim {

class NetworkEvents final : public Entity {
 public:
  explicit NetworkEvents(SharedNetwork& network) : network_(network) {
    network_.on_start([this](Ps now) { rebalance(now); });
  }

  // A transfer that was expected at an event's time has come earlier, or will come later.
  Outlook outlook(const Event& event) const override {
    const bool stale = event.phase() == Phase::kTransferDone && expected_ != event.time;
    return stale ? Outlook::kStale : Outlook::kDue;
  }

  void on_event(Ps now, Phase phase, std::uint32_t) override {
    if (phase == Phase::kTransferDone) {
      expected_ = kEndOfTime;
      network_.advance(now);
      rebalance(now);
      return;
    }
    rebalance_posted_ = false;
    network_.settle(now);
    const Ps next = network_.next_event();
    if (next >= expected_) return;  // an event that comes too early finds nothing and settles again
    expected_ = next;
    post(next, Phase::kTransferDone);
  }

 private:
  void rebalance(Ps now) {
    if (!rebalance_posted_) post(now, Phase::kRebalance);
    rebalance_posted_ = true;
  }

  SharedNetwork& network_;
  Ps expected_ = kEndOfTime;  // time of the pending kTransferDone
  bool rebalance_posted_ = false;
};

}  // namespace llmsim
