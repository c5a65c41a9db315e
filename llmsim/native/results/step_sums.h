// A group's steps as sums, so that what went on in any stretch of them is a subtraction.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "group/group.h"

namespace llmsim {

// What a group's completed steps did; where steps overlap (pipeline stages), each counts from the
// end of the one before.
class StepSums {
 public:
  // A stretch of device time by what it went to.
  struct Split {
    Ps compute = 0, collective = 0, m2n = 0, offload = 0, waiting = 0, encoder = 0;
  };

  // A stretch of a device's idle time by what it waited for: KV from the tiers, other members of
  // its domain, its host.
  struct Pause {
    Ps recall = 0, others = 0, host = 0;
  };

  // Both, of several steps.
  struct Sums {
    Ps compute = 0, collective = 0, m2n = 0, offload = 0, waiting = 0, idle = 0, recall = 0,
       others = 0, encoder = 0;

    Sums operator-(const Sums& other) const {
      return {compute - other.compute, collective - other.collective, m2n - other.m2n,
              offload - other.offload, waiting - other.waiting,       idle - other.idle,
              recall - other.recall,   others - other.others,         encoder - other.encoder};
    }
    Sums& operator+=(const Sums& other) {
      compute += other.compute;
      collective += other.collective;
      m2n += other.m2n;
      offload += other.offload;
      waiting += other.waiting;
      idle += other.idle;
      recall += other.recall;
      others += other.others;
      encoder += other.encoder;
      return *this;
    }
  };

  explicit StepSums(const Group& group)
      : overlaps(group.overlaps()),
        offloads_(group.config().offload != nullptr),
        group_(group),
        end_(group.completed().ends()),
        communication_(group.completed().communication()),
        m2n_(group.completed().m2n()),
        waited_(group.completed().waiting()),
        encoder_(group.completed().encoder()),
        held_(group.completed().held()) {
    sums_.reserve(end_.size() / kEvery + 1);
    Sums sums;
    for (std::size_t k = 0; k < end_.size(); ++k) {
      if (k % kEvery == 0) sums_.push_back(sums);
      add(sums, k);
    }
    if (end_.size() % kEvery == 0) sums_.push_back(sums);
  }

  Ps end(std::size_t k) const { return end_[k]; }
  Ps start(std::size_t k) const { return group_.completed().start(k); }

  // Of the steps first .. last, the time before each of them included.
  Sums over(std::size_t first, std::size_t last) const {
    if (last - first >= kEvery) return until(last + 1) - until(first);
    Sums sums;
    for (std::size_t k = first; k <= last; ++k) add(sums, k);
    return sums;
  }

  // What step k did from `from` (not before its start) until its end.
  Split step(std::size_t k, Ps from) const {
    const Ps span = end_[k] - from;
    Split split;
    if (k < communication_.size()) split.collective = std::min(communication_[k], span);
    if (k < m2n_.size()) split.m2n = std::min(m2n_[k], span - split.collective);
    if (k < waited_.size())
      split.waiting = std::min(waited_[k], span - split.collective - split.m2n);
    split.compute = span - split.collective - split.m2n - split.waiting;
    if (offloads_) std::swap(split.offload, split.waiting);
    if (k < encoder_.size()) split.encoder = std::min(encoder_[k], split.compute);
    split.compute -= split.encoder;
    return split;
  }

  // What of the time from `from` to `to` step k waited before it began, its devices having nothing
  // else to do.
  Pause paused(std::size_t k, Ps from, Ps to) const {
    const Ps free = k > 0 ? std::max(from, end_[k - 1]) : from;
    const Ps idle = std::max<Ps>(0, to - free);
    if (k >= held_.size()) return {0, 0, idle};
    if (!overlaps) from = free;
    const auto [built, opened, launched] = held_[k];
    const auto within = [from, to](Ps a, Ps b) {
      return std::max<Ps>(0, std::min(b, to) - std::max(a, from));
    };
    const Ps recall = within(built, opened), others = within(opened, launched);
    return {recall, others, std::max<Ps>(0, idle - recall - others)};
  }

  const bool overlaps;

 private:
  static constexpr std::size_t kEvery =
      16;  // steps between two sums that are kept: a run has tens of millions

  void add(Sums& sums, std::size_t k) const {
    const Ps begin = start(k), before = k > 0 ? end_[k - 1] : begin;
    const Split split = step(k, std::max(begin, before));
    sums.collective += split.collective;
    sums.m2n += split.m2n;
    sums.offload += split.offload;
    sums.compute += split.compute;
    sums.waiting += split.waiting;
    sums.encoder += split.encoder;
    if (begin <= before) return;
    const Pause pause = paused(k, before, begin);
    sums.idle += pause.host;
    sums.recall += pause.recall;
    sums.others += pause.others;
  }

  // Of the steps before k.
  Sums until(std::size_t k) const {
    Sums sums = sums_[k / kEvery];
    for (std::size_t i = k - k % kEvery; i < k; ++i) add(sums, i);
    return sums;
  }

  const bool offloads_;  // its steps wait for copies, and for memory and processors that compute
  const Group& group_;
  const std::vector<Ps>&end_, &communication_, &m2n_, &waited_, &encoder_;
  const std::vector<Held>& held_;
  std::vector<Sums> sums_;  // of the steps before 0, kEvery, 2 kEvery ...
};

}  // namespace llmsim
