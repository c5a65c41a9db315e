// How much KV the engines before paged attention take for a sequence: its longest possible length.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kv/kv_cache.h"

namespace llmsim {

// Tokens. Nobody knows how long an answer will be, so every sequence gets the model's context
// length ("Orca (Max)" in W. Kwon et al., "Efficient Memory Management for Large Language Model
// Serving with PagedAttention", SOSP 2023); where the cache is smaller than that, all of it, so
// that one sequence runs at a time.
inline std::int32_t reserved_tokens(const KvCache& kv) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(
      kv.config().max_model_len, std::int64_t{kv.usable_blocks()} * kv.config().block_size));
}

}  // namespace llmsim
