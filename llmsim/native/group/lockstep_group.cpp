#include "group/lockstep_group.h"

#include <algorithm>
#include <stdexcept>

namespace llmsim {

LockstepGroup::LockstepGroup(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor,
                             std::int32_t sync_interval)
    : members_(std::move(members)),
      executor_(std::move(executor)),
      sync_interval_(sync_interval),
      batches_(members_.size()),
      stirred_(members_.size(), true) {
  if (sync_interval < 1)
    throw std::invalid_argument("the sync interval of a lockstep must be at least 1");
  for (const Group* member : members_)
    if (member->config().depth != members_[0]->config().depth)
      throw std::invalid_argument("members of a lockstep must have equally many batches in flight");
}

void LockstepGroup::pump(Ps now) {
  while (try_round(now)) {
  }
}

// Members hold requests, of which none runs, and no KV is on its way to or from them.
bool LockstepGroup::waits_for_nothing() const {
  return std::ranges::all_of(
      members_, [](const Group* member) { return member->scheduler().gauges().bound == 0; });
}

// Requests that wait for their KV keep the wave going, and start one, as in vLLM: all ranks run
// dummies.
bool LockstepGroup::rests(bool work, bool unfinished) const {
  if (work) return false;
  if (idle_along()) return true;
  return !unfinished && (rounds_ == 0 || rounds_ % sync_interval_ == 0);
}

void LockstepGroup::stir(std::size_t member) {
  if (stirred_[member]) return;
  stirred_[member] = true;
  if (members_[member]->full()) --num_full_;
}

// In a large group most members wait for a few: who waits is not asked again.
bool LockstepGroup::gather(Ps now) {
  bool all_there = true;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (!stirred_[m]) continue;
    Group& member = *members_[m];
    member.offer(now, rounds_);
    all_there &= member.has_offer() || member.may_join_idle();
    if (!member.settled()) continue;
    stirred_[m] = false;
    if (member.full()) ++num_full_;
  }
  return all_there && num_full_ == 0;
}

bool LockstepGroup::try_round(Ps now) {
  if (!gather(now)) return false;
  bool work = false, unfinished = false;
  for (const Group* member : members_) {
    work |= member->has_offer();
    unfinished |= member->scheduler().has_requests() && !member->paused();
  }
  if (rests(work, unfinished)) {
    if (!idle_along() || std::ranges::all_of(members_, &Group::idle)) rounds_ = 0;
    return false;
  }
  idle_rounds_ = !work && unfinished && waits_for_nothing() ? idle_rounds_ + 1 : 0;
  if (idle_rounds_ > kMostIdleRounds) return false;
  for (std::size_t m = 0; m < members_.size(); ++m)
    batches_[m] = &members_[m]->offered_or_dummy(now);
  for (Group* member : members_) member->announce(now);
  for (Group* member : members_) member->launch(now);
  stirred_.assign(members_.size(), true);
  ++rounds_;
  executor_->begin(batches_, {now, now}, *this);
  return true;
}

}  // namespace llmsim
