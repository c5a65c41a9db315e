// Client behaviour: timeouts, and closed-loop arrivals with a fixed number of clients.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/types.h"

namespace llmsim {

// Changed by the loop only. Columns have one entry per request, or none where no client does such a
// thing.
class Clients {
 public:
  // A client gives up `timeout[r]` after request r's arrival (kNever: never), or with its
  // `tokens[r]`-th token (0: never).
  void set_patience(std::vector<Ps> timeout, std::vector<std::int32_t> tokens, std::size_t n) {
    check(timeout.size(), n);
    check(tokens.size(), n);
    timeout_ = std::move(timeout);
    tokens_ = std::move(tokens);
    gave_up_.assign(n, false);
  }
  // `count` clients ask in turn: who has nothing asked takes the next row (or session) of the
  // workload, at its arrival or later, and thinks for `think[r]` after the answer to its last
  // request r.
  void set_closed_loop(std::int32_t count, std::vector<Ps> think, std::size_t n) {
    if (count < 1) throw std::invalid_argument("a closed loop needs at least one client");
    check(think.size(), n);
    free_ = count;
    closed_ = true;
    think_ = std::move(think);
  }

  // Of a request that arrives now: when its client gives up, or kEndOfTime.
  Ps deadline(RequestId request, Ps now) const {
    return timeout_.empty() || timeout_[request] == kNever ? kEndOfTime : now + timeout_[request];
  }
  bool count_tokens() const { return !tokens_.empty(); }
  bool enough(RequestId request, std::int32_t received) const {
    return tokens_[request] > 0 && received >= tokens_[request];
  }
  bool gave_up(RequestId request) const { return !gave_up_.empty() && gave_up_[request]; }
  void give_up(RequestId request) { gave_up_[request] = true; }

  bool closed_loop() const { return closed_; }
  // Whether somebody is there to ask; takes that client.
  bool take() {
    if (!closed_) return true;
    if (free_ == 0) return false;
    --free_;
    return true;
  }
  void release() { ++free_; }
  Ps think_time(RequestId request) const { return think_.empty() ? 0 : think_[request]; }

 private:
  static void check(std::size_t size, std::size_t n) {
    if (size != 0 && size != n)
      throw std::invalid_argument("a column of clients and the requests differ in number");
  }

  std::vector<Ps> timeout_, think_;
  std::vector<std::int32_t> tokens_;
  std::vector<bool> gave_up_;
  std::int32_t free_ = 0;
  bool closed_ = false;
};

}  // namespace llmsim
