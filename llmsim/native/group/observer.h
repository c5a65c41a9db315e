// Who hears what a group does with its requests, beside those who get its answers.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "program/batch.h"
#include "step/executor.h"

namespace llmsim {

class Group;

class GroupObserver {
 public:
  virtual ~GroupObserver() = default;
  // The engine of group `group` has dropped a request whose client has gone.
  virtual void dropped(RequestId request, std::int32_t group, Ps now) = 0;
  // The group holds blocks for the whole prompt, of which it had the first `cached` tokens; the
  // rest comes from elsewhere.
  virtual void reserved(RequestId request, std::int32_t cached, Ps now) = 0;
  // The times of a batch are known, which has started or will.
  virtual void launched(const Group& group, const Batch& batch, const StepTimes& times, Ps now) = 0;
};

}  // namespace llmsim
