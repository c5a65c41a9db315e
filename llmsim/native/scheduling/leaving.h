// Requests that have left their scheduler, but whose blocks transfers still read or write.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kv_cache.h"

namespace llmsim {

class LeavingRequests {
 public:
  std::int32_t size() const { return static_cast<std::int32_t>(leaving_.size()); }
  // Its blocks are free once so many transfers have ended: at once where there are none.
  void leave(RequestId request, std::int32_t transfers, KvCache& kv) {
    if (transfers > 0) {
      leaving_.push_back({request, transfers});
    } else {
      kv.release(request, /*preempted=*/false);
    }
  }
  // One of them has ended.
  void transferred(RequestId request, KvCache& kv) {
    const auto left = std::find_if(leaving_.begin(), leaving_.end(),
                                   [request](const Leaving& one) { return one.request == request; });
    if (--left->transfers > 0) return;
    leaving_.erase(left);
    kv.release(request, /*preempted=*/false);
  }

 private:
  struct Leaving {
    RequestId request;
    std::int32_t transfers;
  };
  std::vector<Leaving> leaving_;
};

}  // namespace llmsim
