// Pools in host memory below a scheduler's own prefix cache, and the copies between both.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace llmsim {

// When pages are copied to the host: when they are inserted, when they are inserted or found for
// the second time, or when they are evicted from the device.
enum class HostCacheWrite : std::uint8_t { kThrough, kThroughSelective, kBack };

// When requests that wait for pages from storage are admitted without the rest: at once, when all
// are there, or when a time has passed.
enum class StoragePrefetch : std::uint8_t { kBestEffort, kWaitComplete, kTimeout };

// Storage behind the pool, which keeps what was copied to the host.
struct HostStorageConfig {
  std::int32_t prefetch_threshold = 0;  // tokens, fewer are not looked for; 0: there is no storage
  StoragePrefetch prefetch = StoragePrefetch::kTimeout;
  Ps timeout = 0, timeout_per_page = 0;
  // Scheduling passes until a request looks again for what it did not find; and how often it does.
  std::int64_t retry_passes = 8, most_retries = 8;
  Ps query_latency = 0, read_latency = 0, write_latency = 0;  // of each operation
  Ps read_ps_per_token = 0, write_ps_per_token = 0;
  std::int64_t capacity_bytes = 0;  // 0: everything fits
  std::int64_t page_bytes = 1;

  bool on() const { return prefetch_threshold > 0; }
};

struct HostCacheConfig {
  std::int32_t pages = 0;  // 0: there is none
  // Of layers with a window, and states, where the device has pools of these, too.
  std::int32_t window_pages = 0, states = 0;
  HostCacheWrite write = HostCacheWrite::kThrough;
  std::int32_t load_back_tokens = 10;  // fewer are computed again
  // Of one copy: a part of it for each token, and one for all.
  Ps copy_latency = 0, write_ps_per_token = 0, load_ps_per_token = 0;
  Ps write_ps_per_window_token = 0, load_ps_per_window_token = 0;
  Ps write_ps_per_state = 0, load_ps_per_state = 0;
  std::int32_t layers = 1;  // loaded one by one, while the step computes those before
  HostStorageConfig storage;

  bool on() const { return pages > 0; }
};

// Tokens: copied to the host and back; that left the device without a copy; that left the host;
// that were written to storage, that came from there to the host, and that left it.
struct HostCacheCounters {
  std::int64_t written = 0, loaded = 0, dropped = 0, evicted = 0;
  std::int64_t stored = 0, prefetched = 0, erased = 0;
};

}  // namespace llmsim
