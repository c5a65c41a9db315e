#include "step/contended.h"

#include <algorithm>
#include <stdexcept>

#include "model/base/arithmetic.h"

namespace llmsim {

namespace model = astra_sim::model;

ContendedRound::ContendedRound(std::vector<GroupCosts*> members, ContendedLinks links,
                               SharedNetwork& network)
    : members_(members),
      features_(members, nullptr),
      links_(std::move(links)),
      network_(network),
      program_(members.front()->program()),
      tp_(links_.places.size() /
          (members.size() * static_cast<std::size_t>(program_.num_stages()))),
      stages_(static_cast<std::size_t>(program_.num_stages())),
      specs_(program_.operators().size(), nullptr),
      devices_(members.size() * stages_.size()) {
  if (tp_ == 0 || links_.places.size() != tp_ * devices_.size())
    throw std::invalid_argument("every device of a domain on shared links needs a place");
  for (const CollectiveSpec& spec : links_.collectives)
    specs_.at(static_cast<std::size_t>(spec.op)) = &spec;
  const auto& operators = program_.operators();
  for (std::size_t first = 0; first < operators.size();) {
    Stage& stage = stages_[static_cast<std::size_t>(operators[first].stage)];
    std::size_t last = first + 1;
    if (operators[first].kind == NodeKind::kStageSend) {
      stage.kv_transfer = static_cast<std::int32_t>(first);
    } else {
      while (last < operators.size() && operators[last].part == operators[first].part &&
             operators[last].stage == operators[first].stage &&
             operators[last].kind != NodeKind::kStageSend)
        ++last;
      add_items(stage, first, last);
    }
    first = last;
  }
}

// Operators of one part run layer by layer.
void ContendedRound::add_items(Stage& stage, std::size_t first, std::size_t last) {
  const auto& operators = program_.operators();
  std::int32_t layers = 0;
  for (std::size_t i = first; i < last; ++i) layers = std::max(layers, operators[i].repeat);
  for (std::int32_t layer = 0; layer < layers; ++layer)
    for (std::size_t i = first; i < last; ++i) {
      const Operator& op = operators[i];
      if (op.repeat <= layer) continue;
      const bool together = op.feature == Feature::kGathered, moves = specs_[i] != nullptr;
      const auto kind = together ? (moves ? Item::Kind::kCollective : Item::Kind::kTogether)
                                 : (moves ? Item::Kind::kInside : Item::Kind::kOwn);
      if (stage.items.empty() || moves || stage.items.back().kind != kind ||
          stage.items.back().layer != layer)
        stage.items.push_back({kind, layer, {}});
      stage.items.back().ops.push_back(static_cast<std::int32_t>(i));
    }
}

void ContendedRound::begin(std::span<const Batch* const> batches, Ps now, StepSink& sink) {
  sink_ = &sink;
  const std::int64_t number = num_runs_++;
  Run& run = runs_.emplace_back();
  const auto steps = features_.combine(batches);
  run.members.assign(steps.begin(), steps.end());
  run.draws.assign(steps.front().draws.begin(), steps.front().draws.end());
  for (std::size_t m = 0; m < members_.size(); ++m)
    run.costs.push_back(
        step_costs(*members_[m], run.members[m], run.draws));  // in the order of steps
  run.start.assign(members_.size(), kNever);
  run.cursors.resize(devices_.size());
  run.waiting.assign(stages_.size(), 0);
  for (std::size_t m = 0; m < members_.size(); ++m) arrive(number, m, 0, now, now);
}

Ps ContendedRound::price(const Run& run, const MemberStep& member, const Item& item) const {
  Ps sum = 0;
  for (const std::int32_t index : item.ops) {
    const auto i = static_cast<std::size_t>(index);
    const Operator& op = program_.operators()[i];
    if (op.kind == NodeKind::kAttention) {
      sum += member.attention[static_cast<std::size_t>(op.attention)].ps;
    } else if (op.sampled != nullptr) {
      sum += run.draws[static_cast<std::size_t>(program_.first_draw(i) + item.layer)];
    } else {
      sum += op.ps[static_cast<std::size_t>(member.place.at(op.feature))];
    }
  }
  return sum;
}

void ContendedRound::arrive(std::int64_t run, std::size_t member, std::size_t stage, Ps at,
                            Ps now) {
  run_of(run).cursors[place(member, stage)].at = at;
  try_begin(member, stage, now);
}

void ContendedRound::try_begin(std::size_t member, std::size_t stage, Ps now) {
  const Device& device = devices_[place(member, stage)];
  const std::int64_t number = device.next_run;
  if (number >= num_runs_) return;
  Run& run = run_of(number);
  Cursor& cursor = run.cursors[place(member, stage)];
  if (cursor.running || cursor.at == kNever) return;
  cursor.running = true;
  cursor.at = std::max(cursor.at, device.free);
  if (stage == 0) run.start[member] = cursor.at;
  advance(number, member, stage, now);
}

void ContendedRound::advance(std::int64_t number, std::size_t member, std::size_t stage, Ps now) {
  Run& run = run_of(number);
  Cursor& cursor = run.cursors[place(member, stage)];
  const std::vector<Item>& items = stages_[stage].items;
  for (; cursor.item < items.size(); ++cursor.item) {
    if (items[cursor.item].kind == Item::Kind::kOwn) {
      cursor.at += price(run, run.members[member], items[cursor.item]);
      continue;
    }
    if (items[cursor.item].kind == Item::Kind::kInside) {
      if (inside(number, member, stage, now)) return;
      continue;
    }
    if (++run.waiting[stage] == static_cast<std::int32_t>(members_.size()))
      meet(number, stage, now);
    return;
  }
  leave(number, member, stage, now);
}

// All members are at the same item. What follows a meeting without a collective is known at once.
void ContendedRound::meet(std::int64_t number, std::size_t stage, Ps now) {
  Run& run = run_of(number);
  run.waiting[stage] = 0;
  Ps at = 0;
  for (std::size_t m = 0; m < members_.size(); ++m)
    at = std::max(at, run.cursors[place(m, stage)].at);
  const std::size_t index = run.cursors[place(0, stage)].item;
  const Item& item = stages_[stage].items[index];
  const Ps ps = price(run, run.members[0], item);
  if (item.kind == Item::Kind::kCollective) {
    flows_between(run, stage, item.ops[0]);
    if (exchange({number, static_cast<std::int32_t>(stage)}, ps, at, now)) return;
  }
  for (std::size_t m = 0; m < members_.size(); ++m) {
    run.cursors[place(m, stage)].at = at + ps;
    ++run.cursors[place(m, stage)].item;
  }
  for (std::size_t m = 0; m < members_.size(); ++m) advance(number, m, stage, now);
}

// The flows of a collective between the members.
void ContendedRound::flows_between(const Run& run, std::size_t stage, std::int32_t op) {
  const CollectiveSpec& spec = *specs_[static_cast<std::size_t>(op)];
  const std::size_t members = members_.size();
  if (spec.per_node > 0) {
    const Feature feature = program_.operators()[static_cast<std::size_t>(op)].feature;
    return rows_of(spec, run.members[0].place.at(feature), stage);
  }
  // A ring over all ranks of all members goes from member to member once; the rest of it is on
  // their own links.
  Part& part = only_part(spec.everyone ? Shape::kEveryone : Shape::kRing,
                         bytes_of(run, 0, op, members * (spec.everyone ? tp_ : 1)));
  for (std::size_t m = 0; m < members; ++m) {
    const std::size_t next = (m + 1) % members;
    for (std::size_t rank = 0; rank < tp_ && !spec.everyone; ++rank)
      part.flows.push_back({device(m, stage, rank), device(next, stage, rank)});
    if (spec.everyone) part.flows.push_back({device(m, stage, tp_ - 1), device(next, stage, 0)});
  }
}

// What leaves a device goes to its neighbour in the node and to its like in the next node: that
// loads its two ports, and those of the others, as much as rows to all do.
void ContendedRound::rows_of(const CollectiveSpec& spec, std::int64_t units, std::size_t stage) {
  const std::size_t members = members_.size(), each = static_cast<std::size_t>(spec.per_node);
  num_parts_ = 0;
  for (const Shape shape : {Shape::kNear, Shape::kFar}) {
    const bool near = shape == Shape::kNear;
    if (near ? each == 1 : each == members) continue;
    Part& part = parts_[num_parts_++];
    part.shape = shape;
    part.bytes = ceil_div(units * (near ? spec.bytes_per_unit : spec.far_bytes_per_unit),
                          static_cast<std::int64_t>(members));
    part.flows.clear();
    for (std::size_t m = 0; m < members; ++m) {
      const std::size_t next = near ? m / each * each + (m + 1) % each : (m + each) % members;
      for (std::size_t rank = 0; rank < tp_; ++rank)
        part.flows.push_back({device(m, stage, rank), device(next, stage, rank)});
    }
  }
}

// What each of a ring's ranks sends; of an exchange of rows, what leaves each rank, in all one
// neighbour's flow: that loads the ranks' ports as much as flows to all others do.
std::int64_t ContendedRound::bytes_of(const Run& run, std::size_t member, std::int32_t op,
                                      std::size_t ranks) const {
  const auto index = static_cast<std::size_t>(op);
  const auto count = static_cast<std::int64_t>(ranks);
  const std::int64_t units = run.members[member].place.at(program_.operators()[index].feature);
  const std::int64_t chunk = ceil_div(units * specs_[index]->bytes_per_unit, count);
  if (specs_[index]->kind == model::CollectiveKind::kAllToAll) return chunk;
  return (count - 1) * chunk * (specs_[index]->kind == model::CollectiveKind::kAllReduce ? 2 : 1);
}

// A collective among the devices of a member's stage; false when it has been passed.
bool ContendedRound::inside(std::int64_t number, std::size_t member, std::size_t stage, Ps now) {
  Run& run = run_of(number);
  Cursor& cursor = run.cursors[place(member, stage)];
  const Item& item = stages_[stage].items[cursor.item];
  const Ps ps = price(run, run.members[member], item);
  Part& part = only_part(Shape::kRing, bytes_of(run, member, item.ops[0], tp_));
  for (std::size_t rank = 0; rank < tp_; ++rank)
    part.flows.push_back({device(member, stage, rank), device(member, stage, (rank + 1) % tp_)});
  const Exchange own{number, static_cast<std::int32_t>(stage), static_cast<std::int32_t>(member), 0,
                     true};
  if (ps > 0 && exchange(own, ps, cursor.at, now)) return true;
  cursor.at += ps;
  return false;
}

void ContendedRound::landed(TransferId, std::uint64_t token, Ps now) {
  Exchange& open = exchanges_[token / 2];
  open.at = std::max(open.at, now + open.extra[token % 2]);
  if (--open.left > 0) return;
  const Exchange done = open;
  free_exchanges_.push_back(token / 2);
  const auto stage = static_cast<std::size_t>(done.stage);
  const Ps at = done.at;
  if (done.inside) {
    Cursor& cursor = run_of(done.run).cursors[place(static_cast<std::size_t>(done.member), stage)];
    cursor.at = at;
    ++cursor.item;
    return advance(done.run, static_cast<std::size_t>(done.member), stage, now);
  }
  if (done.member >= 0) {
    const auto member = static_cast<std::size_t>(done.member);
    Device& device = devices_[place(member, stage)];
    device.link_free = at;
    device.sending = false;
    ++device.next_sent;
    send_next(member, stage, now);
    return arrive(done.run, member, stage + 1, at, now);
  }
  Run& run = run_of(done.run);
  for (std::size_t m = 0; m < members_.size(); ++m) {
    run.cursors[place(m, stage)].at = at;
    ++run.cursors[place(m, stage)].item;
  }
  for (std::size_t m = 0; m < members_.size(); ++m) advance(done.run, m, stage, now);
}

// A member has done a stage; its devices may begin the next iteration's.
void ContendedRound::leave(std::int64_t number, std::size_t member, std::size_t stage, Ps now) {
  Device& device = devices_[place(member, stage)];
  const Ps at = run_of(number).cursors[place(member, stage)].at;
  ++device.next_run;
  device.free = at;
  if (stage + 1 == stages_.size()) {
    end_step(number, member, at, now);
  } else {
    device.to_send.push_back(at);
    send_next(member, stage, now);
  }
  try_begin(member, stage, now);
}

// Hidden states leave when the last ones have arrived, beside the next batch.
void ContendedRound::send_next(std::size_t member, std::size_t stage, Ps now) {
  Device& from = devices_[place(member, stage)];
  while (!from.sending && !from.to_send.empty()) {
    const Ps at = std::max(from.to_send.front(), from.link_free);
    from.to_send.pop_front();
    const std::int64_t number = from.next_sent;
    const std::int32_t op = stages_[stage].kv_transfer;
    const Operator& kv_transfer = program_.operators()[static_cast<std::size_t>(op)];
    const std::int64_t tokens = run_of(number).members[member].place.tokens;
    const Ps ps = kv_transfer.ps[static_cast<std::size_t>(tokens)];
    const CollectiveSpec* spec = specs_[static_cast<std::size_t>(op)];
    Part& part = only_part(Shape::kRing, spec == nullptr ? 0 : tokens * spec->bytes_per_unit);
    for (std::size_t rank = 0; rank < tp_ && spec != nullptr; ++rank)
      part.flows.push_back({device(member, stage, rank), device(member, stage + 1, rank)});
    const Exchange one{number, static_cast<std::int32_t>(stage), static_cast<std::int32_t>(member)};
    if (spec != nullptr && exchange(one, ps, at, now)) {
      from.sending = true;
      return;
    }
    from.link_free = at + ps;
    ++from.next_sent;
    arrive(number, member, stage + 1, at + ps, now);
  }
}

void ContendedRound::end_step(std::int64_t number, std::size_t member, Ps at, Ps now) {
  Run& run = run_of(number);
  const StepTimes times =
      step_times(run.costs[member], run.start[member], at, run.members[member].place.tokens);
  devices_[place(member, stages_.size() - 1)].free = times.end;
  if (++run.ended == members_.size()) {
    // Nothing refers to iterations that all have ended, and they end in order.
    while (!runs_.empty() && runs_.front().ended == members_.size()) {
      runs_.pop_front();
      ++first_run_;
    }
  }
  sink_->timed(member, times, now);
}

}  // namespace llmsim
