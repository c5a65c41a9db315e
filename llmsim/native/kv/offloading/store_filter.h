// Which chunks are stored: those that were wanted often enough (vLLM: store_threshold).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kv/offloading/cache_policy.h"
#include "kv/offloading/rules.h"

namespace llmsim {

class StoreFilter {
 public:
  virtual ~StoreFilter() = default;
  // A request has looked for the chunk; these are offered together.
  virtual void looked_up(Key) {}
  virtual void offered(std::span<const OffloadedChunk>) {}
  virtual bool stores(Key) const { return true; }
};

// A chunk is stored when it was wanted for the `threshold`th time, of those `most_counted` that
// were wanted last; below 2: at once.
std::unique_ptr<StoreFilter> make_store_filter(std::int32_t threshold, std::int64_t most_counted,
                                               const OffloadingRules& rules);

}  // namespace llmsim
