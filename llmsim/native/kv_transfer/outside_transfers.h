// Moves the KV of prompts between real engines, whose schedulers say when blocks are reserved.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv_transfer/kv_transfer.h"

namespace llmsim {

// The transfers of KvTransfers of whole prompts, without its groups: a message to the prefill group
// goes first, then all shares move on the shared network, at once where they are pulled, else when
// the prefill group has computed the prompt.
class OutsideTransfers final : private TransferOwner {
 public:
  OutsideTransfers(KvTransferConfig config, NetworkConfig network);
  OutsideTransfers(const OutsideTransfers&) = delete;  // its transfers refer to it

  // A decode group has reserved blocks for a prompt of `tokens`, of which it has `cached`.
  // Throws std::invalid_argument where no route leads there.
  // Returns how long the decode group's workers post the reads.
  Ps reserved(RequestId request, const KvRoute& route, std::int32_t tokens, std::int32_t cached,
              Ps now);
  // Where KV is pushed: the prefill group has computed the prompt, whose KV begins to move. Throws
  // std::invalid_argument where the group has not been told that blocks are reserved.
  void prefilled(RequestId request, Ps now);
  // When something may land; kEndOfTime: nothing moves.
  Ps next_event() const {
    const Ps posted = posted_.empty() ? kEndOfTime : posted_.begin()->first;
    return std::min(posted, network_.next_event());
  }
  // Time passes; returns the requests whose last byte is there by now, in the order of landing.
  std::vector<RequestId> advance(Ps now);
  // Where KV is pushed: the requests of which prefill groups have been told since the last call
  // that blocks are reserved, in that order.
  std::vector<RequestId> take_told() { return std::exchange(told_, {}); }

 private:
  struct Moving {
    KvRoute route;
    std::int32_t tokens = 0, sent = 0;
    std::size_t in_flight = 1;  // at first the message
    bool told = false, sends = false;
    Ps posted = 0;  // all reads; the last of them lands no sooner
  };
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;
  void send_all(RequestId request, Moving& moving, Ps now);
  void start(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes, RequestId request, Ps now);

  KvTransferConfig config_;
  SharedNetwork network_;
  std::unordered_map<RequestId, Moving> moving_;
  std::vector<RequestId> told_;
  std::multimap<Ps, RequestId> posted_;  // when reads have been posted whose bytes are there
};

}  // namespace llmsim
