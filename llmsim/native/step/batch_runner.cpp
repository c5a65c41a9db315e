#include "step/batch_runner.h"

#include <algorithm>
#include <span>

namespace llmsim {

StepTimes BatchRunner::run(const Batch& batch, Ps now, Ps known) {
  const StepStart start{now, std::max(now, known)};
  if (!executor_) return chain_.run(costs_, batch, start);
  const Batch* const one = &batch;
  executor_->begin(std::span(&one, 1), start, *this);
  return times_;
}

}  // namespace llmsim
