// Which calls belong together: the session of each request, and its place in it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace llmsim {

// By row. A session is named by the row of its first call; rounds count from 0.
struct Sessions {
  std::vector<std::int32_t> session, round;

  // `next_call` is the row of each call's successor in its session, or -1. A successor may stand
  // before its predecessor.
  explicit Sessions(const std::vector<std::int32_t>& next_call)
      : session(next_call.size()), round(next_call.size()) {
    std::vector<char> follows(next_call.size(), 0);
    for (const std::int32_t next : next_call)
      if (next >= 0) follows.at(static_cast<std::size_t>(next)) = 1;
    for (std::size_t first = 0; first < next_call.size(); ++first) {
      if (follows[first] != 0) continue;
      std::int32_t count = 0;
      for (auto row = static_cast<std::int32_t>(first); row >= 0;
           row = next_call[static_cast<std::size_t>(row)]) {
        session[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(first);
        round[static_cast<std::size_t>(row)] = count++;
      }
    }
  }
};

}  // namespace llmsim
