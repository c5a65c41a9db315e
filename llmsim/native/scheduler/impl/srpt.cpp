// Shortest remaining processing time over vLLM's queues and KV cache, with the lengths of answers
// known: the bound of schedulers that predict them (Y. Fu et al., "Efficient LLM Scheduling by
// Learning to Rank", NeurIPS 2024, whose predictor ranks by answer length).
//
// The request with the fewest tokens left, of its answer and of its prompt, starts first, takes the
// token budget first, and loses its blocks last; ties go by arrival. Not the paper's: nothing
// protects long requests from starving.
#include <memory>
#include <stdexcept>

#include "scheduler/impl/vllm_v1/vllm_v1.h"
#include "scheduler/registry.h"

namespace llmsim {

namespace {

struct ShortestRemaining final : public Ranking {
  static constexpr Lack kLacks[] = {
      {"queue_order", "the scheduler srpt orders by what is left of each request"},
      {"ranked_running", "the scheduler srpt orders by what is left of each request"},
  };

  RankedLists lists() const override { return {.waiting = true, .running = true, .victims = true}; }
  void rank(Ps, const RankView& view, std::span<RankKey> keys) override {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const RequestId row = view.candidates[i].row;
      const Sequence& s = view.sequences[row];
      const std::int32_t answer = view.sequences.max_tokens(row) - s.emitted();
      keys[i] = {answer + s.num_tokens - s.num_computed, s.arrival};
    }
  }
};

std::unique_ptr<Scheduler> make_srpt(const SchedulerConfig& config, SequenceTable& sequences,
                                     RequestLog& log) {
  if (config.queue.order != QueueOrder::kFcfs || config.ranking != nullptr || config.victim)
    throw std::invalid_argument("the scheduler srpt orders by what is left of each request");
  SchedulerConfig core = config;
  core.ranking = std::make_shared<ShortestRemaining>();
  return std::make_unique<VllmV1>(core, sequences, log);
}

const RegisterScheduler kSrpt({.name = "srpt",
                               .make = make_srpt,
                               .lacks = {std::begin(ShortestRemaining::kLacks),
                                         std::end(ShortestRemaining::kLacks)}});

}  // namespace

}  // namespace llmsim
