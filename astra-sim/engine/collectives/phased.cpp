// Collectives by RingPhases: a rank's phases send as messages arrive, without a table of messages.
#include "engine/collectives/collectives.h"
#include "model/collective/ring_phases.h"

namespace astra_sim::engine {

using model::RingPhases;

namespace {

std::uint32_t state_of(const CallState& call, std::uint32_t position, std::uint32_t phase) {
  return call.first_phase + position * call.phases->count() + phase;
}

}  // namespace

// Whether all has come that the rank receives in the phases before one, for a piece.
bool Collectives::has_received(const Run& run, const CallState& call, std::uint32_t position,
                               std::uint32_t before, std::uint32_t piece) const {
  for (std::uint32_t phase = 0; phase < before; ++phase) {
    const std::uint32_t needed = (piece + 1) * call.phases->steps(phase);
    if (run.phases[state_of(call, position, phase)].received < needed) return false;
  }
  return true;
}

bool Collectives::may_send(const Run& run, const CallState& call, std::uint32_t position,
                           std::uint32_t phase) const {
  const RingPhases& phases = *call.phases;
  const PhaseState& state = run.phases[state_of(call, position, phase)];
  const std::uint32_t steps = phases.steps(phase);
  if (state.leaving || state.sent == steps * phases.pieces()) return false;
  if (state.sent % steps != 0) return state.received >= state.sent;
  // Phases with one neighbour share its channel, unless pieces make a channel of each.
  const std::uint32_t earlier = phases.earlier(phase);
  if (phases.pieces() == 1 && earlier != model::kNone) {
    const PhaseState& before = run.phases[state_of(call, position, earlier)];
    if (before.leaving || before.sent < phases.steps(earlier)) return false;
  }
  return has_received(run, call, position, phase, state.sent / steps);
}

void Collectives::send_phase(Run& run, const CallState& call, std::uint32_t position,
                             std::uint32_t phase, Ps now) {
  const RingPhases& phases = *call.phases;
  PhaseState& state = run.phases[state_of(call, position, phase)];
  const std::uint32_t to = phases.neighbour(phase, position);
  const auto device = [&](std::uint32_t rank) {
    return run.graph->rank_slots[call.first + rank].device;
  };
  const auto token = [&](std::uint32_t rank) {
    return Token{Owner::kPhase, run.index, state_of(call, rank, phase)}.pack();
  };
  const Ps left = network_.send(
      now, {device(position), device(to), phases.timing_bytes(phase, call.timing_bytes),
            phases.exact_bytes(phase, position, state.sent, call.timing_bytes), token(to),
            token(position)});
  ++state.sent;
  RankState& rank = run.ranks[call.first + position];
  ++rank.sent;
  if (left == kOnItsWay) {
    state.leaving = true;
    ++rank.leaving;
  } else if (left > rank.left_at) {
    rank.left_at = left;
  }
}

// Carries out the attempts and what they lead to, in the order in which they came up.
void Collectives::serve_phases(Run& run, const CallState& call, std::uint32_t position, Ps now) {
  const RingPhases& phases = *call.phases;
  for (std::size_t at = 0; at < attempts_.size(); ++at) {
    const Attempt attempt = attempts_[at];
    const std::uint32_t phase = attempt.phase;
    if (phase >= phases.count()) continue;  // none is left to begin, or has this neighbour
    if (attempt.opens) {
      if (!has_received(run, call, position, phase, attempt.piece)) continue;
      attempts_.push_back({phase, attempt.piece, false});
      attempts_.push_back({phase + 1, attempt.piece, true});
    } else if (may_send(run, call, position, phase)) {
      send_phase(run, call, position, phase, now);
      attempts_.push_back({phase, 0, false});
      attempts_.push_back({phases.later(phase), 0, false});
    }
  }
  attempts_.clear();
}

void Collectives::start_phases(Run& run, std::uint32_t slot, CallState& call, Ps now) {
  const RingPhases& phases = *call.phases;
  const std::uint32_t position = run.graph->rank_slots[slot].rank;
  // What came early lets a rank send at once: piece by piece, phase by phase.
  for (std::uint32_t piece = 0; piece < phases.pieces(); ++piece) {
    for (std::uint32_t phase = 0; phase < phases.count(); ++phase) {
      const std::uint32_t end = (piece + 1) * phases.steps(phase);
      const PhaseState& state = run.phases[state_of(call, position, phase)];
      while (state.sent < end && may_send(run, call, position, phase))
        send_phase(run, call, position, phase, now);
    }
  }
  if (end_after(run, slot, phases.messages_per_rank(), phases.messages_per_rank(), now))
    post_end(run, slot, now);
}

// All of a piece's phase has come. A single message lets the next phase send as a Schedule's would,
// which has no gate there.
void Collectives::begin_after(std::uint32_t phase, std::uint32_t piece, std::uint32_t messages) {
  const bool single = phase == 0 && messages == 1;
  if (single) attempts_.push_back({phase + 1, piece, false});
  attempts_.push_back({single ? phase + 2 : phase + 1, piece, true});
}

bool Collectives::receive_phase(Run& run, std::uint32_t index, Ps now, std::uint32_t& ended_slot) {
  const CallState& call = run.calls[run.call_of_phase[index]];
  const RingPhases& phases = *call.phases;
  const std::uint32_t position = (index - call.first_phase) / phases.count();
  const std::uint32_t phase = (index - call.first_phase) % phases.count();
  const std::uint32_t received = ++run.phases[index].received;
  ended_slot = call.first + position;
  RankState& rank = run.ranks[ended_slot];
  ++rank.received[0];
  if (!rank.started) return false;
  attempts_.push_back({phase, 0, false});
  const std::uint32_t steps = phases.steps(phase);
  if (received % steps == 0) begin_after(phase, received / steps - 1, steps);
  serve_phases(run, call, position, now);
  return end_after(run, ended_slot, phases.messages_per_rank(), phases.messages_per_rank(), now);
}

void Collectives::phase_left(Run& run, std::uint32_t index, Ps now) {
  const CallState& call = run.calls[run.call_of_phase[index]];
  const RingPhases& phases = *call.phases;
  const std::uint32_t position = (index - call.first_phase) / phases.count();
  const std::uint32_t phase = (index - call.first_phase) % phases.count();
  run.phases[index].leaving = false;
  const std::uint32_t slot = call.first + position;
  --run.ranks[slot].leaving;
  attempts_.push_back({phase, 0, false});
  attempts_.push_back({phases.later(phase), 0, false});
  serve_phases(run, call, position, now);
  if (end_after(run, slot, phases.messages_per_rank(), phases.messages_per_rank(), now))
    post_end(run, slot, now);
}

}  // namespace astra_sim::engine
