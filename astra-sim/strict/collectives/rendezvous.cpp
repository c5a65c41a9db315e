// The rendezvous before each message of a collective: the receiver says that it is ready, then the
// sender sends.
#include "strict/collectives/collectives.h"

namespace astra_sim::strict {

void Collectives::send_after_control(std::uint32_t from, std::uint32_t to, std::uint32_t channel,
                                     std::int64_t bytes) {
  Handshake& handshake = handshakes_[channel];
  if (handshake.arrived == 0) {
    handshake.waiting.push_back({from, to, bytes});
    return;
  }
  --handshake.arrived;
  handshake.released.push_back({from, to, bytes});
  clock_.global(0, {EventKind::kControlReady, channel});
}

void Collectives::send_control(std::uint32_t member, std::uint32_t from, std::uint32_t channel) {
  network_.send(members_[member].npu, members_[from].npu, kControlBytes,
                {EventKind::kControl, member, channel});
}

// The control message is at the sender: its receive is posted first, then the data leave.
void Collectives::control(std::uint32_t member, std::uint32_t channel) {
  post_now(member, channel);
  Handshake& handshake = handshakes_[channel];
  if (handshake.waiting.empty()) {
    ++handshake.arrived;
  } else {
    transmit(channel, handshake.waiting);
  }
}

void Collectives::control_ready(std::uint32_t channel) {
  transmit(channel, handshakes_[channel].released);
}

void Collectives::transmit(std::uint32_t channel, std::deque<PendingSend>& queue) {
  const PendingSend message = queue.front();
  queue.pop_front();
  network_.send(members_[message.from].npu, members_[message.to].npu, message.bytes,
                {EventKind::kArrival, message.to, channel});
}

}  // namespace astra_sim::strict
