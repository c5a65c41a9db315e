// Client behaviour: timeouts, and closed-loop arrivals with a fixed number of clients.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace llmsim {

// Columns have one entry per request, or none where no client does such a thing.
struct ClientsConfig {
  std::vector<Ps> timeout;  // from a request's arrival until its client gives up; kNever: never
  std::vector<std::int32_t> cancel_after_tokens;  // it leaves with that many tokens; 0: never
  // Clients of a closed loop: one that has nothing asked takes the next row (or session) of the
  // workload, at its arrival or later, and thinks for `think[r]` after the answer to its last
  // request r. 0: an open loop.
  std::int32_t count = 0;
  std::vector<Ps> think;
};

// Changed by the loop only.
class Clients {
 public:
  // `config` outlives it; `n` requests.
  Clients(const ClientsConfig& config, std::size_t n) : config_(config), free_(config.count) {
    if (!config.timeout.empty() || !config.cancel_after_tokens.empty()) gave_up_.assign(n, false);
  }

  // Of a request that arrives now: when its client gives up, or kEndOfTime.
  Ps deadline(RequestId request, Ps now) const {
    const bool waits = config_.timeout.empty() || config_.timeout[request] == kNever;
    return waits ? kEndOfTime : now + config_.timeout[request];
  }
  bool count_tokens() const { return !config_.cancel_after_tokens.empty(); }
  bool enough(RequestId request, std::int32_t received) const {
    const std::int32_t enough = config_.cancel_after_tokens[request];
    return enough > 0 && received >= enough;
  }
  bool gave_up(RequestId request) const { return !gave_up_.empty() && gave_up_[request]; }
  void give_up(RequestId request) { gave_up_[request] = true; }

  bool closed_loop() const { return config_.count > 0; }
  // Whether somebody is there to ask; takes that client.
  bool take() {
    if (!closed_loop()) return true;
    if (free_ == 0) return false;
    --free_;
    return true;
  }
  void release() { ++free_; }
  Ps think_time(RequestId request) const {
    return config_.think.empty() ? 0 : config_.think[request];
  }

 private:
  const ClientsConfig& config_;
  std::vector<bool> gave_up_;
  std::int32_t free_;
};

}  // namespace llmsim
