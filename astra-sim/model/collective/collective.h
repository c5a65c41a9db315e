// What a collective is, apart from when it runs: kind, algorithm, group, and measured durations.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/base/types.h"

namespace astra_sim::model {

// `bytes` of a collective is the whole vector S of one rank: all-reduce: the vector;
// reduce-scatter: the input; all-gather: the output; all-to-all: everything a rank sends, its own
// part included. A message carries S / n. Broadcast, reduce, gather, scatter: the root's vector,
// before or after. Barrier: the size of each of its messages.
enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kBarrier
};

// ring: messages to the next rank of the group's list, each after the previous one was received.
// direct: a message to every other rank at once, rank + 1 first; all-reduce in two such phases.
// measured: no messages; starts when all ranks have arrived, ends for all together after a measured
// duration. halving_doubling: recursive halving and doubling; what exceeds a power of two hands its
// vector to a neighbour first. Rooted kinds: a binomial tree. double_binary_tree: each half of the
// vector up and down a binary tree of its own (all-reduce, broadcast, reduce). in_switch: the
// switch that all ranks hang on reduces and multicasts. custom: the messages of a schedule that the
// plan brings along (Schedule::custom). Rooted kinds on a ring pass along a chain. A barrier is a
// dissemination in log2(n) rounds, whatever the algorithm.
enum class Algorithm : std::uint8_t {
  kRing,
  kDirect,
  kMeasured,
  kHalvingDoubling,
  kDoubleBinaryTree,
  kInSwitch,
  kCustom
};

const char* name_of(CollectiveKind kind);
const char* name_of(Algorithm algorithm);

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

class Topology;
class Schedule;

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

// How the calls of one communicator run; `group` indexes the graph's groups.
struct CollectivePlan {
  CollectiveKind kind;
  Algorithm algorithm;
  GroupId group;
  std::shared_ptr<const MeasuredTable> table;  // for Algorithm::kMeasured, else null
  CollectiveShape shape{};
  std::shared_ptr<const Schedule>
      schedule{};  // where is_scheduled; GraphBuilder makes it unless it is given
};

// False for what runs without a schedule: measured, and plain ring and direct of the first four
// kinds.
bool is_scheduled(CollectiveKind kind, Algorithm algorithm, const CollectiveShape& shape);

// Messages that each rank sends one after the other under the ring algorithm (n >= 1 ranks).
std::int64_t ring_steps(CollectiveKind kind, std::int64_t num_ranks);

// 2 for a direct all-reduce (reduce-scatter, then all-gather), else 1.
std::int64_t direct_phases(CollectiveKind kind);

}  // namespace astra_sim::model
