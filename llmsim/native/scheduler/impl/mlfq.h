// FastServe's skip-join multi-level feedback queue (B. Wu et al., "Fast Distributed Inference
// Serving for Large Language Models", arXiv:2305.05920).
//
// Every iteration runs the requests of the highest levels, up to the batch size, with whole
// prompts; a request in favour of which another pauses takes its place at the next token, and the
// paused one keeps its KV as long as there is room. A new request joins the first level whose
// quantum its prompt fits (skipping those above, from which it would only be demoted); one that has
// used up its level's quantum goes to the end of the next; one that has waited too long is promoted
// to the first. Nothing is known of how long the answer will be.
//
// As in the paper, the quantum doubles from level to level, and the first is one iteration. Service
// is counted in iterations, of which a prompt needs one per `mlfq_tokens_per_iteration` tokens,
// since the scheduler knows no times. Not FastServe's: where KV does not fit, the lowest request's
// is dropped and computed again, which counts as service; the paper swaps it to the host ahead of
// time.
#pragma once

#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "scheduler/batch_scheduler.h"

namespace llmsim {

class Mlfq final : public BatchScheduler {
 public:
  using BatchScheduler::BatchScheduler;

  void add(RequestId request) override;
  bool has_requests() const override { return !ready_.empty(); }
  Gauges gauges() const override;

 private:
  using Rank =
      std::tuple<std::int32_t, std::int64_t, RequestId>;  // level, place in the level, request
  struct Job {
    std::int32_t level = 0, used = 0;  // iterations of the level's quantum
    std::int64_t place = 0;
    Ps waits_since = 0;
  };

  void form(Ps now, Batch& batch) override;
  void served(const Item& item) override;
  void leave_queue(RequestId request) override;
  void leave(RequestId request) override;

  void promote_starved(Ps now);
  bool run_job(Ps now, const Rank& rank, std::int32_t budget, Batch& batch);
  // Drops the KV of requests below `rank`, lowest first, until `blocks` are free; false, with
  // nothing changed, when they do not hold enough.
  bool make_room(const Rank& rank, std::int32_t blocks, Batch& batch);
  void move(RequestId request, std::int32_t level);
  void update_waiting(Ps now, const std::vector<RequestId>& before);
  std::int32_t iterations(std::int32_t tokens) const;
  Rank rank(RequestId request) const;

  std::unordered_map<RequestId, Job> jobs_;
  std::set<Rank> ready_;                            // everybody
  std::set<Rank> holders_;                          // who holds blocks
  std::set<std::pair<Ps, RequestId>> not_running_;  // by how long
  std::int64_t next_place_ = 0;
};

}  // namespace llmsim
