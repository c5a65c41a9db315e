// What moves KV between a group's devices and what is below them, as the group's loop sees it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/types.h"

namespace llmsim {

class GroupMoves {
 public:
  virtual ~GroupMoves() = default;
  // A batch has been formed while `in_flight` were in flight, and `runs` where it is not empty:
  // what was asked for meanwhile starts.
  virtual void formed(Ps now, std::int32_t in_flight, bool runs) = 0;
  // The oldest batch in flight has ended.
  virtual void step_ended(Ps now) = 0;
  // Whether all that the batch waits for is there.
  virtual bool open() const = 0;
  // Recounts what it holds (invariant 4).
  virtual bool consistent() const = 0;
  // Bytes to and from each pool, by (pool, bytes).
  virtual const std::vector<std::pair<std::int32_t, std::int64_t>>& moved() const = 0;
};

}  // namespace llmsim
