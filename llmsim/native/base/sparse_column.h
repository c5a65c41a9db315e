// A column of what steps waited, which is nothing for nearly all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/types.h"

namespace llmsim {

// Times of steps in their order. A stretch of zeros takes no memory, others four bytes each, and
// those beyond two milliseconds are kept beside them: a run has tens of millions of steps.
class SparseColumn {
 public:
  void push_back(Ps time) {
    const std::size_t place = size_++ % kPage;
    if (place == 0) pages_.emplace_back();
    std::vector<std::int32_t>& page = pages_.back();
    if (time == 0 && page.empty()) return;
    const bool is_short = time > kLong && time <= std::numeric_limits<std::int32_t>::max();
    if (!is_short) long_.emplace_back(size_ - 1, time);
    page.resize(place, 0);
    page.push_back(is_short ? static_cast<std::int32_t>(time) : kLong);
  }

  Ps operator[](std::size_t step) const {
    const std::vector<std::int32_t>& page = pages_[step / kPage];
    if (page.empty()) return 0;
    const std::int32_t time = page[step % kPage];
    return time == kLong ? long_time(step) : time;
  }

  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kPage = 256;
  static constexpr std::int32_t kLong = std::numeric_limits<std::int32_t>::min();

  Ps long_time(std::size_t step) const {
    const auto found =
        std::ranges::lower_bound(long_, step, {}, &std::pair<std::size_t, Ps>::first);
    return found->second;
  }

  std::size_t size_ = 0;
  std::vector<std::vector<std::int32_t>>
      pages_;  // empty where all are zero; the last one may be under way
  std::vector<std::pair<std::size_t, Ps>> long_;  // ascending
};

}  // namespace llmsim
