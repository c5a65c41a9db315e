// How a release of vLLM chooses among data-parallel engines; the defaults are those of 0.33.
#pragma once

#include "base/types.h"

namespace llmsim {

struct BalancerRules {
  // An engine scores by its requests in flight and its KV; else by 4 * waiting + running.
  bool by_requests_in_flight = true;
  bool rotates = true;      // the scan for the least score begins one engine further each time
  bool hears_loads = true;  // engines tell the coordinator their loads; else it reports zeros
  Ps quiet = 0;             // what the coordinator waits at least behind a message
  bool hears_of_first_requests = false;  // an API server tells it of its first one behind a report
  // Of ranks in lock-step, the first one tells it of its first iteration of a wave; else an API
  // server's first request says that a wave begins.
  bool hears_of_first_iterations = true;
};

}  // namespace llmsim
