// What a group has copied to host memory and back.
#pragma once

#include <cstdint>

namespace llmsim {

// Since the beginning.
struct OffloadingCounters {
  std::int64_t stored_tokens = 0, loaded_tokens = 0, evicted_tokens = 0;
  std::int64_t refused_tokens = 0;    // were to be stored and found no room, each time
  std::int64_t deferred_lookups = 0;  // that passed over a request for a step
};

}  // namespace llmsim
