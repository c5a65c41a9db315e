// What a collective is, apart from when it runs: kind, algorithm, group, and measured durations.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/types.h"

namespace astra_sim::model {

// `bytes` of a collective is the whole vector S of one rank: all-reduce: the vector; reduce-scatter: the input;
// all-gather: the output; all-to-all: everything a rank sends, its own part included. A message carries S / n.
enum class CollectiveKind : std::uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all };

// ring: messages to the next rank of the group's list, each after the previous one was received.
// direct: a message to every other rank at once, rank + 1 first; all-reduce in two such phases.
// measured: no messages; starts when all ranks have arrived, ends for all together after a measured duration.
enum class Algorithm : std::uint8_t { ring, direct, measured };

const char* name_of(CollectiveKind kind);
const char* name_of(Algorithm algorithm);

// Durations measured at some sizes; integer linear interpolation between them, rounded half up, clamped below the
// first size, extrapolated above the last from the last two. Immutable.
class MeasuredTable {
 public:
  // Throws InvalidTopology unless sizes ascend strictly, durations are >= 0 and both have the same length >= 1.
  MeasuredTable(std::vector<Bytes> bytes, std::vector<Ps> ps);
  // Throws OutOfRange above kMaxSpan.
  Ps at(Bytes bytes) const;

 private:
  std::vector<Bytes> bytes_;
  std::vector<Ps> ps_;
};

// How the calls of one communicator run; `group` indexes the graph's groups.
struct CollectivePlan {
  CollectiveKind kind;
  Algorithm algorithm;
  GroupId group;
  std::shared_ptr<const MeasuredTable> table;  // for Algorithm::measured, else null
};

// Messages that each rank sends one after the other under the ring algorithm (n >= 1 ranks).
std::int64_t ring_steps(CollectiveKind kind, std::int64_t num_ranks);

// 2 for a direct all-reduce (reduce-scatter, then all-gather), else 1.
std::int64_t direct_phases(CollectiveKind kind);

}  // namespace astra_sim::model
