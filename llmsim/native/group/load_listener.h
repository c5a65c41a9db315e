// What engines tell the coordinator of their data-parallel ranks.
#pragma once

#include <compare>
#include <cstdint>

#include "base/types.h"

namespace llmsim {

// An engine tells it when it has taken requests in, and after each step, if their numbers have
// changed (vLLM: EngineCoreProc.run_busy_loop).
struct PublishedLoad {
  std::int32_t running = 0, waiting = 0;
  double kv_usage = 0;
};

// Where a rank in lock-step is: in which iteration of which wave.
struct Iteration {
  std::int64_t wave = 0, number = 0;
  auto operator<=>(const Iteration&) const = default;
};

enum class WaveNews {
  kBegins,
  kFirstIterationEnds,  // of the first rank
  kEnds,
};

class LoadListener {
 public:
  virtual ~LoadListener() = default;
  virtual void load_changed(std::int32_t group, const PublishedLoad& load, Iteration at,
                            Ps now) = 0;
  virtual void wave_changed(WaveNews news, Ps now) = 0;
};

}  // namespace llmsim
