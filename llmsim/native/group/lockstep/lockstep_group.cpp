#include "group/lockstep/lockstep_group.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

namespace llmsim {

namespace {

constexpr std::size_t kBits = 64;  // of a word
// Rounds in a row in which nobody runs a request although some wait for nothing.
constexpr std::int64_t kMostIdleRounds = 100'000;

}  // namespace

LockstepGroup::LockstepGroup(std::vector<Group*> members, std::unique_ptr<StepExecutor> executor,
                             bool idles_along)
    : members_(std::move(members)),
      executor_(std::move(executor)),
      batches_(members_.size()),
      stirred_((members_.size() + kBits - 1) / kBits) {
  for (const Group* member : members_)
    if (member->config().depth != members_[0]->config().depth)
      throw std::invalid_argument("members of a lockstep must have equally many batches in flight");
  for (std::size_t m = 0; m < members_.size(); ++m) members_[m]->join(this, m, idles_along);
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

bool LockstepGroup::some_have_work() const {
  return std::ranges::any_of(members_, &Group::has_offer);
}

bool LockstepGroup::some_have_requests() const {
  return std::ranges::any_of(members_, [](const Group* member) {
    const Gauges held = member->scheduler().gauges();
    return held.running + held.waiting > 0 && !member->paused();
  });
}

bool LockstepGroup::stands_still(bool work, bool unfinished) {
  idle_rounds_ = !work && unfinished && waits_for_nothing() ? idle_rounds_ + 1 : 0;
  return idle_rounds_ > kMostIdleRounds;
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

void LockstepGroup::change_all() {
  all_changed_ = true;
  stir_all();
}

void LockstepGroup::settle(std::size_t member) {
  stirred_[member / kBits] &= ~(std::uint64_t{1} << member % kBits);
  if (members_[member]->full()) ++num_full_;
}

std::size_t LockstepGroup::next_stirred(std::size_t m) const {
  for (; m < members_.size(); m = (m / kBits + 1) * kBits) {
    const std::uint64_t bits = stirred_[m / kBits] >> m % kBits;
    if (bits != 0) return m + static_cast<std::size_t>(std::countr_zero(bits));
  }
  return members_.size();
}

void LockstepGroup::tell(WaveNews news, Ps now) const {
  LoadListener* listener = members_[0]->load_listener();
  if (listener != nullptr && has_waves_) listener->wave_changed(news, now);
}

void LockstepGroup::tell_first_iteration(Ps now) {
  if (!tells_first_iteration_ || members_[0]->full()) return;
  tells_first_iteration_ = false;
  tell(WaveNews::kFirstIterationEnds, now);
}

void LockstepGroup::end_wave(Ps now) {
  tells_first_iteration_ = false;
  tell(WaveNews::kEnds, now);
  rounds_ = 0;
  ++waves_;
}

void LockstepGroup::begin_round(Ps now) {
  for (std::size_t m = 0; m < members_.size(); ++m)
    batches_[m] = &members_[m]->offered_or_dummy(now);
  Ps ready = now;
  for (const Group* member : members_) ready = std::max(ready, member->copied());
  for (Group* member : members_) member->announce(now);
  for (Group* member : members_) member->launch(now);
  if (ready > now)
    for (Group* member : members_) member->hold_until(ready);
  if (rounds_ == 0) {
    tell(WaveNews::kBegins, now);
    tells_first_iteration_ = true;
  }
  ++rounds_;
  change_all();
  executor_->begin(batches_, {now, ready}, *this);
}

}  // namespace llmsim
