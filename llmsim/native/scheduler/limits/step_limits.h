// What one step of vLLM's scheduler may hold, and which of its limits the engine's version adds to
// the token budget.
#pragma once

#include <algorithm>
#include <cstdint>

namespace llmsim {

// Limits beyond max_num_scheduled_tokens; the defaults are those of vLLM 0.24.
struct StepLimitsConfig {
  std::int32_t long_prefill_token_threshold = 0;  // 0: off
  bool adaptive_threshold =
      false;  // at least the token budget's share of each request (0.31, option)
  bool lone_prompt_uncapped =
      false;  // the threshold does not hold where there is only one request (0.31)
  std::int32_t input_budget = 0;  // 0.28: tokens and slots of drafts together; 0: no second budget
  std::int32_t draft_slots = 0;   // of each sequence, in the second budget
  std::int32_t max_num_active_seqs = 0;  // 0.31: that may run; 0: max_num_seqs
  std::int32_t max_loras = 0;            // adapters of requests in one step; 0: no limit
  bool pads_new_decodes = false;  // who starts with one token takes a whole verification's (0.25)
  bool pads_hits = false;         // also where nobody else runs and its prompt was cached (0.30)
  // Not where the context ends before the token sampled after it, instead of waiting (0.29).
  bool pads_within_context = false;
  std::int32_t prefill_schedule_interval =
      1;                      // prompts are computed every so many steps while decodes exist
  bool paces_itself = false;  // counted from the last step with prompts, and not by rounds (0.33)
};

// Tokens that are left of one step.
class StepBudget {
 public:
  StepBudget(std::int32_t tokens, const StepLimitsConfig& limits)
      : tokens_(tokens),
        input_(limits.input_budget > 0 ? limits.input_budget : kNoLimit),
        slots_(limits.draft_slots) {}
  // For the next sequence.
  std::int32_t left() const { return std::min(tokens_, input_ - slots_); }
  void take(std::int32_t tokens) {
    tokens_ -= tokens;
    input_ -= tokens + slots_;
  }
  void give_back(std::int32_t tokens) {
    tokens_ += tokens;
    input_ += tokens + slots_;
  }

 private:
  static constexpr std::int32_t kNoLimit = 1 << 30;
  std::int32_t tokens_, input_, slots_;
};

// Most tokens of one prompt in a step with so many requests, running and waiting; 0: no limit of
// its own.
inline std::int32_t prompt_cap(const StepLimitsConfig& limits, std::int32_t budget,
                               std::int32_t requests) {
  const std::int32_t threshold = limits.long_prefill_token_threshold;
  if (threshold == 0 || (limits.lone_prompt_uncapped && requests <= 1)) return 0;
  if (!limits.adaptive_threshold) return threshold;
  const std::int32_t shared = limits.input_budget > 0 ? limits.input_budget : budget;
  return std::max(threshold, shared / std::max(requests, 1));
}

// vLLM's prefill_schedule_interval, which lets data-parallel ranks prefill in the same steps: in
// between prompts wait, unless nobody decodes, or the last step that took prompts could not take
// them all.
class PrefillPacing {
 public:
  explicit PrefillPacing(const StepLimitsConfig& limits)
      : interval_(limits.prefill_schedule_interval),
        itself_(limits.paces_itself),
        last_prompts_(-limits.prefill_schedule_interval) {}
  bool on() const { return interval_ > 1; }
  // From now on the steps are those of data-parallel ranks in lock-step.
  void by_rounds() { itself_ = false; }
  // Whether prompts wait in step `step` (from 0) of a busy time.
  bool defers(std::int64_t step, bool somebody_decodes) const {
    const bool between = itself_ ? steps_ + 1 - last_prompts_ < interval_ : step % interval_ != 0;
    return on() && between && !left_over_ && somebody_decodes;
  }
  // After a step that took prompts.
  void took(bool some_are_left) { left_over_ = some_are_left; }
  // After each step that computes something.
  void ran(bool prompts) {
    ++steps_;
    if (prompts) last_prompts_ = steps_;
  }

 private:
  std::int32_t interval_;
  bool itself_, left_over_ = false;
  std::int64_t steps_ = 0, last_prompts_;
};

}  // namespace llmsim
