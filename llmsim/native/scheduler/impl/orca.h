// Orca's iteration-level scheduling (G.-I. Yu et al., "Orca: A Distributed Serving System for
// Transformer-Based Generative Models", OSDI 2022).
//
// Each iteration runs every started request (one token) and starts waiting ones in order of arrival
// with their whole prompts, up to the batch size and while there is room for the longest possible
// sequence, which is reserved at once. A finished request leaves, and its room is refilled, at the
// next iteration; nothing is ever preempted. With pipeline stages, as many batches are in flight,
// and a request is in one of them at most (its algorithm 1). Not Orca's: the token budget of a step
// also bounds how many prompts start together (costs are tabulated up to it).
#pragma once

#include "scheduler/batch_scheduler.h"

namespace llmsim {

class Orca final : public BatchScheduler {
 public:
  static constexpr OptionDefault kDefaults[] = {{"async_scheduling", false},
                                                {"enable_chunked_prefill", false},
                                                {"enable_prefix_caching", false}};
  static constexpr Lack kLacks[] = {
      {"enable_chunked_prefill", "Orca computes a prompt in one iteration"},
      {"enable_prefix_caching",
       "Orca reserves the memory of a request for it alone, and has no prefix cache"},
      {"kv_tiers", "Orca has no prefix cache that they could extend"},
      {"watermark",
       "Orca reserves the longest answer of each request, so none grows into spare blocks"},
  };

  using BatchScheduler::BatchScheduler;
  std::int32_t max_depth() const override { return Scheduler::max_depth(); }

 private:
  void form(Ps now, Batch& batch) override;
};

}  // namespace llmsim
