// What a collective is, apart from when it runs: kind, algorithm, group, and measured durations.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/base/types.h"
#include "model/collective/algorithm_word.h"

namespace astra_sim::model {

// Durations measured at some sizes; integer linear interpolation between them, rounded half up,
// clamped below the first size, extrapolated above the last from the last two. Immutable.
class MeasuredTable {
 public:
  // Throws InvalidTopology unless sizes ascend strictly, durations are >= 0 and both have the same
  // length >= 1.
  MeasuredTable(std::vector<Bytes> bytes, std::vector<Ps> ps);
  // Throws OutOfRange above kMaxSpan.
  Ps at(Bytes bytes) const;

 private:
  std::vector<Bytes> bytes_;
  std::vector<Ps> ps_;
};

class RingPhases;
class Schedule;
class Topology;

// What goes beyond one algorithm on a flat group. `dims` (their product is the number of ranks,
// dims[0] fastest in rank order) with one algorithm each makes a plan of several dimensions, such
// as a hierarchical all-reduce: reduce-scatter in dimensions 0, 1, ..., all-reduce in the last,
// all-gather back; all-gather from the last to the first, and so on. The vector passes in `pieces`
// one behind the other. `windows`: where a dimension is direct, how many messages of a phase a rank
// may have sent beyond those that it has received (0: all at once). `pair_units[i * n + j]`: an
// all-to-all in which rank i sends rank j that many units of the node's bytes. `topology`: where
// in_switch finds its switch.
struct CollectiveShape {
  std::vector<std::uint32_t> dims;
  std::vector<Algorithm> algorithms;   // as many as dims; empty: the plan's in every dimension
  std::vector<std::uint32_t> windows;  // as many as dims; empty: 0 in every dimension
  std::uint32_t pieces = 1;
  std::uint32_t root = 0;  // rank
  std::shared_ptr<const std::vector<std::int64_t>> pair_units;
  std::shared_ptr<const Topology> topology;
};

// What an algorithm wants to know on one line: its window, the topology where it needs a switch.
CollectiveShape shape_of(const AlgorithmChoice& choice, std::shared_ptr<const Topology> topology);

// How the calls of one communicator run; `group` indexes the graph's groups.
struct CollectivePlan {
  CollectiveKind kind;
  Algorithm algorithm;
  GroupId group;
  std::shared_ptr<const MeasuredTable> table;  // for Algorithm::kMeasured, else null
  CollectiveShape shape{};
  // Where is_scheduled, one of the two: GraphBuilder makes it, unless a schedule is given.
  std::shared_ptr<const Schedule> schedule{};
  std::shared_ptr<const RingPhases> phases{};
};

// False for what runs without a schedule: measured, and plain ring and direct of the first four
// kinds.
bool is_scheduled(CollectiveKind kind, Algorithm algorithm, const CollectiveShape& shape);

// Messages that each rank sends one after the other under the ring algorithm (n >= 1 ranks).
std::int64_t ring_steps(CollectiveKind kind, std::int64_t num_ranks);

// 2 for a direct all-reduce (reduce-scatter, then all-gather), else 1.
std::int64_t direct_phases(CollectiveKind kind);

}  // namespace astra_sim::model
