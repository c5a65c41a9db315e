// Decisions of a scheduler that somebody else may take: called on change, never per iteration or
// per block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/bad_policy.h"
#include "base/types.h"
#include "kv/eviction.h"
#include "scheduler/ranking/ranking.h"

namespace llmsim {

// What policies see of a request of their group: a copy, true for the moment of the call.
struct SequenceView {
  RequestId row = 0;
  std::int32_t tokens = 0, received = 0, computed = 0, blocks = 0, priority = 0;
  Ps arrival = 0;
};

// Empty: the scheduler's own decision. One set belongs to one group.
struct Policies {
  // Lower is sooner; asked once when a request joins the queue, ties by arrival, then row.
  std::function<std::int64_t(const SequenceView&)> queue_key;
  bool preempted_first = true;  // in front of all others; else by a key of its own
  // Index into the running requests (in order of admission) of the one to preempt for `needy`.
  std::function<std::int64_t(std::span<const SequenceView> running, const SequenceView& needy)>
      victim;
  std::shared_ptr<Eviction> eviction;
  std::shared_ptr<Ranking> ranking;  // of all lists that it declares
};

}  // namespace llmsim
