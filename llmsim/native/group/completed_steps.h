// What a group keeps of each step whose output it has taken.
#pragma once

#include <cstddef>
#include <vector>

#include "base/sparse_column.h"
#include "base/types.h"
#include "step/executors/executor.h"

namespace llmsim {

// Why a step began later than it was built: until `opened` for KV that its batch waited for, from
// then until `launched` for the other members of its domain.
struct Held {
  Ps built = 0, opened = 0, launched = 0;
};

// One entry per step in each column, in order; columns that may be shorter say so: then nothing.
class CompletedSteps {
 public:
  void add(Ps now, const StepTimes& times, const Held& held) {
    gaps_.push_back(times.start - last_end());
    ends_.push_back(now);
    note(communication_, times.communication);
    note(waiting_, times.waiting);
    note(m2n_, times.m2n);
    if (held.launched > held.built || !held_.empty()) {
      held_.resize(ends_.size());
      held_.back() = held;
    }
  }
  // What of the newest step was an encoder's computing.
  void note_encoder(Ps time) { note(encoder_, time); }

  std::size_t size() const { return ends_.size(); }
  // Of the newest one; 0: there is none.
  Ps last_end() const { return ends_.empty() ? 0 : ends_.back(); }
  // When its output was there.
  const std::vector<Ps>& ends() const { return ends_; }
  // When it started.
  Ps start(std::size_t step) const { return (step > 0 ? ends_[step - 1] : 0) + gaps_[step]; }
  // How much of it was collectives; empty where nothing ever was.
  const std::vector<Ps>& communication() const { return communication_; }
  // How much of it was waiting for other ranks or stages; empty where nothing ever waits.
  const std::vector<Ps>& waiting() const { return waiting_; }
  // How much of it was transfers between attention and FFN; empty where nothing ever was.
  const std::vector<Ps>& m2n() const { return m2n_; }
  // How much of it was an encoder's computing; may be shorter.
  const std::vector<Ps>& encoder() const { return encoder_; }
  // Why it began later than it was built; empty where none ever did.
  const std::vector<Held>& held() const { return held_; }

 private:
  // The column stays unallocated until the first value that is not zero.
  void note(std::vector<Ps>& column, Ps value) const {
    if (value == 0 && column.empty()) return;
    column.resize(ends_.size(), 0);
    column.back() = value;
  }

  std::vector<Ps> ends_, communication_, waiting_, m2n_, encoder_;
  SparseColumn gaps_;  // from the end of the step before to a step's start
  std::vector<Held> held_;
};

}  // namespace llmsim
