// The shared network of real engines: their KV, and the steps of theirs that meet it, move on it.
#pragma once

#include <utility>

#include "network/shared_network.h"

namespace llmsim {

// A network without the loop of a simulation: who uses it says what time it is.
class OutsideNetwork {
 public:
  explicit OutsideNetwork(NetworkConfig config) : shared_(std::move(config)) {}

  SharedNetwork& shared() { return shared_; }
  // When something may land; kEndOfTime: nothing is under way.
  Ps next_event() const { return shared_.next_event(); }
  // What starts at `now` has been started.
  void settle(Ps now) { shared_.settle(now); }
  // Time passes: whoever has started transfers hears of those that have landed by now.
  void advance(Ps now) {
    while (shared_.next_event() <= now) {
      const Ps time = shared_.next_event();
      shared_.advance(time);
      shared_.settle(time);
    }
  }
  // All that is under way lands, as if nothing else started meanwhile.
  void run_out() {
    while (shared_.next_event() < kEndOfTime) advance(shared_.next_event());
  }

 private:
  SharedNetwork shared_;
};

}  // namespace llmsim
