// The batches of a group, from when they are built until the group has their output.
#pragma once

#include <cstddef>
#include <vector>

#include "base/types.h"
#include "program/batch.h"
#include "step/executors/executor.h"

namespace llmsim {

// One batch in flight. Times are ps; the device starts it when it is free.
struct Slot {
  Batch batch;
  Ps scheduled = 0;  // when it was built
  Ps opened = 0;     // when the KV that it waits for was there
  Ps launched = 0;
  StepTimes times;
  std::size_t row = 0;  // of the step recorder
};

// A ring of slots, which are reused: batches in flight, oldest first, then those that are built and
// not launched. The times of the first `num_timed` in flight are known; the first `num_unseen` of
// them have ended, and the engine has not heard of it.
class BatchRing {
 public:
  explicit BatchRing(std::size_t slots) : slots_(slots) {}
  // Before the first batch.
  void resize(std::size_t slots) { slots_.resize(slots); }

  std::size_t num_in_flight() const { return num_in_flight_; }
  std::size_t num_timed() const { return num_timed_; }
  std::size_t num_unseen() const { return num_unseen_; }
  std::size_t num_dummies() const { return num_dummies_; }  // in flight, without requests
  bool empty() const { return num_in_flight_ == 0; }

  Slot& operator[](std::size_t place) { return slots_[(oldest_ + place) % slots_.size()]; }
  const Slot& operator[](std::size_t place) const {
    return slots_[(oldest_ + place) % slots_.size()];
  }
  Slot& oldest() { return slots_[oldest_]; }
  const Slot& oldest() const { return slots_[oldest_]; }
  Slot& newest() { return (*this)[num_in_flight_ - 1]; }
  const Slot& newest() const { return (*this)[num_in_flight_ - 1]; }
  // Of the batch that is launched next.
  Slot& next() { return (*this)[num_in_flight_]; }
  const Slot& next() const { return (*this)[num_in_flight_]; }
  // The batch that left last.
  const Batch& last() const { return slots_[last_].batch; }

  Slot& launch() {
    Slot& slot = next();
    ++num_in_flight_;
    if (slot.batch.empty()) ++num_dummies_;
    return slot;
  }
  // The times of the next batch in flight are known.
  Slot& set_times(const StepTimes& times) {
    Slot& slot = (*this)[num_timed_++];
    slot.times = times;
    return slot;
  }
  // The next batch in flight has ended, and its engine does not hear of it.
  void end_unseen() { ++num_unseen_; }
  // The engine hears of the oldest batch's end; false: it has not ended unseen.
  bool see_oldest() {
    if (num_unseen_ == 0) return false;
    --num_unseen_;
    return true;
  }
  // The oldest batch in flight leaves.
  void pop_oldest() {
    if (oldest().batch.empty()) --num_dummies_;
    last_ = oldest_;
    oldest_ = (oldest_ + 1) % slots_.size();
    --num_in_flight_;
    if (num_timed_ > 0) --num_timed_;
  }

 private:
  std::vector<Slot> slots_;
  std::size_t oldest_ = 0, last_ = 0;
  std::size_t num_in_flight_ = 0, num_timed_ = 0, num_unseen_ = 0, num_dummies_ = 0;
};

}  // namespace llmsim
