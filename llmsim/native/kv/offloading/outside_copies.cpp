#include "kv/offloading/outside_copies.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace llmsim {

// GroupCopies tells requests apart by numbers; here each copy has the number of its job.
static RequestId number_of(GroupCopies::JobId job) {
  if (job < 0 || job > std::numeric_limits<RequestId>::max())
    throw std::out_of_range("the number of a copy has more than 31 bits");
  return static_cast<RequestId>(job);
}

OutsideCopies::OutsideCopies(const std::vector<GroupCopiesConfig>& groups, NetworkConfig network)
    : network_(std::move(network)),
      copies_(network_, {.opened = [](std::int32_t) {},
                         .ended = [this](std::int32_t group, RequestId job,
                                         bool) { ended_.push_back({group, job}); }}) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    copies_.add_group(groups[i]);
    groups_.push_back({copies_.of(static_cast<std::int32_t>(i))});
  }
}

OutsideCopies::Group& OutsideCopies::at(std::int32_t group) {
  Group& found = groups_.at(static_cast<std::size_t>(group));
  if (found.copies == nullptr) throw std::out_of_range("the group offloads nothing");
  return found;
}

void OutsideCopies::load(std::int32_t group, GroupCopies::JobId job, std::int64_t tokens) {
  at(group).copies->load(job, number_of(job), tokens);
}

void OutsideCopies::store(std::int32_t group, GroupCopies::JobId job, std::int64_t tokens) {
  at(group).copies->store(job, number_of(job), tokens);
}

void OutsideCopies::load_in_step(std::int32_t group, GroupCopies::JobId job, std::int64_t tokens) {
  at(group).copies->load_in_step(job, number_of(job), tokens);
}

void OutsideCopies::flush(std::int32_t group, GroupCopies::JobId job) {
  at(group).copies->flush(job);
}

void OutsideCopies::formed(std::int32_t group, bool runs, Ps now) {
  pass_until(now);
  Group& one = at(group);
  one.copies->formed(now, static_cast<std::int32_t>(one.ends.size()), runs);
  network_.settle(now);
}

void OutsideCopies::launched(std::int32_t group, Ps end) { at(group).ends.push_back(end); }

Ps OutsideCopies::next_event() const {
  Ps next = network_.next_event();
  for (const Group& group : groups_)
    if (!group.ends.empty()) next = std::min(next, group.ends.front());
  return next;
}

std::vector<OutsideCopies::Ended> OutsideCopies::advance(Ps now) {
  pass_until(now);
  return std::exchange(ended_, {});
}

// As in the loop, steps of a time end before transfers land.
void OutsideCopies::pass_until(Ps now) {
  for (Ps time = next_event(); time <= now; time = next_event()) {
    end_steps(time);
    if (network_.next_event() <= time) network_.advance(time);
    network_.settle(time);
  }
}

void OutsideCopies::end_steps(Ps now) {
  for (Group& group : groups_) {
    while (!group.ends.empty() && group.ends.front() <= now) {
      group.ends.pop_front();
      group.copies->step_ended(now);
    }
  }
}

}  // namespace llmsim
