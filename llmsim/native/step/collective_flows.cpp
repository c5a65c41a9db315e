#include "step/collective_flows.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "model/base/arithmetic.h"

namespace llmsim {

namespace model = astra_sim::model;

CollectiveFlows::CollectiveFlows(const Program& program, std::int32_t members, ContendedLinks links,
                                 SharedNetwork& network, Done done)
    : program_(program),
      members_(members),
      stages_(program.num_stages()),
      tp_(static_cast<std::int32_t>(links.places.size()) / (members * stages_)),
      links_(std::move(links)),
      network_(network),
      done_(std::move(done)),
      specs_(program.operators().size(), nullptr),
      moves_of_(program.operators().size()) {
  if (tp_ == 0 || links_.places.size() != at(tp_ * members * stages_))
    throw std::invalid_argument("every device of a domain on shared links needs a place");
  for (const CollectiveSpec& spec : links_.collectives) {
    specs_.at(at(spec.op)) = &spec;
    add_moves(spec);
  }
}

// Between the members the same for all of them, else of each.
void CollectiveFlows::add_moves(const CollectiveSpec& spec) {
  const Operator& op = program_.operators()[at(spec.op)];
  auto& of_member = moves_of_[at(spec.op)];
  of_member.resize(at(members_));
  for (const PlannedCollective& planned : links_.planned)
    if (planned.op == spec.op) of_member.at(at(planned.member)).push_back(moves_by(planned));
  if (op.feature == Feature::kGathered) {
    if (of_member.front().empty()) {
      std::vector<std::size_t> rings;
      if (spec.per_node == 0)
        rings.push_back(ring(spec.everyone ? Shape::kEveryone : Shape::kMembers, spec, 0));
      if (spec.per_node > 1) rings.push_back(ring(Shape::kNear, spec, 0));
      if (spec.per_node > 0 && spec.per_node < members_)
        rings.push_back(ring(Shape::kFar, spec, 0));
      of_member.front().push_back(moves_of(std::move(rings)));
    }
    of_member.assign(at(members_), std::vector(of_member.front()));
    return;
  }
  const bool sends = op.kind == NodeKind::kStageSend;
  for (std::int32_t m = 0; m < members_; ++m)
    if (of_member[at(m)].empty())
      of_member[at(m)] = {moves_of({ring(sends ? Shape::kSend : Shape::kInside, spec, m)})};
}

std::size_t CollectiveFlows::moves_by(const PlannedCollective& planned) {
  std::vector<std::size_t> rings;
  for (const PlanPart& part : planned.parts) {
    rings.push_back(add_ring(Shape::kPlanned, part.flows));
    rings_.back().share = part.share;
    rings_.back().of = part.of;
  }
  const std::size_t moves = moves_of(std::move(rings));
  moves_[moves].from_units = planned.from_units;
  return moves;
}

std::size_t CollectiveFlows::moves_of(std::vector<std::size_t> rings) {
  if (rings.size() > kMostRings)
    throw std::invalid_argument("a collective of more than 64 kinds of flows");
  Moves& moves = moves_.emplace_back();
  std::vector<NetworkLinkId> all;
  for (const std::size_t ring : rings) {
    auto links = crossed_by({&ring, 1});
    links.erase(std::unique(links.begin(), links.end()), links.end());
    all.insert(all.end(), links.begin(), links.end());
  }
  std::sort(all.begin(), all.end());
  moves.apart = std::adjacent_find(all.begin(), all.end()) == all.end();
  moves.rings = std::move(rings);
  return moves_.size() - 1;
}

// Operators of the same flows share them: a stage runs one after the other.
std::size_t CollectiveFlows::ring(Shape shape, const CollectiveSpec& spec, std::int32_t member) {
  const std::int32_t stage = program_.operators()[at(spec.op)].stage;
  const auto [found, is_new] =
      ring_of_.try_emplace({shape, stage, member, spec.per_node}, rings_.size());
  if (is_new) add_ring(shape, flows_of(shape, stage, member, spec.per_node));
  return found->second;
}

std::size_t CollectiveFlows::add_ring(Shape shape, std::vector<FlowEnds> flows) {
  Ring& ring = rings_.emplace_back();
  ring.shape = shape;
  ring.bundle = network_.add_bundle(flows);
  ring.flows = std::move(flows);
  return rings_.size() - 1;
}

// A ring over all ranks of all members goes from member to member once; the rest of it is on their
// own links. Rows that leave a device go to its neighbour in the node and to its like in the next
// node: that loads its two ports, and those of the others, as much as rows to all do.
std::vector<FlowEnds> CollectiveFlows::flows_of(Shape shape, std::int32_t stage,
                                                std::int32_t member, std::int32_t per_node) const {
  std::vector<FlowEnds> flows;
  const auto join = [&](std::int32_t m, std::int32_t next) {
    for (std::int32_t rank = 0; rank < tp_; ++rank)
      flows.push_back({device(m, stage, rank), device(next, stage, rank)});
  };
  switch (shape) {
    case Shape::kInside:
      for (std::int32_t rank = 0; rank < tp_; ++rank)
        flows.push_back({device(member, stage, rank), device(member, stage, (rank + 1) % tp_)});
      break;
    case Shape::kSend:
      for (std::int32_t rank = 0; rank < tp_; ++rank)
        flows.push_back({device(member, stage, rank), device(member, stage + 1, rank)});
      break;
    case Shape::kMembers:
      for (std::int32_t m = 0; m < members_; ++m) join(m, (m + 1) % members_);
      break;
    case Shape::kEveryone:
      for (std::int32_t m = 0; m < members_; ++m)
        flows.push_back({device(m, stage, tp_ - 1), device((m + 1) % members_, stage, 0)});
      break;
    case Shape::kNear:
      for (std::int32_t m = 0; m < members_; ++m)
        join(m, m / per_node * per_node + (m + 1) % per_node);
      break;
    case Shape::kFar:
      for (std::int32_t m = 0; m < members_; ++m) join(m, (m + per_node) % members_);
      break;
    case Shape::kPlanned:
      throw std::logic_error("the flows of a plan are given");
  }
  return flows;
}

// The last of those that begin at so many units or fewer.
CollectiveFlows::Moves& CollectiveFlows::moves_at(const StepNode& node, std::int64_t units) {
  const auto& by_units = moves_of_[at(node.op)][at(node.member)];
  std::size_t found = 0;
  while (found + 1 < by_units.size() && moves_[by_units[found + 1]].from_units <= units) ++found;
  return moves_[by_units[found]];
}

bool CollectiveFlows::start(const StepNode& node, std::int64_t units, Ps ps, Ps begin, Ps now) {
  const CollectiveSpec& spec = *specs_[at(node.op)];
  Moves& moves = moves_at(node, units);
  const std::vector<Fit>& fitted = fit(moves, spec, units, ps);
  const auto moving = [](const Fit& each) { return each.bytes >= 0; };
  const auto left = std::count_if(fitted.begin(), fitted.end(), moving);
  if (left == 0) return false;
  if (free_exchanges_.empty()) {
    free_exchanges_.push_back(exchanges_.size());
    exchanges_.emplace_back();
  }
  const std::size_t id = free_exchanges_.back();
  free_exchanges_.pop_back();
  exchanges_[id] = {node, static_cast<std::size_t>(left), &fitted, begin, ps, 0};
  for (std::size_t i = 0; i < fitted.size(); ++i)
    if (moving(fitted[i]))
      network_.start_at(rings_[moves.rings[i]].bundle, fitted[i].bytes, begin, now, *this,
                        kMostRings * id + i, Purpose::kCollective);
  return true;
}

std::int64_t CollectiveFlows::bytes_on(const Ring& ring, const CollectiveSpec& spec,
                                       std::int64_t units) {
  switch (ring.shape) {
    case Shape::kInside:
    case Shape::kMembers:
    case Shape::kEveryone:
      return bytes_of(spec, units, ranks_of(spec));
    case Shape::kSend:
      return units * spec.bytes_per_unit;
    case Shape::kNear:
      return ceil_div(units * spec.bytes_per_unit, members_);
    case Shape::kFar:
      return ceil_div(units * spec.far_bytes_per_unit, members_);
    case Shape::kPlanned:
      return static_cast<std::int64_t>(
          (static_cast<int128>(units) * spec.bytes_per_unit * ring.share + ring.of - 1) / ring.of);
  }
  throw std::logic_error("an unknown shape of flows");
}

std::int32_t CollectiveFlows::ranks_of(const CollectiveSpec& spec) const {
  if (program_.operators()[at(spec.op)].feature != Feature::kGathered) return tp_;
  return spec.everyone ? members_ * tp_ : members_;
}

// What the rank that sends most sends; of an exchange of rows, what leaves each rank, in all one
// neighbour's flow: that loads the ranks' ports as much as flows to all others do.
std::int64_t CollectiveFlows::bytes_of(const CollectiveSpec& spec, std::int64_t units,
                                       std::int32_t ranks) {
  using Kind = model::CollectiveKind;
  const std::int64_t bytes = units * spec.bytes_per_unit;
  if (model::entry_of(spec.algorithm.algorithm).on_switch) return bytes;  // up, and as much down
  if (spec.algorithm != model::AlgorithmChoice{}) return schedule_of(spec, ranks).most_sent(bytes);
  const std::int64_t chunk = ceil_div(bytes, ranks);
  if (spec.kind == Kind::kAllToAll) return chunk;
  return (ranks - 1) * chunk * (spec.kind == Kind::kAllReduce ? 2 : 1);
}

// The messages of a collective among so many ranks, made when they are first asked for.
const model::Schedule& CollectiveFlows::schedule_of(const CollectiveSpec& spec,
                                                    std::int32_t ranks) {
  auto& schedule = schedules_[{spec.op, ranks}];
  if (schedule == nullptr) {
    std::vector<model::DeviceId> group(at(ranks));
    std::iota(group.begin(), group.end(), 0);
    const model::CollectiveShape shape = model::shape_of(spec.algorithm, nullptr);
    schedule = model::Schedule::make(
        {spec.kind, spec.algorithm.algorithm, 0, nullptr, shape, nullptr}, group);
  }
  return *schedule;
}

// The links of all their flows, ascending, as often as flows cross them.
std::vector<NetworkLinkId> CollectiveFlows::crossed_by(std::span<const std::size_t> rings) {
  std::vector<NetworkLinkId> crossed;
  for (const std::size_t ring : rings) {
    for (const FlowEnds& flow : rings_[ring].flows) {
      const auto route = network_.route(flow.from, flow.to);
      crossed.insert(crossed.end(), route.begin(), route.end());
    }
  }
  std::sort(crossed.begin(), crossed.end());
  return crossed;
}

// From when all flows start until the last byte of each ring is there, nobody else moving; rings of
// -1 bytes stay.
std::vector<Ps> CollectiveFlows::alone(std::span<const std::size_t> rings,
                                       std::span<const std::int64_t> bytes) {
  if (!probe_) {
    probe_ = std::make_unique<SharedNetwork>(network_.config());
    for (Ring& each : rings_) each.probed = probe_->add_bundle(each.flows);
  }
  const Ps begin = probed_;
  Alone owner;
  owner.ends.assign(rings.size(), begin);
  for (std::size_t i = 0; i < rings.size(); ++i)
    if (bytes[i] >= 0)
      probe_->start_at(rings_[rings[i]].probed, bytes[i], begin, begin, owner, i, Purpose::kOther);
  probe_->settle(begin);
  while (probe_->num_in_flight() > 0) {
    probed_ = probe_->next_event();
    probe_->advance(probed_);
    probe_->settle(probed_);
  }
  for (Ps& end : owner.ends) end -= begin;
  return owner.ends;
}

const std::vector<CollectiveFlows::Fit>& CollectiveFlows::fit(Moves& moves,
                                                              const CollectiveSpec& spec,
                                                              std::int64_t units, Ps ps) {
  const std::pair<std::int64_t, Ps> key{units, ps};
  if (moves.last == key) return *moves.last_fit;
  const auto [found, is_new] = moves.fits.try_emplace(key);
  moves.last = key;
  moves.last_fit = &found->second;
  if (!is_new) return found->second;
  std::vector<Fit>& fits = found->second;
  fits.assign(moves.rings.size(), {-1, 0});
  std::vector<std::int64_t> bytes;
  for (const std::size_t each : moves.rings) {
    const Ring& ring = rings_[each];
    const bool inside = ring.shape == Shape::kInside || ring.shape == Shape::kPlanned;
    bytes.push_back(inside && ps <= 0 ? -1 : bytes_on(ring, spec, units));
  }
  if (!moves.apart) {
    fit_together(moves.rings, std::move(bytes), ps, fits);
    return fits;
  }
  for (std::size_t i = 0; i < fits.size(); ++i)
    fit_together({&moves.rings[i], 1}, {bytes[i]}, ps, {&fits[i], 1});
  return fits;
}

// The most bytes that flows can carry so that all end within `ps`: each ring the same part of its
// own.
void CollectiveFlows::fit_together(std::span<const std::size_t> rings,
                                   std::vector<std::int64_t> bytes, Ps ps, std::span<Fit> fits) {
  for (std::size_t i = 0; i < rings.size(); ++i)
    for (const FlowEnds& flow : rings_[rings[i]].flows)
      if (bytes[i] >= 0) bytes[i] = network_.most_within(flow.from, flow.to, bytes[i], ps);
  const std::int64_t most = *std::max_element(bytes.begin(), bytes.end());
  if (most < 0) return;
  const auto crossed = crossed_by(rings);
  if (std::adjacent_find(crossed.begin(), crossed.end()) == crossed.end()) {
    for (std::size_t i = 0; i < rings.size(); ++i) {
      if (bytes[i] < 0) continue;
      Ps longest = 0;
      for (const FlowEnds& flow : rings_[rings[i]].flows)
        longest = std::max(longest, network_.alone(flow.from, flow.to, bytes[i]));
      fits[i] = {bytes[i], ps - longest};
    }
    return;
  }
  // Flows share links: what fits is found by halving.
  const auto part = [&](std::int64_t carried) {
    std::vector<std::int64_t> parts;
    for (const std::int64_t each : bytes) {
      const int128 whole = static_cast<int128>(each) * carried;
      parts.push_back(each < 0 || most == 0 ? each : static_cast<std::int64_t>(whole / most));
    }
    return parts;
  };
  const auto fit_in = [&](std::int64_t carried) {
    const std::vector<Ps> ends = alone(rings, part(carried));
    return *std::max_element(ends.begin(), ends.end()) <= ps;
  };
  std::int64_t least = -1, found = most;
  if (!fit_in(most)) {
    while (found - least > 1) {
      const std::int64_t middle = least + (found - least) / 2;
      (fit_in(middle) ? least : found) = middle;
    }
    found = least;
  }
  if (found < 0) return;
  const auto parts = part(found);
  const auto ends = alone(rings, parts);
  for (std::size_t i = 0; i < rings.size(); ++i) fits[i] = {parts[i], ps - ends[i]};
}

void CollectiveFlows::landed(TransferId, std::uint64_t token, Ps now) { left(token, now, now); }

// What follows may be planned before the last byte is there.
bool CollectiveFlows::left(std::uint64_t token, Ps lands, Ps now) {
  const std::size_t id = token / kMostRings;
  Exchange& open = exchanges_[id];
  open.at = std::max(open.at, lands + (*open.fitted)[token % kMostRings].extra);
  if (--open.left > 0) return true;
  const Exchange done = open;
  free_exchanges_.push_back(id);
  done_(done.node, {done.at - done.begin, done.alone}, done.at, now);
  return true;
}

}  // namespace llmsim
