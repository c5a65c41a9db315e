// RingPhases: rings in one dimension after the other, message by message by rule. It is what a
// Schedule would hold, without its tables: a torus has millions of messages.
#pragma once

#include <cstdint>
#include <vector>

#include "model/collective/collective.h"

namespace astra_sim::model {

// An all-reduce, all-gather or reduce-scatter whose dimensions are rings. In a phase the ranks of a
// line, which differ in one dimension only, send to their neighbours: message k of a rank and phase
// waits for message k - 1 from the rank before, the first one for all that the rank receives in the
// phases before. Messages of one neighbour leave in order; where the vector passes in pieces, those
// of one neighbour and phase do. Immutable.
class RingPhases {
 public:
  // False: the plan needs a Schedule.
  static bool covers(const CollectivePlan& plan);
  // Needs covers(plan), and a plan that Schedule::check takes.
  RingPhases(const CollectivePlan& plan, std::uint32_t num_ranks);

  std::uint32_t count() const { return static_cast<std::uint32_t>(phases_.size()); }
  std::uint32_t pieces() const { return pieces_; }
  // Messages of a rank in a phase, for one piece.
  std::uint32_t steps(std::uint32_t phase) const { return phases_[phase].size - 1; }
  // That a rank sends, and receives.
  std::int64_t messages_per_rank() const { return per_rank_; }
  // The other phase with the same neighbour: an earlier one, and a later one; kNone without.
  std::uint32_t earlier(std::uint32_t phase) const { return phases_[phase].earlier; }
  std::uint32_t later(std::uint32_t phase) const { return phases_[phase].later; }
  std::uint32_t neighbour(std::uint32_t phase, std::uint32_t rank) const {
    const Phase& at = phases_[phase];
    const std::uint32_t last = (at.size - 1) * at.stride;
    return rank / at.stride % at.size == at.size - 1 ? rank - last : rank + at.stride;
  }
  // Of one message, rounded up; and the bytes of message `index` (of all pieces) of a rank.
  Bytes timing_bytes(std::uint32_t phase, Bytes bytes) const;
  Bytes exact_bytes(std::uint32_t phase, std::uint32_t rank, std::uint32_t index,
                    Bytes bytes) const;

 private:
  struct Phase {
    bool gathers;
    std::uint32_t size;
    std::uint32_t stride;
    std::uint32_t dim;
    std::int64_t units;                // of a message
    std::vector<std::int64_t> weight;  // by dimension: how far apart neighbours' parts begin
    std::uint32_t earlier = kNone;
    std::uint32_t later = kNone;
  };
  void add(bool gathers, std::uint32_t dim);

  std::vector<std::uint32_t> dims_;
  std::vector<std::uint32_t> stride_;
  std::vector<std::int64_t> weight_;  // after the phases so far
  std::int64_t units_ = 0;            // of each rank, after the phases so far
  std::int64_t denominator_;
  std::uint32_t pieces_;
  std::int64_t piece_units_;
  std::int64_t per_rank_ = 0;
  std::vector<Phase> phases_;
};

}  // namespace astra_sim::model
