// What a group tells the KV transfers between prefill and decode groups.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "program/batch.h"
#include "step/executor.h"

namespace llmsim {

class Group;

class KvTransferObserver {
 public:
  virtual ~KvTransferObserver() = default;
  // The engine of group `group` has dropped a request whose client has gone.
  virtual void dropped(RequestId request, std::int32_t group, Ps now) = 0;
  // A decode group holds blocks for the whole prompt, of which it had the first `cached` tokens.
  virtual void reserved(RequestId request, std::int32_t cached, Ps now) = 0;
  // A prefill group starts a batch, now or later.
  virtual void launched(const Group& prefill, const Batch& batch, const StepTimes& times,
                        Ps now) = 0;
};

}  // namespace llmsim
