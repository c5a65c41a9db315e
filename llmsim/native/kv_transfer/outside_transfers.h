// Moves the KV of prompts between real engines, whose schedulers say when blocks are reserved.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv_transfer/kv_transfer.h"
#include "network/outside_network.h"

namespace llmsim {

// The transfers of KvTransfers of prompts or their chunks, without its groups: a message to the
// prefill group goes first, then all shares move on the shared network, at once where they are
// pulled, else when the prefill group has computed them.
class OutsideTransfers final : private TransferOwner {
 public:
  OutsideTransfers(KvTransferConfig config, std::shared_ptr<OutsideNetwork> network);
  OutsideTransfers(const OutsideTransfers&) = delete;  // its transfers refer to it

  // A decode group has reserved blocks for a prompt of `tokens`, of which it has `cached`.
  // Throws std::invalid_argument where no route leads there.
  // Returns how long the decode group's workers post the reads.
  Ps reserved(RequestId request, const KvRoute& route, std::int32_t tokens, std::int32_t cached,
              Ps now);
  // Where KV is pushed: the prefill group has computed so many leading tokens of the prompt, whose
  // KV begins to move. Throws std::invalid_argument where the group has not been told that blocks
  // are reserved.
  void sends(RequestId request, std::int32_t tokens, Ps now);
  // Where KV is pushed: the decode group no longer wants it. The prefill group is told, and answers
  // when nothing of it is under way.
  void withdrawn(RequestId request, const KvRoute& route, Ps now);
  // Where KV is pulled: the decode group has dropped a prompt of which no byte moves yet. Before
  // its blocks are reserved, the prefill group is told; behind that, nothing moves when it is told.
  void dropped(RequestId request, const KvRoute& route, Ps now);
  // When something may land; kEndOfTime: nothing moves.
  Ps next_event() const {
    const Ps posted = posted_.empty() ? kEndOfTime : posted_.begin()->first;
    return std::min(posted, network_->next_event());
  }
  // Time passes; returns the requests whose last byte is there by now, in the order of landing.
  std::vector<RequestId> advance(Ps now);
  // Where KV is pushed: the requests of which prefill groups have been told since the last call
  // that blocks are reserved, in that order.
  std::vector<RequestId> take_told() { return std::exchange(told_, {}); }
  // Likewise, that nobody wants their KV; and the requests of which decode groups have been told
  // that nothing of it is under way.
  std::vector<RequestId> take_refused() { return std::exchange(refused_, {}); }
  std::vector<RequestId> take_drained() { return std::exchange(drained_, {}); }
  // Where KV is pulled: those that nobody will read, as prefill groups have been told.
  std::vector<RequestId> take_forgotten() { return std::exchange(forgotten_, {}); }

 private:
  enum class Kind : std::uint8_t { kTold, kKv, kWithdrawn, kDrained, kForget };
  struct Moving {
    KvRoute route;
    std::int32_t tokens = 0, first = 0, sent = 0;
    std::size_t in_flight = 0;  // shares of pieces
    bool told = false, withdraws = false;
    bool refused = false;  // the prefill group knows that it is withdrawn
    bool dropped = false;  // the decode group has dropped it before anything moved
    Ps posted = 0;         // all reads; the last of them lands no sooner
    bool has_landed() const { return in_flight == 0 && sent == tokens; }
  };
  void landed(TransferId transfer, std::uint64_t token, Ps now) override;
  void hear_told(RequestId request, Moving& moving, Ps now);
  void land(RequestId request, Moving& moving, Ps now);
  void send_up_to(RequestId request, Moving& moving, std::int32_t tokens, Ps now);
  void send_message(RequestId request, const KvRoute& route, Kind kind, Ps now);
  void start(NetworkNodeId from, NetworkNodeId to, std::int64_t bytes, RequestId request, Kind kind,
             Ps now);

  KvTransferConfig config_;
  std::shared_ptr<OutsideNetwork> network_;
  std::unordered_map<RequestId, Moving> moving_;
  std::vector<RequestId> told_, refused_, drained_, forgotten_;
  std::multimap<Ps, RequestId> posted_;  // when reads have been posted whose bytes are there
};

}  // namespace llmsim
