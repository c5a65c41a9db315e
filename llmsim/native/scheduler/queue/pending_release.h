// Requests that have left their scheduler, but whose blocks transfers still read or write.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace llmsim {

class PendingReleases {
 public:
  std::int32_t size() const { return static_cast<std::int32_t>(leaving_.size()); }
  // Its blocks are to be given back once so many transfers have ended: now (true) where there are
  // none.
  [[nodiscard]] bool leave(RequestId request, std::int32_t transfers) {
    if (transfers > 0) leaving_.push_back({request, transfers});
    return transfers == 0;
  }
  // One of them has ended; whether it was the last one.
  [[nodiscard]] bool transferred(RequestId request) {
    const auto left = std::find_if(leaving_.begin(), leaving_.end(), [request](const Leaving& one) {
      return one.request == request;
    });
    if (--left->transfers > 0) return false;
    leaving_.erase(left);
    return true;
  }

 private:
  struct Leaving {
    RequestId request;
    std::int32_t transfers;
  };
  std::vector<Leaving> leaving_;
};

}  // namespace llmsim
