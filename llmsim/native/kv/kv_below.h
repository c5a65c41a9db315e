// KV below a group's own blocks, as its KV cache and its scheduler see it: the scheduler's half of
// vLLM's KVConnectorBase_V1.
#pragma once

#include <cstdint>
#include <span>

#include "base/types.h"

namespace llmsim {

class KvBelow {
 public:
  static constexpr std::int32_t kLater = -1;
  // A request of a step: it has so many computed tokens when the step has ended.
  struct Scheduled {
    RequestId request;
    std::int32_t computed;
  };

  virtual ~KvBelow() = default;

  // Whether there is anything.
  virtual bool there() const { return true; }
  // Whether who takes something from below may be parked until it has come; else its step waits.
  virtual bool parks() const { return false; }
  // Whether this request, for which something was just found, is parked for it.
  virtual bool parks_for(RequestId request) const {
    static_cast<void>(request);
    return parks();
  }
  // Of what is found, recalled and lost at once.
  virtual std::int32_t chunk_tokens() const { return 1; }

  // Tokens behind the first `cached` ones of a waiting request that can be had from below; kLater:
  // that will be known in a later step.
  virtual std::int32_t find(RequestId request, std::int32_t cached) = 0;
  // The request, just admitted, hits `hit` tokens here and takes the next `recalled` from below.
  virtual void recall(RequestId request, std::int32_t hit, std::int32_t recalled) = 0;
  // The same for a request that is parked, before it has its blocks and when it has them.
  virtual void begin_load(RequestId request, std::int32_t hit, std::int32_t recalled) = 0;
  virtual void end_load(RequestId request, std::int32_t hit, std::int32_t recalled) = 0;
  // The KV of tokens from `before` to `after` has been computed.
  virtual void computed(RequestId request, std::int32_t before, std::int32_t after) = 0;

  // A step has been formed, in which these run and these have lost their blocks.
  virtual void scheduled(std::span<const Scheduled> items, std::span<const RequestId> preempted) {
    static_cast<void>(items);
    static_cast<void>(preempted);
  }
  enum class Leave : std::uint8_t { kEnded, kGaveUp };
  // The request leaves for good, with so many computed tokens worth keeping; its blocks are still
  // what they were.
  virtual void left(RequestId request, std::int32_t computed, Leave how) {
    static_cast<void>(request);
    static_cast<void>(computed);
    static_cast<void>(how);
  }
  // One of the request's transfers has ended, in the order of their beginning. False: nobody was
  // parked for it.
  virtual bool moved(RequestId request) {
    static_cast<void>(request);
    return true;
  }
  // Transfers that have not ended and for which nobody is parked.
  virtual std::int32_t num_unawaited() const { return 0; }
  // Recounts what it holds (invariant 4).
  virtual bool consistent() const { return true; }
  // Whether its engine has to form another step, whoever is left to run.
  virtual bool pending() const { return false; }
};

class NothingBelow final : public KvBelow {
 public:
  bool there() const override { return false; }
  std::int32_t find(RequestId, std::int32_t) override { return 0; }
  void recall(RequestId, std::int32_t, std::int32_t) override {}
  void begin_load(RequestId, std::int32_t, std::int32_t) override {}
  void end_load(RequestId, std::int32_t, std::int32_t) override {}
  void computed(RequestId, std::int32_t, std::int32_t) override {}
};

}  // namespace llmsim
