// Run: the changing half of a graph in flight; its buffers are reused by later graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/base/types.h"
#include "model/collective/ring_phases.h"
#include "model/collective/schedule.h"
#include "model/graph/graph.h"
#include "model/graph/results.h"

namespace astra_sim::engine {

using model::Ps;

// Progress of one rank in one collective call.
struct RankState {
  std::int32_t sent = 0;
  std::int32_t received[2] = {0,
                              0};  // by phase; a message may arrive before its receiver has started
  std::uint32_t chunk = 0;         // the next one to send (counters only)
  std::uint32_t left_in_round = 0;  // ring all-to-all: blocks still to relay in this round
  std::uint32_t round = 0;
  std::uint32_t leaving = 0;  // messages sent that have not left its port, where that is told later
  bool started = false;
  bool ended = false;
  Ps left_at = 0;  // when its last message has left its port
};

// Progress of one rank in one phase of a call that runs by RingPhases.
struct PhaseState {
  std::uint32_t sent = 0;
  std::uint32_t received = 0;
  bool leaving = false;  // its last message has not left, and when it does is told later
};

// What all ranks of a call share, computed when the first of them starts.
struct CallState {
  std::int64_t timing_bytes = -1;  // per message; -1: not yet computed
  std::int64_t floor_bytes = 0;    // exact bytes: floor_bytes + (chunk < remainder)
  std::uint32_t remainder = 0;
  std::uint32_t num_started = 0;
  std::int32_t steps = 0;   // messages that a rank sends, and receives, in all
  std::uint32_t first = 0;  // copies of the graph's call and plan, for the hot path
  std::uint32_t num_ranks = 0;
  std::uint32_t first_message = 0;  // scheduled: of this call, in the run
  std::uint32_t first_phase = 0;    // by phases: of this call, in the run
  const model::Schedule* schedule = nullptr;
  const model::RingPhases* phases = nullptr;
  model::CollectiveKind kind{};
  model::Algorithm algorithm{};

  model::Bytes exact_bytes(std::uint32_t chunk) const {
    return floor_bytes + (chunk < remainder ? 1 : 0);
  }
};

struct LaneState {
  std::uint32_t cursor = 0;  // nodes that have ended
  bool at_head = false;      // its device's stream serves this graph
  bool busy = false;
};

struct Run {
  std::shared_ptr<const model::ExecutionGraph> graph;
  model::GraphId id = 0;
  std::uint32_t index = 0;  // of this run in the engine
  std::uint32_t nodes_left = 0;
  bool finished = false;
  std::vector<std::int64_t> own_amount;  // when the submission gave amounts
  std::span<const std::int64_t> amount;
  std::vector<std::uint32_t> open_parents;
  std::vector<Ps> start_ps;  // -1: not yet
  std::vector<Ps> end_ps;
  std::vector<LaneState> lanes;
  std::vector<std::vector<model::NodeIndex>>
      ready;  // by lane, a heap; only of graphs served by readiness
  std::vector<RankState> ranks;
  std::vector<CallState> calls;
  std::vector<std::uint32_t>
      waits;  // scheduled calls that have started: what each item still waits for
  std::vector<std::uint32_t> call_of;  // ... and their calls
  std::vector<PhaseState> phases;      // calls by phases that have started, rank by rank
  std::vector<std::uint32_t> call_of_phase;
  std::vector<std::uint8_t> arrived;  // recv nodes: the message is there

  // Readies the buffers for a submission; `amounts` empty: the graph's own.
  void reset(std::shared_ptr<const model::ExecutionGraph> next,
             std::span<const std::int64_t> amounts);

  // The node that a lane runs next, taken from it; kNone while it has to wait.
  model::NodeIndex take(std::uint32_t lane);
  void make_ready(model::NodeIndex node);  // only of graphs served by readiness
};

}  // namespace astra_sim::engine
