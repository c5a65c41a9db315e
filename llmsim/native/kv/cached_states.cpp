#include "kv/cached_states.h"

#include <initializer_list>

#include "base/types.h"

namespace llmsim {

bool CachedStates::saves_inside(std::int32_t start, std::int32_t end, std::int32_t least_end,
                                std::int32_t at) const {
  if (config_.checkpoint_alignment == 0 || end < least_end || start % unit_ != 0) return false;
  const std::int64_t place = ceil_div(end, block_size_) - 2,
                     first = ceil_div(start, block_size_) - 1;
  return place > first && start + unit_ <= at && start < at && at < end &&
         (at - start) % config_.checkpoint_alignment == 0;
}

std::int32_t CachedStates::cut(const Sequence& s, std::int32_t start, std::int32_t tokens,
                               std::int32_t most, std::int32_t junction) const {
  const std::int32_t prompt_end = prefill_end(s);
  if (!on() || start >= prompt_end) return tokens;
  std::int32_t end = start + tokens;
  const bool inside = saves_inside(start, end, prompt_end, saved_before(prompt_end));
  if (end < prompt_end) {
    const std::int32_t aligned = end / block_size_ * block_size_;
    if (aligned > start || block_size_ <= most) end = aligned;
  }
  const std::int32_t last = inside ? 0 : last_cut(s.num_tokens);
  const std::int32_t next =
      inside || start % block_size_ == 0 ? 0 : (start / block_size_ + 1) * block_size_;
  const std::int32_t shared = junction > start && junction < end
                                  ? start + (junction - start) / block_size_ * block_size_
                                  : 0;
  const std::int32_t tail = inside || !config_.matches_tails ? 0 : saved_before(s.prompt_tokens);
  const std::int32_t tail_stop = last < tail && tail < s.prompt_tokens ? tail : 0;
  std::int32_t first = end;
  for (const std::int32_t stop : {next, last, tail_stop, shared})
    if (stop > start && stop < end) first = std::min(first, stop);
  return std::max(0, first - start);
}

bool CachedStates::kept(std::int32_t block, std::span<const std::int32_t> ends) const {
  if (retention_ < 0) return true;
  if (retention_ > 0 && (block + 1) % std::max(1, retention_ / block_size_) == 0) return true;
  return std::ranges::find(ends, block + 1) != ends.end();
}

}  // namespace llmsim
