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
  using BatchScheduler::BatchScheduler;

 private:
  void form(Ps now, Batch& batch) override;
  void leave(RequestId request) override { left_.push_back(request); }
  void completed() override;

  std::vector<RequestId> left_;  // finished, but their batch has not
};

}  // namespace llmsim
