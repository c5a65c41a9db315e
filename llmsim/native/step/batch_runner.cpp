#include "step/batch_runner.h"

#include <span>

namespace llmsim {

StepTimes BatchRunner::run(const Batch& batch, Ps now) {
  const StepStart start{now, now};
  if (!executor_) return chain_.run(costs_, batch, start);
  const Batch* const one = &batch;
  executor_->begin(std::span(&one, 1), start, *this);
  return times_;
}

}  // namespace llmsim
