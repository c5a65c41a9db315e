// A group's steps as sums, so that what went on in any stretch of them is two subtractions.
#pragma once

#include <algorithm>
#include <vector>

#include "group.h"

namespace llmsim {

// Sums over a group's completed steps, so that any stretch of steps is two subtractions: [k] covers steps 0 .. k - 1.
// Where steps overlap (pipeline stages), each counts from the end of the one before.
struct Timeline {
  // A stretch of device time by what it went to.
  struct Split {
    Ps compute = 0, collective = 0, waiting = 0;
  };

  // A stretch of a device's idle time by what it waited for: KV from the tiers, other members of its domain.
  struct Pause {
    Ps recall = 0, others = 0;
  };

  explicit Timeline(const Group& group)
      : end(group.output_times()),
        start(group.output_starts()),
        communication(group.output_communication()),
        waited(group.output_waiting()),
        held(group.output_held()),
        overlaps(group.evaluator().overlaps()) {
    const std::size_t n = end.size();
    compute.assign(n + 1, 0);
    collective.assign(n + 1, 0);
    waiting.assign(waited.empty() ? 0 : n + 1, 0);
    idle.assign(n + 1, 0);
    recall.assign(held.empty() ? 0 : n + 1, 0);
    others.assign(held.empty() ? 0 : n + 1, 0);
    for (std::size_t k = 0; k < n; ++k) {
      const Ps before = k > 0 ? end[k - 1] : start[k];
      const Split split = step(k, std::max(start[k], before));
      collective[k + 1] = collective[k] + split.collective;
      compute[k + 1] = compute[k] + split.compute;
      if (!waiting.empty()) waiting[k + 1] = waiting[k] + split.waiting;
      const Pause pause = paused(k, before, start[k]);
      idle[k + 1] = idle[k] + std::max<Ps>(0, start[k] - before) - pause.recall - pause.others;
      if (held.empty()) continue;
      recall[k + 1] = recall[k] + pause.recall;
      others[k + 1] = others[k] + pause.others;
    }
  }

  // What step k did from `from` (not before its start) until its end.
  Split step(std::size_t k, Ps from) const {
    const Ps span = end[k] - from;
    Split split;
    split.collective = std::min(communication[k], span);
    if (k < waited.size()) split.waiting = std::min(waited[k], span - split.collective);
    split.compute = span - split.collective - split.waiting;
    return split;
  }

  // What of the time from `from` to `to` step k waited before it began, its devices having nothing else to do.
  Pause paused(std::size_t k, Ps from, Ps to) const {
    if (k >= held.size()) return {};
    if (!overlaps && k > 0) from = std::max(from, end[k - 1]);
    const auto [built, opened, launched] = held[k];
    const auto within = [from, to](Ps a, Ps b) { return std::max<Ps>(0, std::min(b, to) - std::max(a, from)); };
    return {within(built, opened), within(opened, launched)};
  }

  const std::vector<Ps>&end, &start, &communication, &waited;
  const std::vector<Held>& held;
  bool overlaps;
  std::vector<Ps> compute, collective, waiting, idle, recall, others;
};

}  // namespace llmsim
