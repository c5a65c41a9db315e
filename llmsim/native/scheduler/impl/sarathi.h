// Sarathi-Serve's stall-free batching (A. Agrawal et al., "Taming Throughput-Latency Tradeoff in
// LLM Inference with Sarathi-Serve", OSDI 2024), with the details of Vidur's
// SarathiReplicaScheduler.
//
// Every step first takes one token of each running decode, then goes on with started prompts, then
// starts new ones; the prompts share what is left of the chunk size (the token budget). The blocks
// of a whole prompt are taken when it starts, as long as the watermark stays free. A decode that
// finds no block restarts the youngest request. With pipeline stages, as many batches are in
// flight; a request is in one of them at most, and a restart takes one that is in none (Vidur: what
// runs is in no queue). Unlike Vidur, nothing is started in a step that restarted something, and
// equal prefixes may share blocks.
#pragma once

#include "scheduler/batch_scheduler.h"

namespace llmsim {

class Sarathi final : public BatchScheduler {
 public:
  static constexpr OptionDefault kDefaults[] = {{"async_scheduling", false},
                                                {"enable_prefix_caching", false}};
  static constexpr Lack kLacks[] = {
      {"no_enable_chunked_prefill", "Sarathi-Serve always cuts prompts to the token budget"},
  };

  using BatchScheduler::BatchScheduler;
  std::int32_t max_depth() const override { return Scheduler::max_depth(); }

 private:
  void form(Ps now, Batch& batch) override;
  void schedule_decodes(Batch& batch);
};

}  // namespace llmsim
