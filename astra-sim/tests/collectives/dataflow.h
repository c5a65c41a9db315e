// Plays a schedule of messages: in any order that its waits allow, with buffers at the receivers.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "model/collective/schedule.h"
#include "tests/check.h"

namespace astra_sim::test {

using model::Message;
using model::Schedule;

// Departures and arrivals in a random order that respects the schedule's waits.
class Play {
 public:
  Play(const Schedule& schedule, Random& random)
      : schedule_(schedule),
        random_(random),
        waits_(schedule.waits().begin(), schedule.waits().end()) {
    for (std::uint32_t rank = 0; rank < schedule.num_ranks(); ++rank)
      choices_.push_back({Step::kStart, rank});
  }
  // Calls depart(message) and arrive(message); false when messages are left that never leave.
  template <class Depart, class Arrive>
  bool run(Depart depart, Arrive arrive) {
    std::size_t arrived = 0;
    while (!choices_.empty()) {
      const auto at = static_cast<std::size_t>(
          random_.between(0, static_cast<std::int64_t>(choices_.size()) - 1));
      const auto [step, index] = choices_[at];
      choices_[at] = choices_.back();
      choices_.pop_back();
      switch (step) {
        case Step::kStart:
          for (const std::uint32_t m : schedule_.of_rank(index)) release(m);
          break;
        case Step::kDepart:
          depart(index);
          choices_.push_back({Step::kArrive, index});
          if (schedule_.message(index).next != model::kNone) release(schedule_.message(index).next);
          break;
        case Step::kArrive:
          ++arrived;
          arrive(index);
          for (const std::uint32_t later : schedule_.after(index)) release(later);
          break;
      }
    }
    return arrived == schedule_.num_messages();
  }

 private:
  enum class Step { kStart, kDepart, kArrive };
  void release(std::uint32_t item) {
    if (--waits_[item] != 0) return;
    if (item < schedule_.num_messages()) return choices_.push_back({Step::kDepart, item});
    for (const std::uint32_t later : schedule_.after(item)) release(later);
  }
  const Schedule& schedule_;
  Random& random_;
  std::vector<std::uint32_t> waits_;
  std::vector<std::pair<Step, std::uint32_t>> choices_;
};

// What arrives for a later phase waits in a buffer until its receiver has all of the earlier ones,
// piece by piece.
class Inbox {
 public:
  Inbox(const Schedule& schedule, std::vector<std::uint32_t> piece_of)
      : schedule_(schedule), piece_of_(std::move(piece_of)) {
    for (std::uint32_t id = 0; id < piece_of_.size(); ++id) {
      const Message m = schedule.message(id);
      ++open_[{m.to, piece_of_[id]}][m.phase];
    }
  }
  // Calls merge(message) for this one and those that waited for it, now or later.
  template <class Merge>
  void take(std::uint32_t id, Merge merge) {
    const Message m = schedule_.message(id);
    const auto box = std::pair(m.to, piece_of_[id]);
    waiting_[box].push_back(id);
    auto& phases = open_[box];
    for (bool moved = true; moved;) {
      moved = false;
      auto& ids = waiting_[box];
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::uint32_t phase = schedule_.message(ids[i]).phase;
        if (phases.begin()->first != phase) continue;
        merge(ids[i]);
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i--));
        if (--phases[phase] == 0) phases.erase(phase);
        moved = true;
        if (phases.empty()) return;
      }
    }
  }

 private:
  using Box = std::pair<std::uint32_t, std::uint32_t>;  // receiver, piece
  const Schedule& schedule_;
  std::vector<std::uint32_t> piece_of_;
  std::map<Box, std::map<std::uint32_t, int>> open_;  // by phase: messages still to come
  std::map<Box, std::vector<std::uint32_t>> waiting_;
};

}  // namespace astra_sim::test
