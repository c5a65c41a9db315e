// Who hears what a group does with its requests, beside those who get its answers.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "program/batch.h"
#include "step/executors/executor.h"

namespace llmsim {

class Group;

class GroupObserver {
 public:
  virtual ~GroupObserver() = default;
  // What an engine has of a request that it drops.
  enum class Dropped : std::uint8_t {
    kRequest,  // no KV that is on its way
    kKv,       // memory that another group fills, which stays until that has said that it does not
  };
  // The engine of group `group` has dropped a request whose client has gone.
  virtual void dropped(RequestId request, std::int32_t group, Dropped what, Ps now) = 0;
  // The group holds blocks for the whole prompt, of which it had the first `cached` tokens; the
  // rest comes from elsewhere. Returns how long the host of each worker posts the reads of that
  // rest, before it launches what it has been given along with them.
  virtual Ps reserved(RequestId request, std::int32_t cached, Ps now) = 0;
  // A batch starts whose times are not known yet, as the group's step of that number; `passed` or
  // `attended` says how far it is, and `launched` when it has ended.
  virtual void begins(const Group& group, const Batch& batch, std::int64_t step, Ps now) = 0;
  virtual void passed(const Group& group, const Progress& progress, Ps now) = 0;
  // The attention of a layer ends at `at`, in the batch so many behind the oldest whose times are
  // not known.
  virtual void attended(const Group& group, std::int32_t behind, std::int32_t layer, Ps at,
                        Ps now) = 0;
  // The times of a batch are known, which has started or will.
  virtual void launched(const Group& group, const Batch& batch, const StepTimes& times, Ps now) = 0;
};

}  // namespace llmsim
