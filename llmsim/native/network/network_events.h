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
      if (!advance(now)) return rebalance(now);
    } else {
      rebalance_posted_ = false;
    }
    run_on(now);
  }

 private:
  // Like events that follow each other, with nothing of anybody else between them.
  static constexpr int kMostInARow = 4096;

  // All else of `now` has happened.
  void run_on(Ps now) {
    Ps next = settle(now);
    for (int left = kMostInARow; left > 0 && next < kEndOfTime; --left) {
      if (!events().nothing_until(next)) break;
      events().advance(next);
      if (!advance(next)) return rebalance(next);
      next = settle(next);
    }
    if (next >= expected_) return;  // an event that comes too early finds nothing and settles again
    expected_ = next;
    post(next, Phase::kTransferDone);
  }

  // False: something else is to happen at `now`.
  bool advance(Ps now) {
    expected_ = kEndOfTime;
    advancing_ = true;
    network_.advance(now);
    advancing_ = false;
    return !events().anything_now();
  }

  Ps settle(Ps now) {
    network_.settle(now);
    return network_.next_event();
  }

  void rebalance(Ps now) {
    if (advancing_) return;
    if (!rebalance_posted_) post(now, Phase::kRebalance);
    rebalance_posted_ = true;
  }

  SharedNetwork& network_;
  Ps expected_ = kEndOfTime;  // time of the pending kTransferDone
  bool rebalance_posted_ = false;
  bool advancing_ = false;  // what starts now is settled afterwards
};

}  // namespace llmsim
