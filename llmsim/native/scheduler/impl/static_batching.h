// Static batching, as NVIDIA's FasterTransformer and its Triton backend serve: a batch runs to
// completion; and as Vidur's FasterTransformerReplicaScheduler models it.
//
// A batch is made of what waits when nothing runs, up to the batch size and while there is room for
// the longest possible sequence, which is reserved at once; whoever comes later waits until the
// last request of the batch has finished, and so does the memory of those that finished before.
// There is no wait for a batch to fill up. As in Vidur, finished requests cost no more compute: the
// padding that a real static batch drags along is not priced, nor are answers held back until the
// batch ends. The token budget also bounds how many prompts start together.
#pragma once

#include "scheduler/batch_scheduler.h"

namespace llmsim {

class StaticBatching final : public BatchScheduler {
 public:
  static constexpr OptionDefault kDefaults[] = {{"async_scheduling", false},
                                                {"enable_chunked_prefill", false},
                                                {"enable_prefix_caching", false}};
  static constexpr Lack kLacks[] = {
      {"pp_size",
       "static batching forms no batch before the last one has finished, so that one stage works "
       "at a time"},
      {"enable_chunked_prefill", "static batching computes a prompt in one iteration"},
      {"enable_prefix_caching",
       "static batching reserves the memory of a request for it alone, and has no prefix cache"},
      {"kv_tiers", "static batching has no prefix cache that they could extend"},
      {"watermark",
       "static batching reserves the longest answer of each request, so none grows into spare "
       "blocks"},
  };

  using BatchScheduler::BatchScheduler;

 private:
  void form(Ps now, Batch& batch) override;
  void leave(RequestId request) override { left_.push_back(request); }
  void completed() override;

  std::vector<RequestId> left_;  // finished, but their batch has not
};

}  // namespace llmsim
