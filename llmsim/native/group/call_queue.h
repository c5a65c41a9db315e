// The queue of an engine between its scheduler and its workers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>

#include "base/types.h"

namespace llmsim {

// Calls of the scheduler whose output the engine has not taken, oldest first. One that gave no
// batch takes a place, too (vLLM: EngineCore.step_with_batch_queue).
class CallQueue {
 public:
  explicit CallQueue(std::size_t places) : places_(places) {}

  bool full() const { return calls_.size() >= places_; }
  void push_batch(Ps now) { calls_.push_back({true, now}); }
  void push_empty(Ps now) { calls_.push_back({false, now}); }
  // The oldest call leaves if it gave no batch; returns when it was made.
  std::optional<Ps> take_empty() {
    if (calls_.empty() || calls_.front().has_batch) return std::nullopt;
    const Ps made = calls_.front().made;
    calls_.pop_front();
    return made;
  }
  // The oldest call leaves, which gave a batch.
  void pop_batch() { calls_.pop_front(); }
  void clear() { calls_.clear(); }

  // Batches of all calls but the newest ones, of which there are so many; nothing: there are fewer.
  std::optional<std::size_t> batches_before(std::size_t newest) const {
    if (calls_.size() < newest) return std::nullopt;
    const auto end = calls_.end() - static_cast<std::ptrdiff_t>(newest);
    return static_cast<std::size_t>(std::count_if(calls_.begin(), end, &has_batch_of));
  }

 private:
  struct Call {
    bool has_batch;
    Ps made;
  };
  static bool has_batch_of(const Call& call) { return call.has_batch; }

  std::size_t places_;
  std::deque<Call> calls_;
};

}  // namespace llmsim
