// Whether a request is still computing its prompt; only schedulers that treat the phases
// differently ask.
#pragma once

#include <algorithm>

#include "request/sequence.h"

namespace llmsim {

// A request that was preempted after its first token computes everything again, which counts as its
// prompt.
inline bool prefilling(const Sequence& s) {
  return s.num_computed < std::max(s.prompt_tokens, s.num_tokens - 1);
}

// Tokens of KV that a request brings along when it is first scheduled. In a decode-only run that is
// its prompt but for the last token, whose step gives the first token of the answer, as behind a
// remote prefill. A switch of layouts may move more.
inline std::int32_t tokens_brought(const Sequence& s, bool decode_only) {
  if (s.epoch > 0) return 0;
  return std::max(s.kv_brought, decode_only ? s.prompt_tokens - 1 : 0);
}

}  // namespace llmsim
