// The waiting queue of a group: first come first served, or by priority.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <set>
#include <tuple>

#include "sequence_table.h"

namespace llmsim {

enum class QueueOrder : std::uint8_t { kFcfs, kPriority };

// FCFS keeps the order of `push_back`, with preempted requests put back in front; priority sorts by (priority, arrival,
// row), where a lower number is more urgent and a preempted request takes its old place.
class WaitingQueue {
 public:
  WaitingQueue(QueueOrder order, const SequenceTable& sequences) : order_(order), sequences_(sequences) {}

  bool empty() const { return order_ == QueueOrder::kFcfs ? fcfs_.empty() : sorted_.empty(); }
  std::size_t size() const { return order_ == QueueOrder::kFcfs ? fcfs_.size() : sorted_.size(); }
  RequestId front() const { return order_ == QueueOrder::kFcfs ? fcfs_.front() : std::get<2>(*sorted_.begin()); }

  void push_back(RequestId request) {
    if (order_ == QueueOrder::kFcfs) {
      fcfs_.push_back(request);
    } else {
      sorted_.insert(entry(request));
    }
  }
  void push_front(RequestId request) {
    if (order_ == QueueOrder::kFcfs) {
      fcfs_.push_front(request);
    } else {
      sorted_.insert(entry(request));
    }
  }
  void pop_front() {
    if (order_ == QueueOrder::kFcfs) {
      fcfs_.pop_front();
    } else {
      sorted_.erase(sorted_.begin());
    }
  }
  void remove(RequestId request) {
    if (order_ == QueueOrder::kFcfs) {
      fcfs_.erase(std::find(fcfs_.begin(), fcfs_.end(), request));
    } else {
      sorted_.erase(entry(request));
    }
  }

 private:
  using Entry = std::tuple<std::int32_t, Ps, RequestId>;
  Entry entry(RequestId request) const { return {sequences_[request].priority, sequences_[request].arrival, request}; }

  QueueOrder order_;
  const SequenceTable& sequences_;
  std::deque<RequestId> fcfs_;
  std::set<Entry> sorted_;
};

}  // namespace llmsim
