#include "loop/membership/layouts.h"

#include <algorithm>
#include <numeric>

namespace llmsim {

namespace {

constexpr std::int64_t kPpm = 1'000'000;

}  // namespace

LayoutSwitch::LayoutSwitch(std::shared_ptr<const LayoutsConfig> config)
    : config_(std::move(config)), layout_(config_->initial) {
  if (config_->network) kv_move_.emplace(*config_->network, config_->moves, config_->move_of);
}

void LayoutSwitch::begin(Membership& membership) {
  membership_ = &membership;
  serve(0, membership.groups().size());
  post_time();
}

void LayoutSwitch::serve(std::int32_t first, std::size_t groups) {
  serving_.clear();
  for (std::size_t i = 0; i < groups; ++i) {
    serving_.push_back(first + static_cast<std::int32_t>(i));
    group(serving_.back()).report_steps_to(this);
  }
}

// The next switch may be one at a time.
void LayoutSwitch::post_time() {
  if (next_ == config_->triggers.size()) return;
  const LayoutTrigger& trigger = config_->triggers[next_];
  if (trigger.kind == TriggerKind::kAt)
    post(std::max(events().now(), trigger.value), Phase::kControl, kTimeHasCome);
}

Outlook LayoutSwitch::outlook(const Event& event) const {
  const bool stale =
      event.argument() == kTimeHasCome && (!serving() || membership_->num_open() == 0);
  return stale ? Outlook::kStale : Outlook::kDue;
}

void LayoutSwitch::on_event(Ps now, Phase, std::uint32_t argument) {
  switch (argument) {
    case kTimeHasCome:
      ask(config_->triggers[next_].to, static_cast<std::int32_t>(next_), now);
      return drain(now);
    case kDrain:
      return drain(now);
    case kSwitch:
      return switch_groups(now);
    default:
      return open(now);
  }
}

bool LayoutSwitch::met(const LayoutTrigger& trigger) const {
  const std::int64_t all = membership_->num_requests(), open = membership_->num_open();
  std::int64_t waiting = 0;
  switch (trigger.kind) {
    case TriggerKind::kAt:
      return false;
    case TriggerKind::kOpenShareBelow:
      return open * kPpm < trigger.value * all;
    case TriggerKind::kEndedShareAbove:
      return (all - open) * kPpm > trigger.value * all;
    case TriggerKind::kWaitingBelow:
      for (const std::int32_t index : serving_) waiting += group(index).num_waiting();
      return waiting < trigger.value;
  }
  return false;
}

void LayoutSwitch::step_ended(Ps now) {
  if (state_ == State::kDraining && quiet()) {
    state_ = State::kMoving;
    return post(now, Phase::kControl, kSwitch);
  }
  if (!serving() || membership_->num_open() == 0) return;
  std::int32_t to = -1, by = -1;
  if (next_ < config_->triggers.size() && met(config_->triggers[next_])) {
    by = static_cast<std::int32_t>(next_);
    to = config_->triggers[next_].to;
  } else if (config_->decide) {
    std::vector<std::pair<std::int32_t, std::int32_t>> groups;
    for (const std::int32_t index : serving_)
      groups.emplace_back(group(index).num_running(), group(index).num_waiting());
    to = config_->decide(now, groups);
  }
  if (to < 0 || (by < 0 && to == layout_)) return;
  ask(to, by, now);
  post(now, Phase::kControl, kDrain);
}

void LayoutSwitch::ask(std::int32_t to, std::int32_t trigger, Ps now) {
  state_ = State::kAsked;
  Reconfiguration& row = done_.emplace_back();
  row.from = layout_;
  row.to = to;
  row.trigger = trigger;
  row.asked = now;
  if (trigger >= 0) ++next_;
}

bool LayoutSwitch::quiet() const {
  return !membership_->anything_moves() &&
         std::ranges::all_of(serving_, [this](std::int32_t i) { return group(i).quiet(); });
}

void LayoutSwitch::drain(Ps now) {
  membership_->hold_arrivals();
  membership_->hold_transfers(*this);
  for (const std::int32_t index : serving_) group(index).pause();
  state_ = State::kDraining;
  if (!quiet()) return;
  state_ = State::kMoving;
  switch_groups(now);
}

void LayoutSwitch::add_groups(std::int32_t layout) {
  const LayoutSpec& spec = config_->layouts[at(layout)];
  serve(membership_->add_layout(spec), spec.groups.size());
  for (const std::int32_t index : serving_) group(index).pause();
}

// Requests that arrived meanwhile are still held, so that those which were there come first.
void LayoutSwitch::switch_groups(Ps now) {
  Reconfiguration& row = done_.back();
  row.drained = now;
  row.weights = config_->weights[at(row.from)][at(row.to)];
  row.process = config_->process;
  const bool keeps = config_->kv != KvOnSwitch::kDrop;
  const Displaced displaced = membership_->displace(serving_, keeps);
  row.requests = static_cast<std::int64_t>(displaced.requests.size());
  const std::int32_t first_before = serving_.front();
  row.first_group = static_cast<std::int32_t>(membership_->groups().size());
  layout_ = row.to;
  add_groups(row.to);
  membership_->place(displaced, config_->kv == KvOnSwitch::kMove);
  for (const HeldKv& held : displaced.kv) row.kv_tokens += held.tokens;
  if (config_->kv == KvOnSwitch::kMove) move_kv(displaced, first_before, row);
  const Ps opens = now + row.weights + row.kv + row.process;
  membership_->opened(opens);
  post(opens, Phase::kControl, kOpen);
}

void LayoutSwitch::open(Ps now) {
  Reconfiguration& row = done_.back();
  row.opened = now;
  row.held = membership_->num_held();
  state_ = State::kServing;
  membership_->start_layout(row.first_group);
  membership_->release_transfers();
  membership_->release_arrivals();
  for (const std::int32_t index : serving_) group(index).go_on(now);
  post_time();
}

void LayoutSwitch::move_kv(const Displaced& displaced, std::int32_t first_before,
                           Reconfiguration& row) {
  const LayoutSpec &from = config_->layouts[at(row.from)], &to = config_->layouts[at(row.to)];
  std::vector<MovedKv> moved;
  for (std::size_t i = 0; i < displaced.requests.size(); ++i) {
    const HeldKv brought = membership_->kv_brought(displaced.requests[i]);
    if (brought.tokens == 0) continue;
    const std::int32_t target = brought.group - row.first_group;
    row.kv_bytes += brought.tokens * to.kv_bytes_per_token[at(target)] * to.devices[at(target)];
    moved.push_back({displaced.kv[i].group - first_before, target, brought.tokens});
  }
  if (!kv_move_) return;
  row.kv = kv_move_->time_of(from, to, moved);
  for (const MovedKv& one : moved) {
    const std::pair ends(first_before + one.from, row.first_group + one.to);
    if (one.sent_bytes > 0) row.kv_sent[ends] += one.sent_bytes;
  }
}

}  // namespace llmsim
