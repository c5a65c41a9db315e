// Drafts as SGLang's scheduler knows them (python/sglang/srt: speculative/eagle_utils.py,
// mem_cache/allocation_sizing.py).
#pragma once

#include <algorithm>
#include <cstdint>

#include "scheduler/config.h"

namespace llmsim {

// A decode verifies a fixed number of tokens, and reserves slots for its own step and the one in
// flight before it, since how many drafts of that held is not known yet.
class SglangDrafts {
 public:
  // Branches of each draft token; and tokens of a verification, 0: one more than drafting steps.
  static constexpr Param kTopk{"eagle_topk", 1, 1, 64};
  static constexpr Param kTokens{"draft_tokens", 0, 0, 1 << 12};

  explicit SglangDrafts(const SchedulerConfig& config)
      : speculation_(config.speculation),
        topk_(static_cast<std::int32_t>(value_of(kTopk, config.parameters))),
        width_(static_cast<std::int32_t>(value_of(kTokens, config.parameters))) {
    if (width_ == 0) width_ = steps() + 1;
    if (on()) reserve_ = 2 * most_slots(config.kv.block_size);
  }

  bool on() const { return speculation_.on(); }
  std::int32_t steps() const { return speculation_.tokens; }  // of drafting, one token deeper each
  std::int32_t width() const { return on() ? width_ : 1; }
  // Slots of a decode behind the tokens that are known.
  std::int32_t reserve() const { return reserve_; }
  // Drafts that hold behind so many tokens of an answer, in its verification number `nth`.
  std::int32_t accepted(RequestId request, std::int32_t emitted, std::int32_t nth) const {
    return speculation_.accepted(request, emitted, speculation_.drafts_of(request, steps()), nth);
  }

 private:
  // Slots that drafting or verifying writes; branches have pages of their own.
  std::int32_t most_slots(std::int32_t page) const {
    if (page == 1 || topk_ == 1) return std::max(steps() * topk_, width_);
    const std::int32_t pages = (page - 1 + steps() + page - 1) / page;
    return std::max(pages * page * topk_, width_);
  }

  const SpeculationConfig speculation_;
  std::int32_t topk_, width_, reserve_ = 0;
};

}  // namespace llmsim
