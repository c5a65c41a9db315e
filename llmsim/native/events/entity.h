// What the loop calls: entities act at events, observers look at the clock between them.
#pragma once

#include <string>

#include "events/event_queue.h"

namespace llmsim {

// What becomes of an event when its time has come.
enum class Outlook : std::uint8_t {
  kDue,
  kStale,     // it has become pointless since it was posted, and does not even move the clock
  kCircling,  // it is due, but the entity will go on like this for ever unless something comes from
              // outside
};

// Something that acts when one of its events is due: a group, the network, the clients. Whoever
// adds it to a simulation keeps it alive for as long as that runs, also after its removal.
class Entity {
 public:
  virtual ~Entity() = default;
  virtual Outlook outlook(const Event& event) const {
    static_cast<void>(event);
    return Outlook::kDue;
  }
  virtual void on_event(Ps now, Phase phase, std::uint32_t argument) = 0;
  // Recounts what it owns after each of its events, if the run asks for that; throws Violated.
  virtual void check(Ps now) const { static_cast<void>(now); }
  // What it still waits for, where no event is left; empty: nothing.
  virtual std::string unfinished() const { return {}; }

  // Called by the loop, which numbers its entities.
  void enter(EventQueue& events, EntityId id) {
    events_ = &events;
    id_ = id;
  }
  EntityId id() const { return id_; }

 protected:
  void post(Ps time, Phase phase, std::uint32_t argument = 0) {
    events_->post(time, phase, id_, argument);
  }
  EventQueue& events() { return *events_; }
  const EventQueue& events() const { return *events_; }

 private:
  EventQueue* events_ = nullptr;
  EntityId id_ = 0;
};

// Sees what has happened until some time, and nothing later. As events, observations would keep a
// run alive, hide that it has stalled, and move the clock.
class ClockObserver {
 public:
  virtual ~ClockObserver() = default;
  // Before the first event later than this; kEndOfTime: never.
  Ps next_look() const { return next_look_; }
  // Looks at all times before `next_event`. False: it has to be called again before the event may
  // happen.
  virtual bool look(Ps next_event) = 0;

 protected:
  Ps next_look_ = kEndOfTime;
};

}  // namespace llmsim
