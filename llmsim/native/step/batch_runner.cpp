#include "step/batch_runner.h"

#include <span>

namespace llmsim {

StepTimes BatchRunner::run(const Batch& batch, Ps now) {
  if (!executor_) return chain_.run(costs_, batch, now);
  const Batch* const one = &batch;
  executor_->begin(std::span(&one, 1), {now, now}, *this);
  return times_;
}

}  // namespace llmsim
