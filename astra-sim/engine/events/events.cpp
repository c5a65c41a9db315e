// Sorting of a batch of simultaneous events.
#include "engine/events/events.h"

#include <algorithm>
#include <string>

#include "model/base/errors.h"

namespace astra_sim::engine {

void EventQueue::beyond_horizon(Ps time) {
  throw model::OutOfRange("an event at " + std::to_string(time) +
                          " ps is beyond the engine's horizon of 2^62 ps (53 days)");
}

void sort_batch(std::vector<Event>& batch) {
  // A ring's batch is sorted but for one event at its end: insertion costs n moves. Give up when it
  // is not so.
  std::size_t budget = 8 * batch.size();
  for (std::size_t i = 1; i < batch.size(); ++i) {
    if (batch[i - 1].order <= batch[i].order) continue;
    const Event event = batch[i];
    const auto end = batch.begin() + static_cast<std::ptrdiff_t>(i);
    const auto place =
        std::upper_bound(batch.begin(), end, event,
                         [](const Event& a, const Event& b) { return a.order < b.order; });
    const auto moves = static_cast<std::size_t>(end - place);
    if (moves > budget) {
      std::stable_sort(batch.begin(), batch.end(),
                       [](const Event& a, const Event& b) { return a.order < b.order; });
      return;
    }
    budget -= moves;
    std::move_backward(place, end, end + 1);
    *place = event;
  }
}

}  // namespace astra_sim::engine
