// The wall clock, for how long a call may take; results never depend on it.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace llmsim {

// Milliseconds since some moment. Cheap enough for every event: Linux keeps this clock at a few
// milliseconds.
inline std::int64_t wall_ms() {
#ifdef CLOCK_MONOTONIC_COARSE
  timespec now{};
  if (clock_gettime(CLOCK_MONOTONIC_COARSE, &now) == 0)
    return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
#endif
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

}  // namespace llmsim
