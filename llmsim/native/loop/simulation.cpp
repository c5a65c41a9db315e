#include "loop/simulation.h"

#include <algorithm>

#include "base/wall_clock.h"

namespace llmsim {

void Simulation::enter(Entity& entity) {
  if (entities_.size() == kMaxEntities)
    throw std::length_error("a simulation has at most 2^24 entities");
  entity.enter(events_, static_cast<EntityId>(entities_.size()));
  entities_.push_back(&entity);
}

void Simulation::observe(ClockObserver& observer) {
  observers_.push_back(&observer);
  events_.set_next_look(std::min(events_.next_look(), observer.next_look()));
}

bool Simulation::run(std::int64_t max_events, std::int64_t max_wall_ms) {
  const std::int64_t begin_ms = wall_ms();
  series_.make_room();
  for (; max_events > 0 && !events_.empty(); --max_events) {
    if (!handle_next()) return at_horizon_;
    if (wall_ms() - begin_ms >= max_wall_ms) max_events = 1;
  }
  if (!events_.empty()) return false;
  check_finished();
  series_.finish(now());
  return true;
}

inline bool Simulation::handle_next() {
  const Event event = events_.top();
  Entity* entity = entities_[event.entity()];
  const Outlook outlook = entity == nullptr ? Outlook::kStale : entity->outlook(event);
  if (outlook == Outlook::kStale) {
    events_.pop();
    return true;
  }
  if (event.time > events_.next_look() && !look(event.time)) return false;
  if (outlook == Outlook::kCircling && !anything_from_outside()) check_circles();
  events_.pop();
  events_.advance(event.time);
  entity->on_event(event.time, event.phase(), event.argument());
  if (checks_) entity->check(event.time);
  return true;
}

void Simulation::run_until(Ps time) {
  events_.set_last(time);
  while (!events_.empty() && events_.top().time <= time && handle_next()) {
  }
}

bool Simulation::look(Ps event_time) {
  const bool ends = event_time > horizon_;
  const Ps until = ends ? horizon_ + 1 : event_time;
  for (ClockObserver* observer : observers_)
    if (observer->next_look() < until && !observer->look(until)) return false;
  if (ends) {
    events_.advance(horizon_);
    series_.finish(horizon_);
    at_horizon_ = true;
    return false;
  }
  Ps next_look = horizon_;
  for (const ClockObserver* observer : observers_)
    next_look = std::min(next_look, observer->next_look());
  events_.set_next_look(next_look);
  return true;
}

}  // namespace llmsim
