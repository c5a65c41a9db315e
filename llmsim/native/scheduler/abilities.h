// What only some schedulers can do: small interfaces that the queries of Scheduler return, or null.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace llmsim {

class GroupCopies;
class GroupTiers;
class KeyLog;

// A request whose prompt's KV comes from another group, and how much of it (tokens) was here
// already.
struct Reserved {
  RequestId request;
  std::int32_t cached;
};

// Holds blocks that transfers fill or read: it parks requests until their KV has come, and keeps
// the blocks of requests that have left until their KV has been read (the scheduler's side of
// vLLM's KVConnector). Groups that play a role of prefill/decode disaggregation need it.
class KvConnector {
 public:
  // Appends the requests that the last `schedule` gave blocks to and parked until their KV is here.
  virtual void take_reserved(std::vector<Reserved>& out) = 0;
  // One transfer that a parked request waits for has ended; or the KV of a request that ended here
  // has been read by the group that decodes it. False: the KV has not come, and the request has
  // ended with an error.
  virtual bool transferred(RequestId request) = 0;
  // Whether it hears with a step's output of all that has moved until then, and not only of what
  // had when the step was launched.
  virtual bool hears_at_output() const { return false; }
  // Whether the engines at both ends hear on their own that a client has gone, and one that has
  // reserved memory for KV keeps it until the other end says that nothing comes any more (SGLang).
  virtual bool drains() const { return false; }
  // A request leaves whose KV has not been taken over: `transferred` tells that nothing comes any
  // more. Asked before its scheduler drops it.
  virtual bool awaits_drain(RequestId) const { return false; }
  // Requests that have ended here and count as outstanding, since their KV is not known to be sent.
  virtual std::int32_t unsent() const { return 0; }

 protected:
  ~KvConnector() = default;
};

// Keeps KV in pools below the group's own.
class TieredKv {
 public:
  // The pools stay for as long as the scheduler lives. Throws std::invalid_argument where their
  // chunks are not whole blocks, or where there is no prefix cache.
  virtual void use_tiers(GroupTiers* tiers) = 0;
  // Whether a request that recalls KV can be parked while the batch runs without it.
  virtual bool may_park() const = 0;

 protected:
  ~TieredKv() = default;
};

// Keeps KV in a pool in host memory under vLLM's own rules (OffloadingConnector); how is in its
// config.
class OffloadedKv {
 public:
  // The copies stay for as long as the scheduler lives. Throws std::invalid_argument where there is
  // no prefix cache, or layers are of several kinds.
  virtual void use_copies(GroupCopies& copies) = 0;

 protected:
  ~OffloadedKv() = default;
};

// Copies KV between its devices and host memory beside the steps.
class HostCopying {
 public:
  // The step that was launched last ends then.
  virtual void device_runs_until(Ps end) = 0;
  // When the next copy under way ends; the largest Ps where there is none.
  virtual Ps next_copy() const = 0;

 protected:
  ~HostCopying() = default;
};

// Has a prefix cache whose changes a router may follow.
class PrefixEvents {
 public:
  // The changes of the cached keys are noted in `log` from now on.
  virtual void log_keys(KeyLog* log) = 0;

 protected:
  ~PrefixEvents() = default;
};

// Counts the rounds of its lock-step group (vLLM's prefill_schedule_interval).
class RoundCounting {
 public:
  // Called before each `schedule`, and where there are no requests in its place: the rounds that
  // the lock-step group has run.
  virtual void set_round(std::int64_t round, Ps now) = 0;
  // Whether it takes part in each round in which another member has work, whatever it waits for
  // itself, and in no other (SGLang's idle batches). Members ask again together, where no round
  // begins.
  virtual bool idles_along() const { return false; }
  // Whether the last `schedule` found no prompts and left its batch empty, since decodes run only
  // in rounds in which no member has prompts (SGLang's ranks with drafts). After `release` the next
  // `schedule` forms them; after `forgo` it is a new one.
  virtual bool withholds() const { return false; }
  virtual void release() {}
  virtual void forgo() {}

 protected:
  ~RoundCounting() = default;
};

// Where the loop of an engine stands.
enum class EngineTurn : std::uint8_t {
  kLooks,   // for what has arrived, in front of its next step; without work it idles
  kAwaits,  // the output of its oldest batch
  kTakes,   // that of its oldest call, which gave no batch: what had moved when it was made
  kDummy,   // until its devices run a dummy batch
  kAgrees,  // with the other data-parallel ranks, whether any of them has work
};

// Runs the loop of its engine itself, as a member of a lock-step group (vLLM:
// DPEngineCoreProc.run_busy_loop). The loop goes on with `Scheduler::schedule`, called where it
// looks and has work, with `Scheduler::update`, called where it awaits a batch that has ended, and
// with `go_on`; each returns where it stands next.
class EngineLoop {
 public:
  virtual EngineTurn turn() const = 0;
  // Whether a loop that looks runs a step, and does not idle.
  virtual bool has_work() const = 0;
  // When the call was made whose output a loop that takes it (kTakes) takes.
  virtual Ps taken_from() const = 0;
  // Its devices are no further behind its dummy than they may be, it has heard of what has moved,
  // or all ranks have come to agree.
  virtual void go_on() = 0;

 protected:
  ~EngineLoop() = default;
};

}  // namespace llmsim
