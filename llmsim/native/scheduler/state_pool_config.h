// A pool of states of linear attention and Mamba layers, as SGLang has it beside its prefix cache
// (HybridReqToTokenPool).
#pragma once

#include <cstdint>

namespace llmsim {

struct StatePoolConfig {
  std::int32_t slots = 0;  // 0: there is no such pool
  // Slots of each running request for states that the prefix cache gets, beside that of its own;
  // 0: the cache gets copies of its own (no_buffer), instead of those that kernels have written
  // there (extra_buffer).
  std::int32_t spare = 0;
  // A second spare slot is taken for the step that writes to it alone (extra_buffer_lazy).
  bool lazy = false;
  std::int32_t verified =
      0;  // tokens of a step that verifies drafts, where slots are lazy; 0: none
  // Tokens from one state that kernels write there to the next: of a prompt, counted from what was
  // computed before; and of an answer, counted from the beginning.
  std::int32_t prompt_interval = 1, answer_interval = 1;

  bool on() const { return slots > 0; }
};

}  // namespace llmsim
