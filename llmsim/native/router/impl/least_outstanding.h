// The group with the fewest unfinished requests: a router, and what other routers fall back to.
#pragma once

#include <span>

#include "group/group.h"

namespace llmsim {

// Index into `candidates` (not empty); the lowest index wins a tie.
inline std::size_t fewest_outstanding(std::span<Group* const> candidates) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < candidates.size(); ++i)
    if (candidates[i]->outstanding() < candidates[best]->outstanding()) best = i;
  return best;
}

}  // namespace llmsim
