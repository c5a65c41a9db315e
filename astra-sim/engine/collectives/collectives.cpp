// Ring, direct and measured collectives as reactions to starts and arrivals.
#include "engine/collectives/collectives.h"

#include <string>

#include "model/base/arithmetic.h"
#include "model/base/errors.h"

namespace astra_sim::engine {

using model::Algorithm;
using model::CollectiveKind;
using model::RankSlot;

namespace {

constexpr std::uint32_t minus(std::uint32_t a, std::uint32_t b, std::uint32_t n) {
  return a >= b ? a - b : a + n - b;
}

// The chunk that a rank sends first. Ring: rank r sends chunk r, r - 1, ...; a reduce-scatter
// begins with r - 1, so that rank r is left with chunk r; an all-to-all begins with the block that
// has the longest way, to rank r - 1.
std::uint32_t first_ring_chunk(CollectiveKind kind, std::uint32_t rank, std::uint32_t num_ranks) {
  const bool own = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather;
  return own ? rank : minus(rank, 1, num_ranks);
}

// Moves on to the next chunk. In round d of an all-to-all a rank relays what came from d ranks
// back: n - 1 - d blocks, for the destinations rank - d - 1 down to rank + 1.
void next_ring_chunk(RankState& rank, std::uint32_t position, const CallState& call) {
  const std::uint32_t n = call.num_ranks;
  rank.chunk = minus(rank.chunk, 1, n);
  if (call.kind == CollectiveKind::kAllToAll && --rank.left_in_round == 0) {
    ++rank.round;
    rank.left_in_round = n - 1 - rank.round;
    rank.chunk = minus(position, (rank.round + 1) % n, n);
  }
}

void note_departure(RankState& rank, Ps left) {
  if (left == kOnItsWay) {
    ++rank.leaving;
  } else if (left > rank.left_at) {
    rank.left_at = left;
  }
}

}  // namespace

CallState& Collectives::prepare(Run& run, std::uint32_t index) {
  CallState& state = run.calls[index];
  if (state.timing_bytes >= 0) return state;
  const model::Call& call = run.graph->calls[index];
  const model::CollectivePlan& plan = run.graph->plans[call.plan];
  const Bytes bytes = run.amount[run.graph->rank_slots[call.first].node];
  state.first = call.first;
  state.num_ranks = call.num_ranks;
  state.kind = plan.kind;
  state.algorithm = plan.algorithm;
  if (plan.schedule != nullptr) {
    state.timing_bytes = bytes;
    state.schedule = plan.schedule.get();
    state.first_message = static_cast<std::uint32_t>(run.waits.size());
    const auto waits = plan.schedule->waits();
    run.waits.insert(run.waits.end(), waits.begin(), waits.end());
    run.call_of.resize(run.waits.size(), index);
    return state;
  }
  if (plan.phases != nullptr) {
    state.timing_bytes = bytes;
    state.phases = plan.phases.get();
    state.first_phase = static_cast<std::uint32_t>(run.phases.size());
    run.phases.resize(run.phases.size() + std::size_t{call.num_ranks} * plan.phases->count());
    run.call_of_phase.resize(run.phases.size(), index);
    return state;
  }
  state.timing_bytes = model::timing_chunk(bytes, call.num_ranks);
  state.floor_bytes = bytes / call.num_ranks;
  state.remainder = static_cast<std::uint32_t>(bytes % call.num_ranks);
  const std::int64_t steps =
      plan.algorithm == Algorithm::kRing
          ? model::ring_steps(plan.kind, call.num_ranks)
          : model::direct_phases(plan.kind) * (std::int64_t{call.num_ranks} - 1);
  if (steps > (std::int64_t{1} << 30)) {
    throw model::OutOfRange(
        "a " + std::string(model::name_of(plan.kind)) + " of " + std::to_string(call.num_ranks) +
        " ranks takes " + std::to_string(steps) + " messages per rank: at most 2^30 are possible");
  }
  state.steps = static_cast<std::int32_t>(steps);
  return state;
}

void Collectives::start(Run& run, std::uint32_t slot, Ps now) {
  const RankSlot& place = run.graph->rank_slots[slot];
  CallState& call = prepare(run, place.call);
  RankState& rank = run.ranks[slot];
  rank.started = true;
  ++call.num_started;
  if (call.schedule != nullptr) return start_scheduled(run, slot, call, now);
  if (call.phases != nullptr) return start_phases(run, slot, call, now);
  if (call.algorithm == Algorithm::kMeasured) return start_measured(run, slot, now);
  if (call.algorithm == Algorithm::kRing) {
    rank.chunk = first_ring_chunk(call.kind, place.rank, call.num_ranks);
    rank.left_in_round = call.num_ranks - 1;
    send_ring(run, slot, call, now);
  } else {
    send_direct_phase(run, slot, call, 0, now);
    const bool heard_all = rank.received[0] == static_cast<std::int32_t>(call.num_ranks) - 1;
    if (heard_all && call.kind == CollectiveKind::kAllReduce)
      send_direct_phase(run, slot, call, 1, now);
  }
  if (end_or_wait(run, slot, call, now)) post_end(run, slot, now);
}

void Collectives::start_measured(Run& run, std::uint32_t slot, Ps now) {
  const std::uint32_t index = run.graph->rank_slots[slot].call;
  const CallState& call = run.calls[index];
  if (call.num_started < call.num_ranks) return;
  const model::CollectivePlan& plan = run.graph->plans[run.graph->calls[index].plan];
  const Ps end = now + plan.table->at(run.amount[run.graph->rank_slots[slot].node]);
  for (std::uint32_t other = call.first; other < call.first + call.num_ranks; ++other)
    post_end(run, other, end);
}

bool Collectives::receive(Run& run, std::uint32_t slot, int phase, Ps now) {
  RankState& rank = run.ranks[slot];
  ++rank.received[phase];
  if (!rank.started) return false;
  CallState& call = run.calls[run.graph->rank_slots[slot].call];
  if (call.algorithm == Algorithm::kRing) {
    send_ring(run, slot, call, now);
  } else if (phase == 0 && call.kind == CollectiveKind::kAllReduce &&
             rank.received[0] == static_cast<std::int32_t>(call.num_ranks) - 1) {
    send_direct_phase(run, slot, call, 1, now);
  }
  return end_or_wait(run, slot, call, now);
}

// Message s leaves when the rank has started and has received s messages.
void Collectives::send_ring(Run& run, std::uint32_t slot, CallState& call, Ps now) {
  RankState& rank = run.ranks[slot];
  const RankSlot& place = run.graph->rank_slots[slot];
  const std::uint32_t target = place.rank + 1 == call.num_ranks ? call.first : slot + 1;
  const std::uint64_t token = Token{Owner::kRankFirstPhase, run.index, target}.pack();
  const std::uint64_t sender = Token{Owner::kRankFirstPhase, run.index, slot}.pack();
  while (rank.sent < call.steps && rank.sent <= rank.received[0] && rank.leaving == 0) {
    const Ps left = network_.send(now, {place.device, place.next_device, call.timing_bytes,
                                        call.exact_bytes(rank.chunk), token, sender});
    note_departure(rank, left);
    ++rank.sent;
    next_ring_chunk(rank, place.rank, call);
  }
}

// On a ring, one message after the other: the next one may have been waiting for the port.
void Collectives::left(std::uint64_t sender, Ps now) {
  const Token token = Token::unpack(sender);
  Run& run = *runs_[token.run];
  if (token.owner == Owner::kScheduled) return scheduled_left(run, token.index, now);
  if (token.owner == Owner::kPhase) return phase_left(run, token.index, now);
  RankState& rank = run.ranks[token.index];
  CallState& call = run.calls[run.graph->rank_slots[token.index].call];
  --rank.leaving;
  if (call.algorithm == Algorithm::kRing) send_ring(run, token.index, call, now);
  if (end_or_wait(run, token.index, call, now)) post_end(run, token.index, now);
}

// To rank + 1 first, so that equal starts never meet at a receiver's port. The chunk is the
// receiver's in the phase that scatters, the sender's in the one that gathers.
void Collectives::send_direct_phase(Run& run, std::uint32_t slot, CallState& call, int phase,
                                    Ps now) {
  RankState& rank = run.ranks[slot];
  const RankSlot& place = run.graph->rank_slots[slot];
  const bool gathers = phase == 1 || call.kind == CollectiveKind::kAllGather;
  const std::uint64_t sender = Token{Owner::kRankFirstPhase, run.index, slot}.pack();
  const Owner owner = phase == 0 ? Owner::kRankFirstPhase : Owner::kRankSecondPhase;
  for (std::uint32_t distance = 1; distance < call.num_ranks; ++distance) {
    const std::uint32_t to = minus(place.rank, call.num_ranks - distance, call.num_ranks);
    const std::uint32_t target = call.first + to;
    const Ps left =
        network_.send(now, {place.device, run.graph->rank_slots[target].device, call.timing_bytes,
                            call.exact_bytes(gathers ? place.rank : to),
                            Token{owner, run.index, target}.pack(), sender});
    note_departure(rank, left);
    ++rank.sent;
  }
}

// True when the rank has nothing left to do now; posts its end when only its own port is still
// busy.
bool Collectives::end_or_wait(Run& run, std::uint32_t slot, const CallState& call, Ps now) {
  RankState& rank = run.ranks[slot];
  if (rank.sent < call.steps || rank.received[0] + rank.received[1] < call.steps || rank.ended)
    return false;
  if (rank.leaving > 0) return false;
  rank.ended = true;
  if (rank.left_at <= now) return true;
  post_end(run, slot, rank.left_at);
  return false;
}

void Collectives::post_end(const Run& run, std::uint32_t slot, Ps at) {
  const model::NodeIndex node = run.graph->rank_slots[slot].node;
  const std::uint64_t entity = (static_cast<std::uint64_t>(run.graph->device[node]) << 8) |
                               static_cast<std::uint64_t>(run.graph->stream[node]);
  queue_.push(at, EventKind::kNodeEnd, entity, Token{Owner::kNode, run.index, node}.pack());
}

}  // namespace astra_sim::engine
