// Reads of KV that the hosts of an engine's workers post before they launch a batch.
#pragma once

#include <algorithm>
#include <utility>

#include "base/types.h"

namespace llmsim {

class PostedReads {
 public:
  // They are given to the hosts at `now`, along with the next batch or without one.
  void add(Ps posts, Ps now) { until_ = std::max(until_, now) + posts; }
  // What is left of them for the hosts of a batch that is formed at `now`.
  Ps take(Ps now) { return std::max<Ps>(0, std::exchange(until_, 0) - now); }

 private:
  Ps until_ = 0;  // when hosts without a batch would have posted all
};

}  // namespace llmsim
