// Events in the order in which the loop hands them out, and the clock.
#pragma once

#include <array>
#include <cstdint>
#include <queue>
#include <stdexcept>
#include <vector>

#include "base/types.h"

namespace llmsim {

using EntityId = std::uint32_t;  // from 0, in order of registration; never used again
inline constexpr EntityId kMaxEntities = EntityId{1} << 24;

// The order of what happens at one time. There are no deltas: what is posted for an earlier phase
// of the present time runs next.
enum class Phase : std::uint8_t {
  kStepDone,      // of a group: the oldest batch in flight has ended
  kTransferDone,  // of the network: something lands, or a rate changes
  kGiveUp,        // of clients: one of them waits no longer
  kClientIdle,    // of clients: one of a closed loop is free to ask
  kControl,       // of what adds and removes entities
  kArrival,       // of clients: a request arrives
  kSchedule,      // of a group: it builds batches
  kRebalance,     // of the network: new rates, when all else of this time has happened
};
inline constexpr std::size_t kNumPhases = 8;

// 16 bytes. Ids instead of pointers break ties, and outlive the removal of an entity.
struct Event {
  Ps time;
  std::uint64_t key;  // phase: 8 bits, entity: 24, argument: 32

  Event(Ps at, Phase phase, EntityId entity, std::uint32_t argument)
      : time(at),
        key(static_cast<std::uint64_t>(phase) << 56 | static_cast<std::uint64_t>(entity) << 32 |
            argument) {}
  Phase phase() const { return static_cast<Phase>(key >> 56); }
  EntityId entity() const { return static_cast<EntityId>(key >> 32) & (kMaxEntities - 1); }
  std::uint32_t argument() const { return static_cast<std::uint32_t>(key); }
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : key > other.key;
  }
};
static_assert(sizeof(Event) == 16);

class EventQueue {
 public:
  void post(Ps time, Phase phase, EntityId entity, std::uint32_t argument = 0) {
    events_.push({time, phase, entity, argument});
    ++pending_[static_cast<std::size_t>(phase)];
  }
  bool empty() const { return events_.empty(); }
  const Event& top() const { return events_.top(); }
  void pop() {
    --pending_[static_cast<std::size_t>(events_.top().phase())];
    events_.pop();
  }
  // Whether an event is left at the present time.
  bool anything_now() const { return !events_.empty() && events_.top().time == now_; }
  // Whether an entity may go on to its own next event without posting it: no other event comes
  // before, and nobody looks.
  bool nothing_until(Ps time) const {
    return time <= next_look_ && time <= last_ && (events_.empty() || time < events_.top().time);
  }
  // Something may still come from outside at any time after this.
  void set_last(Ps time) { last_ = time; }
  // Somebody looks before the first event later than this.
  void set_next_look(Ps time) { next_look_ = time; }
  Ps next_look() const { return next_look_; }
  std::int64_t pending(Phase phase) const { return pending_[static_cast<std::size_t>(phase)]; }

  Ps now() const { return now_; }
  // Throws where time would go back or beyond what numbers hold.
  void advance(Ps time) {
    if (time < now_) throw std::logic_error("invariant 3: the clock went back");
    if (time > kHorizon)
      throw std::overflow_error("the simulated time passes its horizon of 2^62 ps (53 days)");
    now_ = time;
  }

 private:
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::array<std::int64_t, kNumPhases> pending_{};
  Ps now_ = 0;
  Ps next_look_ = kEndOfTime, last_ = kEndOfTime;
};

}  // namespace llmsim
