// The cluster's network where real engines, and no loop of ours, say what moves on it.
#pragma once

#include <utility>

#include "network/shared_network.h"

namespace llmsim {

class OutsideNetwork {
 public:
  explicit OutsideNetwork(NetworkConfig config) : network_(std::move(config)) {}
  OutsideNetwork(const OutsideNetwork&) = delete;  // owners of transfers refer to it
  OutsideNetwork& operator=(const OutsideNetwork&) = delete;

  SharedNetwork& shared() { return network_; }
  // When something may land or change; kEndOfTime: nothing moves.
  Ps next_event() const { return network_.next_event(); }
  // Somebody has started what moves from `now` on.
  void settle(Ps now) { network_.settle(now); }
  // Time passes; owners hear of what lands.
  void advance(Ps now) {
    while (network_.next_event() <= now) {
      const Ps time = network_.next_event();
      network_.advance(time);
      network_.settle(time);
    }
  }
  // All that is under way lands, as if nothing else started meanwhile.
  void run_out() {
    while (network_.next_event() < kEndOfTime) advance(network_.next_event());
  }

 private:
  SharedNetwork network_;
};

}  // namespace llmsim
