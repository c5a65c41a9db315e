// A pool of KV pages in host memory below a scheduler's own prefix cache, and its copies.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace llmsim {

// When pages are copied to the host: when they are inserted, when they are inserted or found for
// the second time, or when they are evicted from the device.
enum class HostCacheWrite : std::uint8_t { kThrough, kThroughSelective, kBack };

struct HostCacheConfig {
  std::int32_t pages = 0;  // 0: there is none
  HostCacheWrite write = HostCacheWrite::kThrough;
  std::int32_t load_back_tokens = 10;  // fewer are computed again
  // Of one copy: a part of it for each token, and one for all.
  Ps copy_latency = 0, write_ps_per_token = 0, load_ps_per_token = 0;
  std::int32_t layers = 1;  // loaded one by one, while the step computes those before

  bool on() const { return pages > 0; }
};

// Tokens: copied to the host and back; that left the device without a copy; and that left the host.
struct HostCacheCounters {
  std::int64_t written = 0, loaded = 0, dropped = 0, evicted = 0;
};

}  // namespace llmsim
