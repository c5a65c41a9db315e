#include "group/lockstep_group.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

namespace llmsim {

namespace {

constexpr std::size_t kBits = 64;  // of a word

}  // namespace

LockstepGroup::LockstepGroup(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor,
                             std::int32_t sync_interval, bool syncs_first)
    : members_(std::move(members)),
      executor_(std::move(executor)),
      sync_interval_(sync_interval),
      syncs_first_(syncs_first),
      batches_(members_.size()),
      stirred_((members_.size() + kBits - 1) / kBits) {
  if (sync_interval < 0)
    throw std::invalid_argument("the sync interval of a lockstep must be at least 0");
  for (const Group* member : members_)
    if (member->config().depth != members_[0]->config().depth)
      throw std::invalid_argument("members of a lockstep must have equally many batches in flight");
  for (std::size_t m = 0; m < members_.size(); ++m)
    members_[m]->join(this, m, /*idles_along=*/sync_interval == 0);
  idle_along_ = std::ranges::any_of(members_, &Group::idles_along);
  stir_all();
}

void LockstepGroup::pump(std::size_t pumping, Ps now) {
  asked_.assign(1, pumping);
  all_changed_ = false;
  while (try_round(now)) {
  }
  if (all_changed_) {
    for (Group* member : members_) member->expect(now);
    return;
  }
  std::ranges::sort(asked_);
  std::size_t expected = members_.size();
  for (const std::size_t m : asked_)
    if (m != std::exchange(expected, m)) members_[m]->expect(now);
}

// Members hold requests, of which none runs, and no KV is on its way to or from them.
bool LockstepGroup::waits_for_nothing() const {
  return std::ranges::all_of(
      members_, [](const Group* member) { return member->scheduler().gauges().bound == 0; });
}

bool LockstepGroup::some_have_requests() const {
  return std::ranges::any_of(members_, [](const Group* member) {
    return member->scheduler().has_requests() && !member->paused();
  });
}

// vLLM's DPEngineCoreProc._has_global_unfinished_reqs: each says whether it has requests when it
// has called for its batch or dummy and, with its queue of batches full, has the oldest output.
// With a queue, what it has just called for is then not known to have ended.
bool LockstepGroup::agree(Ps now) {
  if (!about_to_agree()) return true;
  if (std::ranges::any_of(members_, &Group::full)) return false;
  agreed_ = true;
  if (members_[0]->config().depth == 1) work_left_ = some_have_requests();
  if (!work_left_) {
    tells_first_iteration_ = false;
    tell(WaveNews::kEnds, now);
    rounds_ = 0;
    ++waves_;
  }
  all_changed_ = true;
  stir_all();
  return true;
}

void LockstepGroup::tell(WaveNews news, Ps now) const {
  LoadListener* listener = members_[0]->load_listener();
  if (listener != nullptr && !idle_along_) listener->wave_changed(news, now);
}

void LockstepGroup::tell_first_iteration(Ps now) {
  if (!tells_first_iteration_ || members_[0]->full()) return;
  tells_first_iteration_ = false;
  tell(WaveNews::kFirstIterationEnds, now);
}

std::int64_t LockstepGroup::rounds_ahead() const {
  if (idle_along_ || (rounds_ == 0 && syncs_first_)) return 1;
  return sync_interval_ - rounds_ % sync_interval_;
}

void LockstepGroup::stir(std::size_t member) {
  std::uint64_t& bits = stirred_[member / kBits];
  const std::uint64_t bit = std::uint64_t{1} << member % kBits;
  if ((bits & bit) != 0) return;
  bits |= bit;
  if (members_[member]->full()) --num_full_;
}

void LockstepGroup::stir_all() {
  for (std::size_t m = 0; m < members_.size(); ++m)
    stirred_[m / kBits] |= std::uint64_t{1} << m % kBits;
  num_full_ = 0;
}

std::size_t LockstepGroup::next_stirred(std::size_t m) const {
  for (; m < members_.size(); m = (m / kBits + 1) * kBits) {
    const std::uint64_t bits = stirred_[m / kBits] >> m % kBits;
    if (bits != 0) return m + static_cast<std::size_t>(std::countr_zero(bits));
  }
  return members_.size();
}

// In a large group most members wait for a few: who waits is not asked again.
bool LockstepGroup::gather(Ps now) {
  bool all_there = true;
  const std::int64_t ahead = rounds_ahead();
  for (std::size_t m = next_stirred(0); m < members_.size(); m = next_stirred(m + 1)) {
    Group& member = *members_[m];
    asked_.push_back(m);
    if (idle_along_) {
      all_there &= member.look(now);
    } else {
      member.offer(now, rounds_, ahead);
      if (rounds_ > 0 && !member.has_offer() && member.may_join_idle()) member.join_idle();
      all_there &= member.has_offer() || member.joins_idle() || member.may_join_idle();
    }
    if (!member.settled()) continue;
    stirred_[m / kBits] &= ~(std::uint64_t{1} << m % kBits);
    if (member.full()) ++num_full_;
  }
  if (!all_there || num_full_ > 0) return false;
  return !idle_along_ || all_offer(now);
}

// All members have looked: they form their batches, of which some may wait for KV below.
bool LockstepGroup::all_offer(Ps now) {
  for (Group* member : members_) member->offer(now, rounds_, rounds_ahead());
  return std::ranges::all_of(
      members_, [](const Group* member) { return member->has_offer() || member->may_join_idle(); });
}

// Nobody has work: the wave is over when all have ended what they did, and members that may find
// something in the next pass have all others pass along.
bool LockstepGroup::passes_again(Ps now) {
  if (!std::ranges::all_of(members_, &Group::idle)) return false;
  if (std::exchange(rounds_, 0) > 0) stir_all();  // who waited for the next round looks again
  if (!std::ranges::any_of(members_, &Group::asks_again)) return false;
  if (passed_at_ != std::exchange(passed_at_, now)) idle_passes_ = 0;
  if (++idle_passes_ > kMostEmptyBuilds)
    throw Stalled("the ranks of a lock-step group passed " + std::to_string(idle_passes_) +
                  " times at " + std::to_string(now) + " ps");
  return true;
}

bool LockstepGroup::try_round(Ps now) {
  if (!agree(now)) return false;
  tell_first_iteration(now);
  if (!gather(now)) return false;
  bool work = std::ranges::any_of(members_, &Group::has_offer);
  if (!work && idle_along_) {
    for (Group* member : members_) member->offer_withheld(now);
    work = std::ranges::any_of(members_, &Group::has_offer);
  }
  const bool unfinished = some_have_requests();
  if (!work && idle_along_) {
    for (Group* member : members_) member->end_pass();
    stir_all();
    return passes_again(now);
  }
  // Requests that wait for their KV keep the wave going, and start one, as in vLLM: all ranks run
  // dummies.
  if (!work && !unfinished && rounds_ == 0) return false;
  idle_rounds_ = !work && unfinished && waits_for_nothing() ? idle_rounds_ + 1 : 0;
  if (idle_rounds_ > kMostIdleRounds) return false;
  for (Group* member : members_) member->keep_back();
  for (std::size_t m = 0; m < members_.size(); ++m)
    batches_[m] = &members_[m]->offered_or_dummy(now);
  Ps ready = now;
  for (const Group* member : members_) ready = std::max(ready, member->copied());
  for (Group* member : members_) member->announce(now);
  for (Group* member : members_) member->launch(now);
  if (ready > now)
    for (Group* member : members_) member->hold_until(ready);
  all_changed_ = true;
  stir_all();
  if (rounds_ == 0) {
    tell(WaveNews::kBegins, now);
    tells_first_iteration_ = true;
  }
  ++rounds_;
  agreed_ = false;
  work_left_ = work || unfinished;
  executor_->begin(batches_, {now, ready}, *this);
  return true;
}

}  // namespace llmsim
