// Collectives: the message schedules of collective calls, rank by rank.
#pragma once

#include <memory>
#include <vector>

#include "engine/network/network.h"
#include "engine/run/run.h"

namespace astra_sim::engine {

// A rank ends when it has received all its messages and its own have left its port. Messages that
// arrive before their receiver has started are kept. `start` never ends a rank in place: it posts a
// node_end event when nothing else will.
class Collectives {
 public:
  // `runs` by index, as in tokens.
  Collectives(Network& network, EventQueue& queue, const std::vector<std::unique_ptr<Run>>& runs)
      : network_(network), queue_(queue), runs_(runs) {}

  // The rank of `slot` begins its call at `now`.
  void start(Run& run, std::uint32_t slot, Ps now);
  // A message of `phase` (0 or 1) reached the rank of `slot`; true: the rank's node ends now.
  bool receive(Run& run, std::uint32_t slot, int phase, Ps now);
  // A message of a scheduled call arrived; true: the node of the rank of `ended_slot` ends now.
  bool receive_scheduled(Run& run, std::uint32_t message, Ps now, std::uint32_t& ended_slot);
  // The same of a call by phases: what arrived is a message of a rank's phase.
  bool receive_phase(Run& run, std::uint32_t phase, Ps now, std::uint32_t& ended_slot);
  // A message that a rank sent has left its port, later than `send` could say.
  void left(std::uint64_t sender, Ps now);

 private:
  CallState& prepare(Run& run, std::uint32_t call);
  void start_measured(Run& run, std::uint32_t slot, Ps now);
  void send_ring(Run& run, std::uint32_t slot, CallState& call, Ps now);
  void send_direct_phase(Run& run, std::uint32_t slot, CallState& call, int phase, Ps now);
  void start_scheduled(Run& run, std::uint32_t slot, CallState& call, Ps now);
  void release(Run& run, std::uint32_t item, Ps now);
  void send_scheduled(Run& run, std::uint32_t message, Ps now);
  void scheduled_left(Run& run, std::uint32_t message, Ps now);
  bool scheduled_end_or_wait(Run& run, std::uint32_t slot, const CallState& call, Ps now);
  void start_phases(Run& run, std::uint32_t slot, CallState& call, Ps now);
  void phase_left(Run& run, std::uint32_t phase, Ps now);
  void serve_phases(Run& run, const CallState& call, std::uint32_t position, Ps now);
  void begin_after(std::uint32_t phase, std::uint32_t piece, std::uint32_t messages);
  bool may_send(const Run& run, const CallState& call, std::uint32_t position,
                std::uint32_t phase) const;
  void send_phase(Run& run, const CallState& call, std::uint32_t position, std::uint32_t phase,
                  Ps now);
  bool has_received(const Run& run, const CallState& call, std::uint32_t position,
                    std::uint32_t before, std::uint32_t piece) const;
  bool end_after(Run& run, std::uint32_t slot, std::int64_t messages_sent,
                 std::int64_t messages_received, Ps now);
  bool end_or_wait(Run& run, std::uint32_t slot, const CallState& call, Ps now);
  void post_end(const Run& run, std::uint32_t slot, Ps at);

  Network& network_;
  EventQueue& queue_;
  const std::vector<std::unique_ptr<Run>>& runs_;
  std::vector<std::uint32_t> ready_;  // released items, while some are being served
  bool sending_ = false;
  // What may go on in a rank's phases: a phase that may send, or (`opens`) one whose piece may
  // begin.
  struct Attempt {
    std::uint32_t phase;
    std::uint32_t piece;
    bool opens;
  };
  std::vector<Attempt> attempts_;
};

}  // namespace astra_sim::engine
