// Result tables: what an engine counted, and when the nodes of a graph ran.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "model/base/types.h"
#include "model/graph/graph.h"

namespace astra_sim::model {

// Per directed link, since the engine was made. A message's bytes, and what it waits, count when it
// is given to the link (of a cancelled one on a fair-share network what it has moved). Busy time is
// up to now and never overlaps on a congestion-aware link; on a fair-share one it is the time with
// at least one message; on a congestion-unaware one it counts with the bytes and may exceed the
// elapsed time, because messages do not wait for each other there; it stays at 2^63 - 1 then.
struct LinkCounters {
  Bytes bytes = 0;  // exact, without the padding of equal chunks
  std::int64_t messages = 0;
  Ps busy_ps = 0;
  Ps queue_ps = 0;       // summed waiting of messages before they were sent, at most 2^63 - 1
  Ps peak_queue_ps = 0;  // the longest wait of one message
  std::int64_t peak_messages = 0;  // at once; only where messages share a link (fair share)
};

// Per instance of a memory tier (MemorySystem::place). Bytes and busy times are those of its
// channels, which are links.
struct TierCounters {
  std::int64_t loads = 0;
  std::int64_t stores = 0;
  Ps waiting_ps =
      0;  // summed, of accesses that waited for a channel of a fifo tier; at most 2^63 - 1
  std::int64_t peak_waiting = 0;
  Bytes used_bytes = 0;  // reserved and not freed
  Bytes peak_used_bytes = 0;
};

// Per device: time that nodes ran, by stream and by power class (nodes on Stream::kNone may
// overlap; their sums stay at 2^63 - 1).
struct DeviceCounters {
  std::array<Ps, kNumStreams> busy_ps{};
  std::array<Ps, kNumPowerClasses> class_ps{};
};

// Times of one finished graph; index = node. Valid until the graph is released.
struct NodeTimes {
  std::span<const Ps> start_ps;
  std::span<const Ps> end_ps;
};

using GraphId = std::uint64_t;

struct Completion {
  GraphId graph;
  Ps end_ps;
};

}  // namespace astra_sim::model
