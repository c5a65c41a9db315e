// FastServe's skip-join multi-level feedback queue (B. Wu et al., "Fast Distributed Inference
// Serving for Large Language Models", arXiv:2305.05920), as a ranking.
//
// Every iteration runs the requests of the highest levels, up to the batch size; a request in
// favour of which another pauses takes its place at the next token, and the paused one keeps its KV
// as long as there is room. A new request joins the first level whose quantum its prompt fits
// (skipping those above, from which it would only be demoted); one that has used up its level's
// quantum goes to the end of the next; one that has waited too long is promoted to the first.
// Nothing is known of how long the answer will be.
//
// As in the paper, the quantum doubles from level to level, and the first is one iteration. Service
// is counted in iterations, of which a prompt needs one per `tokens_per_iteration` tokens, since
// the scheduler knows no times. Not FastServe's: where KV does not fit, the lowest request's is
// dropped and computed again, which counts as service; the paper swaps it to the host ahead of
// time.
#pragma once

#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/registry.h"

namespace llmsim {

class MlfqRanking final : public Ranking, public RankEvents {
 public:
  // Level i lasts 2^i iterations; prompt tokens that take as long as one decode step; the wait (ps)
  // after which a request is promoted to the first level.
  static constexpr Param kLevels{"levels", 6, 1, 30};
  static constexpr Param kTokensPerIteration{"tokens_per_iteration", 256, 1,
                                             (std::int64_t{1} << 31) - 1};
  static constexpr Param kStarvation{"starvation_ps", 10 * kPsPerSecond, 0, std::int64_t{1} << 62};
  static constexpr Param kParams[] = {kLevels, kTokensPerIteration, kStarvation};
  // Of the scheduler mlfq: vLLM's queues and KV cache under this ranking.
  static constexpr OptionDefault kDefaults[] = {{"async_scheduling", false},
                                                {"enable_chunked_prefill", false},
                                                {"enable_prefix_caching", false}};
  static constexpr Lack kLacks[] = {
      {"async_scheduling", "FastServe schedules a step when the one before has ended"},
      {"speculative_config", "FastServe has no drafts to verify"},
      {"hybrid_kv_cache", "FastServe keeps every token of every layer in one table of blocks"},
      {"queue_order", "the scheduler mlfq orders by its levels"},
      {"ranked_running", "the scheduler mlfq orders by its levels"},
      {"watermark", "FastServe takes the KV of lower requests instead of sparing blocks"},
      {"kv_tier_recall", "FastServe makes the batch wait for the KV that it recalls"},
  };

  MlfqRanking(const SchedulerConfig& config, const ParamValues& values);

  RankedLists lists() const override {
    return {.waiting = true, .running = true, .victims = true, .pauses = true};
  }
  void rank(Ps now, const RankView& view, std::span<RankKey> keys) override;
  RankEvents* events() override { return this; }
  void added(RequestId request, const Sequence& sequence, Ps seen) override;
  void scheduled(Ps now, const Batch& batch) override;
  void executed(const Batch& batch) override;
  void left(RequestId request) override;

 private:
  struct Job {
    std::int32_t level = 0;
    std::int64_t used = 0;   // iterations of the level's quantum
    std::int64_t place = 0;  // in the level
    Ps waits_since = 0;
    bool runs = false;  // in the last step
  };
  std::int64_t iterations(std::int32_t tokens) const;
  void promote_starved(Ps now);
  // To the end of a level, with its whole quantum.
  void move(Job& job, std::int32_t level);

  std::int32_t levels_;
  std::int64_t tokens_per_iteration_;
  Ps starvation_;
  bool decode_only_;
  std::unordered_map<RequestId, Job> jobs_;
  std::set<std::pair<Ps, RequestId>> not_running_;  // by how long
  std::vector<RequestId> running_;                  // in the last step
  std::int64_t next_place_ = 0;
};

}  // namespace llmsim
