// What an engine will hear of requests, by the time when it does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <iterator>
#include <optional>

#include "base/types.h"

namespace llmsim {

struct Arrival {
  Ps seen;
  RequestId request;
};

// Those of the same time keep the order in which they came.
class Arrivals {
 public:
  void add(Ps seen, RequestId request) {
    auto place = arrivals_.end();
    while (place != arrivals_.begin() && std::prev(place)->seen > seen) --place;
    arrivals_.insert(place, {seen, request});
  }

  bool empty() const { return arrivals_.empty(); }
  std::size_t size() const { return arrivals_.size(); }
  // When the first one is seen; kEndOfTime: there is none.
  Ps first() const { return arrivals_.empty() ? kEndOfTime : arrivals_.front().seen; }
  auto begin() const { return arrivals_.begin(); }
  auto end() const { return arrivals_.end(); }
  bool has(RequestId request) const {
    return std::ranges::find(arrivals_, request, &Arrival::request) != arrivals_.end();
  }

  // The first request that is seen by `now` leaves; of those for which `taken` is false none does.
  template <typename Taken>
  std::optional<RequestId> take_if(Ps now, const Taken& taken) {
    for (auto place = arrivals_.begin(); place != arrivals_.end() && place->seen <= now; ++place) {
      if (!taken(place->request)) continue;
      const RequestId request = place->request;
      arrivals_.erase(place);
      return request;
    }
    return std::nullopt;
  }
  std::optional<RequestId> take(Ps now) {
    if (first() > now) return std::nullopt;
    const RequestId request = arrivals_.front().request;
    arrivals_.pop_front();
    return request;
  }

  void remove(RequestId request) {
    std::erase_if(arrivals_, [request](const Arrival& one) { return one.request == request; });
  }

  // Those that are seen by `now` come in the order of `key` of their requests.
  template <typename Key>
  void sort_seen(Ps now, const Key& key) {
    const auto later = std::ranges::upper_bound(arrivals_, now, {}, &Arrival::seen);
    std::stable_sort(arrivals_.begin(), later, [&key](const Arrival& one, const Arrival& other) {
      return key(one.request) < key(other.request);
    });
  }
  // All are seen by `now`.
  void hasten(Ps now) {
    for (Arrival& arrival : arrivals_) arrival.seen = std::min(arrival.seen, now);
  }
  void clear() { arrivals_.clear(); }

 private:
  std::deque<Arrival> arrivals_;
};

}  // namespace llmsim
