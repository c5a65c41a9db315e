// TensorRT-LLM's in-flight batching, by its scheduler in Python
// (tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py of 2026, a twin of its C++).
//
// As many requests are active as a batch may have, in order of arrival. The capacity policy says
// which of them have room, and the micro-batch scheduler fills the token budget with these: one
// token of each generation, then prompts.
//
// GUARANTEED_NO_EVICT: a prompt starts when the blocks of its longest answer are free beside what
// all that run may still take, and nothing is ever preempted. MAX_UTILIZATION: a request runs when
// the blocks of its next step are free; else the last one that has started is paused, which gives
// its blocks back and computes everything again. Either way a prompt takes all of its blocks with
// its first chunk, and one whose next block another prompt is about to compute waits for that.
//
// Prompts are whole, or cut to the token budget: first come first served, or all of them by one
// block after the other (EQUAL_PROGRESS). A prompt's blocks are found by others when all of it has
// been computed, those of its answer when it has ended. Not TensorRT-LLM's: steps do not overlap,
// blocks are shared whole (TensorRT-LLM also copies parts of them), and those that nobody uses
// leave by age alone. Where an earlier prompt lacks blocks and nothing else runs, started prompts
// go on; TensorRT-LLM's rules let none of them run.
#pragma once

#include <unordered_set>
#include <vector>

#include "scheduler/batch_scheduler.h"

namespace llmsim {

class TensorRtLlm final : public BatchScheduler {
 public:
  enum class Capacity : std::uint8_t { kGuaranteedNoEvict, kMaxUtilization };
  enum class Chunking : std::uint8_t { kFirstComeFirstServed, kEqualProgress };
  static constexpr Param kCapacity{"capacity_policy", 0, 0, 1};
  static constexpr Param kChunking{"chunking_policy", 0, 0, 1};
  static constexpr Param kParams[] = {kCapacity, kChunking};
  static constexpr OptionDefault kDefaults[] = {{"async_scheduling", false},
                                                {"enable_chunked_prefill", false},
                                                {"block_size", std::int64_t{32}}};
  static constexpr Lack kLacks[] = {
      {"pp_size", "only one step at a time is modelled of TensorRT-LLM"},
      {"pd_type", "TensorRT-LLM's disaggregated serving is not modelled"},
      {"kv_tiers", "TensorRT-LLM's host cache is not modelled"},
      {"watermark", "the capacity policies of TensorRT-LLM say how many blocks stay free"},
  };

  TensorRtLlm(const SchedulerConfig& config, SequenceTable& sequences, RequestLog& log);

  bool has_requests() const override { return !active_.empty() || BatchScheduler::has_requests(); }
  Gauges gauges() const override;
  std::int64_t most_blocks(std::int64_t slots) const override {
    return BatchScheduler::most_blocks(slots + 1);  // the last token has a slot, too
  }

 private:
  // A prompt of a step: `tokens` of it are not cached and not computed, and a chunk of a prompt
  // that starts lies behind its `cached` tokens.
  struct Prompt {
    RequestId request;
    std::int32_t left, cached, chunk;
    // What the step computes for a chunk of so many tokens.
    std::int32_t computed(std::int32_t tokens) const {
      return cached + tokens < left ? tokens : left - cached;
    }
  };

  void form(Ps now, Batch& batch) override;
  // As TensorRT-LLM schedules once.
  void form_once(Ps now, Batch& batch);
  void served(const Item& item) override;
  void leave_queue(RequestId request) override;
  void leave(RequestId request) override;

  bool started(RequestId request) const {
    return sequences_[request].status == static_cast<std::uint8_t>(Status::kRunning);
  }
  bool generates(RequestId request) const;
  // The requests that have room, in the order in which the micro-batch scheduler takes them.
  std::vector<RequestId> fit_to_the_end();
  std::vector<RequestId> fit_one_step(Batch& batch);
  void pause(RequestId request, Batch& batch);
  // Blocks that are taken for so many tokens in all, besides those that the request holds or shares
  // with running ones.
  std::int32_t blocks_needed(RequestId request, std::int32_t tokens);
  std::int32_t most_tokens(RequestId request) const;
  // Another prompt is about to compute the first block that it lacks.
  bool waits_for_prefix(RequestId request);
  void note_prefixes_under_way();
  void note_first_new_block(RequestId request);

  std::vector<Prompt> fill(const std::vector<RequestId>& fitting, std::vector<RequestId>& generate);
  // Cuts prompts to so many tokens, where they are more.
  void cut(std::vector<Prompt>& prompts, std::int32_t budget) const;
  void cut_in_order(std::vector<Prompt>& prompts, std::int32_t budget) const;
  void cut_equally(std::vector<Prompt>& prompts, std::int32_t budget) const;
  void run_prompt(Ps now, const Prompt& prompt, Batch& batch);

  Capacity capacity_;
  Chunking chunking_;
  std::vector<RequestId> active_;      // in order of arrival; `running_` holds blocks
  std::unordered_set<Key> under_way_;  // blocks that prompts of this step, or running ones, add
};

}  // namespace llmsim
