// The orders of the waiting queue as rankings: the same schedules, decided anew before each step.
#include <memory>

#include "scheduler/registry.h"

namespace llmsim {

namespace {

// First come, first served. A preempted request goes in front of the queue, and the request that
// was admitted last is preempted first.
struct FcfsRanking final : public Ranking {
  RankedLists lists() const override { return {.waiting = true, .victims = true}; }
  void rank(Ps, const RankView& view, std::span<RankKey> keys) override {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Candidate& candidate = view.candidates[i];
      const bool parked = candidate.standing == Standing::kParked;
      keys[i] = {parked ? 0 : 1, candidate.position};
    }
  }
};

// vLLM's `--scheduling-policy priority`: a lower number first, then the earlier arrival. The victim
// is the least urgent request; of equals, the one that was admitted first.
struct PriorityRanking final : public Ranking {
  RankedLists lists() const override { return {.waiting = true, .victims = true}; }
  void rank(Ps, const RankView& view, std::span<RankKey> keys) override {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Candidate& candidate = view.candidates[i];
      const Sequence& s = view.sequences[candidate.row];
      const bool running = candidate.standing == Standing::kRunning;
      keys[i] = {s.priority, s.arrival, running ? -candidate.position : 0};
    }
  }
};

// The shortest prompt first, then the earlier arrival; a preempted request goes in front.
struct ShortestPromptRanking final : public Ranking {
  RankedLists lists() const override { return {.waiting = true}; }
  void rank(Ps, const RankView& view, std::span<RankKey> keys) override {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Candidate& candidate = view.candidates[i];
      const Sequence& s = view.sequences[candidate.row];
      const bool in_front = candidate.standing == Standing::kParked || s.epoch > 0;
      keys[i] = in_front
                    ? RankKey{candidate.standing == Standing::kParked ? 0 : 1, candidate.position}
                    : RankKey{2, s.prompt_tokens, s.arrival};
    }
  }
};

template <typename T>
std::shared_ptr<Ranking> ranking_of(const SchedulerConfig&, const ParamValues&) {
  return std::make_shared<T>();
}

const RegisterRanking kFcfsRanking({"fcfs", ranking_of<FcfsRanking>, {}});
const RegisterRanking kPriorityRanking({"priority", ranking_of<PriorityRanking>, {}});
const RegisterRanking kShortestPromptRanking({"sjf", ranking_of<ShortestPromptRanking>, {}});

}  // namespace

}  // namespace llmsim
