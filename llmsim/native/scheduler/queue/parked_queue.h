// Requests that hold blocks and wait for their KV from elsewhere (vLLM's WAITING_FOR_REMOTE_KVS),
// in vLLM's order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "request/sequence_table.h"

namespace llmsim {

enum class ParkedOrder : std::uint8_t {
  kParking,  // before all who wait
  kAside,    // between those who were passed over, in the order in which either came to stand aside
  kPriority,  // (priority, arrival, row), as those who wait
};

// One pass over the parked requests whose KV is there is made per step: `rewind`, then `next` and
// `take`.
class ParkedQueue {
 public:
  ParkedQueue(ParkedOrder order, const SequenceTable& sequences)
      : order_(order), sequences_(sequences) {}

  bool empty() const { return parked_.empty(); }
  std::int32_t size() const { return static_cast<std::int32_t>(parked_.size()); }
  // `cached` tokens of it need not be computed or fetched from another group, `loaded` of it have
  // their KV when all of `transfers` have arrived, some of them (`remote`) from another group;
  // they are fewer than what was asked for where a transfer has `failed`.
  struct Parked {
    RequestId request;
    std::int32_t cached, loaded, transfers;
    bool remote, failed = false;
  };
  void park(const Parked& parked) {
    const auto later = [this](const Parked& a, const Parked& b) {
      return order(a.request) < order(b.request);
    };
    parked_.insert(std::upper_bound(parked_.begin(), parked_.end(), parked, later), parked);
  }
  // One of its transfers is there. False: it was the last one, and one of them has failed.
  [[nodiscard]] bool arrived(RequestId request) {
    const auto parked = find(request);
    if (--parked->transfers > 0) return true;
    ++num_ready_;
    return !parked->failed;
  }
  // It leaves; returns how many transfers are still to come.
  std::int32_t remove(RequestId request) {
    const auto parked = find(request);
    const std::int32_t transfers = parked->transfers;
    num_ready_ -= transfers == 0;
    parked_.erase(parked);
    return transfers;
  }

  // Calls see(request) for all who are parked, in their order.
  template <typename See>
  void each(See see) const {
    for (const Parked& one : parked_) see(one.request);
  }
  // Brings them into another order; not during a pass.
  template <typename Before>
  void order_by(Before before) {
    std::stable_sort(parked_.begin(), parked_.end(), [&before](const Parked& a, const Parked& b) {
      return before(a.request, b.request);
    });
  }

  // Whether nothing more can arrive for those who are parked.
  bool all_ready() const { return num_ready_ == size(); }

  void rewind() { at_ = 0; }
  // The next one whose KV is there, or -1.
  RequestId next() {
    if (num_ready_ == 0) return -1;
    while (at_ < parked_.size() && parked_[at_].transfers > 0) ++at_;
    return at_ < parked_.size() ? parked_[at_].request : -1;
  }
  // Of the request that `next` gave.
  std::int32_t cached() const { return parked_[at_].cached; }
  std::int32_t loaded() const { return parked_[at_].loaded; }
  bool remote() const { return parked_[at_].remote; }
  // Whether anything of it is here; else it waits for blocks like any other.
  bool holds() const { return parked_[at_].loaded > 0; }
  void skip() { ++at_; }
  // It waits for transfers once more, at its place.
  void park_again(const Parked& parked) {
    parked_[at_++] = parked;
    --num_ready_;
  }
  void take() {
    parked_.erase(parked_.begin() + static_cast<std::ptrdiff_t>(at_));
    --num_ready_;
  }
  // Whether `parked` comes before `waiting`, the head of the waiting queue.
  bool before(RequestId parked, RequestId waiting) const {
    return !(order(waiting) < order(parked));
  }

 private:
  std::vector<Parked>::iterator find(RequestId request) {
    return std::find_if(parked_.begin(), parked_.end(),
                        [request](const Parked& one) { return one.request == request; });
  }
  std::tuple<std::int32_t, Ps, RequestId> order(RequestId request) const {
    const Sequence& s = sequences_[request];
    switch (order_) {
      case ParkedOrder::kParking:
        return {};
      case ParkedOrder::kAside:
        return {s.aside == 0, s.aside, request};
      case ParkedOrder::kPriority:
        break;
    }
    return {s.priority, s.arrival, request};
  }

  ParkedOrder order_;
  const SequenceTable& sequences_;
  std::vector<Parked> parked_;
  std::size_t at_ = 0;
  std::int32_t num_ready_ = 0;
};

}  // namespace llmsim
