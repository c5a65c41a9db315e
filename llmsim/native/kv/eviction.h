// The order in which cached KV blocks lose their content.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"

namespace llmsim {

// Which cached blocks that nobody holds lose their content first.
class Eviction {
 public:
  virtual ~Eviction() = default;
  // Cached blocks that nobody holds from now on, in the order in which they were given back.
  virtual void freed(std::span<const BlockId> blocks) = 0;
  // A request takes these again.
  virtual void reused(std::span<const BlockId> blocks) = 0;
  // Appends `count` of those that were freed and neither reused nor chosen since, the first to go
  // first. They are all chosen now; one that is reused before its turn is spared.
  virtual void evict(std::int32_t count, std::vector<BlockId>& victims) = 0;
};

}  // namespace llmsim
