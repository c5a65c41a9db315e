// SGLang's scheduler in outline (python/sglang/srt/managers: scheduler.py, schedule_policy.py,
// schedule_batch.py; L. Zheng et al., "SGLang: Efficient Execution of Structured Language Model
// Programs", NeurIPS 2024).
//
// SGLang's: a step is either prompts or decodes, prompts first; one prompt at a time is cut to the
// budget (chunked_prefill_size) and goes on before others start; admission estimates what the
// running requests will still write, a share (new token ratio) of what max_new_tokens leaves of
// their answers, clipped at 4096 tokens, that starts at 0.7, falls by each decode step to 0.098,
// and is reset when idle; a decode step that does not fit retracts the requests with the shortest
// answers, the longest prompts first, to the end of the queue, and raises the ratio; the order is
// first come first served, the default.
//
// Prefill and decode apart (python/sglang/srt/disaggregation): the prefill side counts on one token
// of an answer and keeps its pages until they have been read. The decode side takes the pages of a
// whole prompt in order of arrival, while 512 tokens stay free for it and for each request that it
// holds (num_reserved_decode_tokens), or, if that is more, what the longest of them may still need
// when all others are retracted; what waits for its KV is not retracted. Not SGLang's: the first
// token comes from a step of the decode side, as with vllm_v1, where SGLang sends it along with the
// KV; a retracted request is computed again there instead of copied to the host; the decode side's
// prefix cache, which SGLang leaves off, is on unless enable_prefix_caching says otherwise.
//
// Not SGLang's: the radix tree is the hash of pages (block size; 1 is SGLang's default), evicted
// page by page instead of leaf by leaf, with prompts findable when scheduled instead of when
// computed, and a retracted request finds what is left of its own pages; a prompt's pages are taken
// when it starts; where answers end with a stop token, the limit is not known, so each may fill the
// clip; no overlap with the previous step, no mixed chunks, no cache-aware order.
#pragma once

#include "scheduler/batch_scheduler.h"
#include "scheduler/impl/sglang/takeover.h"

namespace llmsim {

class SglangOutline final : public BatchScheduler {
 public:
  // Ranks with data-parallel attention agree in every step on whether any of them has work.
  static constexpr OptionDefault kDefaults[] = {{"async_scheduling", false},
                                                {"block_size", std::int64_t{1}},
                                                {"dp_sync_interval", std::int64_t{1}}};
  static constexpr Lack kLacks[] = {
      {"no_enable_chunked_prefill", "SGLang always cuts prompts to the token budget"},
      {"watermark", "SGLang reserves a share of the answers that run instead"},
  };

  // Tokens: the answer length that admission assumes, at most.
  static constexpr Param kNewTokens{"new_tokens", 4096, 1, (std::int64_t{1} << 31) - 1};
  static constexpr Param kParams[] = {kNewTokens, SglangTakeover::kReservedTokens};

  SglangOutline(const SchedulerConfig& config, SequenceTable& sequences, RequestLog& log);
  std::int32_t max_depth() const override { return Scheduler::max_depth(); }

 private:
  void form(Ps now, Batch& batch) override;
  void schedule_prompts(Ps now, Batch& batch);
  bool room_to_take_over(RequestId candidate) const override;
  // Whether the step of a running request is one of its prompt; what came from elsewhere has none.
  bool computes_prompt(const Sequence& s) const;
  void schedule_decodes(Batch& batch);
  std::int32_t blocks_for_decodes() const;
  void retract(Batch& batch);
  void raise_ratio();
  // Tokens that its answer may still grow by, as far as admission counts on them.
  std::int64_t new_tokens_left(RequestId request) const;
  std::int64_t tokens_promised() const;

  static constexpr std::int64_t kRatioUnit = 1'000'000;
  static constexpr std::int64_t kFirstRatio = 700'000, kLeastRatio = 98'000,
                                kDecay = (kFirstRatio - kLeastRatio) / 600;
  static constexpr std::int64_t kRetractDecodeSteps = 20;
  std::int64_t new_tokens_, reserved_tokens_;
  std::int64_t ratio_ = kFirstRatio;
};

}  // namespace llmsim
