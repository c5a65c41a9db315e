#include "loop/layouts.h"

#include <algorithm>
#include <numeric>

namespace llmsim {

namespace {

constexpr std::int64_t kPpm = 1'000'000;

Ps transfer_time(std::int64_t bytes, std::int64_t bytes_per_s) {
  const auto wide = static_cast<__int128>(bytes) * kPsPerSecond;
  return static_cast<Ps>((wide + bytes_per_s - 1) / bytes_per_s);
}

}  // namespace

LayoutSwitch::LayoutSwitch(std::shared_ptr<const LayoutsConfig> config)
    : config_(std::move(config)), layout_(config_->initial) {}

void LayoutSwitch::begin(Membership& membership) {
  membership_ = &membership;
  for (std::size_t i = 0; i < membership.groups().size(); ++i) {
    serving_.push_back(static_cast<std::int32_t>(i));
    membership.groups()[i]->report_steps_to(this);
  }
  post_time();
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
  return std::ranges::all_of(serving_, [this](std::int32_t i) { return group(i).quiet(); });
}

void LayoutSwitch::drain(Ps now) {
  membership_->hold_arrivals();
  for (const std::int32_t index : serving_) group(index).pause();
  state_ = State::kDraining;
  if (!quiet()) return;
  state_ = State::kMoving;
  switch_groups(now);
}

void LayoutSwitch::add_groups(std::int32_t layout) {
  const LayoutSpec& spec = config_->layouts[at(layout)];
  const auto first = static_cast<std::int32_t>(membership_->groups().size());
  serving_.clear();
  for (std::size_t i = 0; i < spec.groups.size(); ++i) {
    GroupAddition addition{spec.groups[i], {}, {}};
    addition.spec.config.index = first + static_cast<std::int32_t>(i);
    membership_->add_group(addition);
    serving_.push_back(addition.spec.config.index);
  }
  for (LockstepSpec lockstep : spec.lockstep) {
    for (std::size_t& member : lockstep.groups) member += at(first);
    membership_->add_lockstep(lockstep);
  }
  for (const std::int32_t index : serving_) {
    group(index).pause();
    group(index).report_steps_to(this);
  }
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
  row.first_group = static_cast<std::int32_t>(membership_->groups().size());
  layout_ = row.to;
  add_groups(row.to);
  membership_->place(displaced, config_->kv == KvOnSwitch::kMove);
  for (const std::int64_t tokens : displaced.kv_tokens) row.kv_tokens += tokens;
  if (config_->kv == KvOnSwitch::kMove) row.kv = move_kv(displaced, row);
  const Ps opens = now + row.weights + row.kv + row.process;
  membership_->opened(opens);
  post(opens, Phase::kControl, kOpen);
}

void LayoutSwitch::open(Ps now) {
  Reconfiguration& row = done_.back();
  row.opened = now;
  row.held = membership_->num_held();
  state_ = State::kServing;
  membership_->release_arrivals();
  for (const std::int32_t index : serving_) group(index).go_on(now);
  post_time();
}

// Every device of the old groups sends its share, every one of the new groups receives its own; all
// at once, so that the busiest one tells how long it takes.
Ps LayoutSwitch::move_kv(const Displaced& displaced, Reconfiguration& row) const {
  const LayoutSpec &from = config_->layouts[at(row.from)], &to = config_->layouts[at(row.to)];
  Ps longest = 0;
  for (std::size_t i = 0; i < displaced.kv_tokens.size(); ++i) {
    const std::int64_t bytes = displaced.kv_tokens[i] * from.kv_bytes_per_token[i];
    longest = std::max(longest, transfer_time(bytes, from.kv_bytes_per_s[i]));
  }
  const std::vector<std::int64_t> tokens = membership_->kv_brought(displaced, serving_);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t bytes = tokens[i] * to.kv_bytes_per_token[i];
    row.kv_bytes += bytes * to.devices[i];
    longest = std::max(longest, transfer_time(bytes, to.kv_bytes_per_s[i]));
  }
  return longest > 0 ? longest + config_->kv_latency : 0;
}

}  // namespace llmsim
