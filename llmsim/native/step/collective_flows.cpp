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
      rings_of_(program.operators().size()) {
  if (tp_ == 0 || links_.places.size() != at(tp_ * members * stages_))
    throw std::invalid_argument("every device of a domain on shared links needs a place");
  for (const CollectiveSpec& spec : links_.collectives) {
    specs_.at(at(spec.op)) = &spec;
    add_rings(spec);
  }
}

// Between the members one for all of them, else one of each.
void CollectiveFlows::add_rings(const CollectiveSpec& spec) {
  const Operator& op = program_.operators()[at(spec.op)];
  auto& of_member = rings_of_[at(spec.op)];
  of_member.assign(at(members_), {kNoRing, kNoRing});
  const bool together = op.feature == Feature::kGathered;
  for (const Rails& rails : links_.rails) {
    if (rails.op != spec.op) continue;
    of_member.at(at(rails.member)) = rings_on(rails);
    if (together) of_member.assign(at(members_), of_member.front());
  }
  if (together && of_member.front() == Rings{kNoRing, kNoRing}) {
    Rings& rings = of_member.front();
    if (spec.per_node == 0)
      rings[0] = ring(spec.everyone ? Shape::kEveryone : Shape::kMembers, spec, 0);
    if (spec.per_node > 1) rings[0] = ring(Shape::kNear, spec, 0);
    if (spec.per_node > 0 && spec.per_node < members_) rings[1] = ring(Shape::kFar, spec, 0);
    of_member.assign(at(members_), rings);
  }
  const bool sends = op.kind == NodeKind::kStageSend;
  for (std::int32_t m = 0; m < members_ && !together; ++m)
    if (of_member[at(m)] == Rings{kNoRing, kNoRing})
      of_member[at(m)][0] = ring(sends ? Shape::kSend : Shape::kInside, spec, m);
}

// Neighbours are as far as their links go: a server with one rank has none.
CollectiveFlows::Rings CollectiveFlows::rings_on(const Rails& rails) {
  Rings rings{kNoRing, kNoRing};
  const auto add = [&](std::size_t part, Shape shape, const std::vector<FlowEnds>& flows) {
    if (flows.empty()) return;
    rings[part] = add_ring(shape, flows);
    rings_.back().per_server = rails.per_server;
  };
  add(0, Shape::kRails, rails.between);
  add(1, Shape::kServers, rails.inside);
  return rings;
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
    case Shape::kRails:
    case Shape::kServers:
      throw std::logic_error("the flows of rails are given");
  }
  return flows;
}

bool CollectiveFlows::start(const StepNode& node, std::int64_t units, Ps ps, Ps begin, Ps now) {
  const CollectiveSpec& spec = *specs_[at(node.op)];
  const Rings& rings = rings_of_[at(node.op)][at(node.member)];
  Exchange exchange;
  std::array<std::int64_t, 2> bytes{-1, -1};
  for (std::size_t i = 0; i < rings.size(); ++i) {
    if (rings[i] == kNoRing) continue;
    Ring& ring = rings_[rings[i]];
    if (ring.shape == Shape::kInside && ps <= 0) continue;
    const Fit fitted = fit(ring, bytes_on(ring, spec, units), ps);
    bytes[i] = fitted.bytes;
    exchange.extra[i] = fitted.extra;
    exchange.left += fitted.bytes >= 0;
  }
  if (exchange.left == 0) return false;
  exchange.node = node;
  exchange.begin = begin;
  exchange.alone = ps;
  if (free_exchanges_.empty()) {
    free_exchanges_.push_back(exchanges_.size());
    exchanges_.emplace_back();
  }
  const std::size_t id = free_exchanges_.back();
  free_exchanges_.pop_back();
  exchanges_[id] = exchange;
  for (std::size_t i = 0; i < rings.size(); ++i)
    if (bytes[i] >= 0)
      network_.start_at(rings_[rings[i]].bundle, bytes[i], begin, now, *this, 2 * id + i,
                        Purpose::kCollective);
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
    case Shape::kRails:
      return ceil_div(bytes_of(spec, units, ranks_of(spec)), ring.per_server);
    case Shape::kServers: {
      const std::int64_t bytes = bytes_of(spec, units, ranks_of(spec));
      return bytes - bytes / ring.per_server;
    }
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

// From when all flows of a ring start until the last byte is there, nobody else moving.
Ps CollectiveFlows::alone(const Ring& ring, std::int64_t bytes) {
  if (!probe_) {
    probe_ = std::make_unique<SharedNetwork>(network_.config());
    for (Ring& each : rings_) each.probed = probe_->add_bundle(each.flows);
  }
  Alone owner;
  const Ps begin = probed_;
  probe_->start_at(ring.probed, bytes, begin, begin, owner, 0, Purpose::kOther);
  probe_->settle(begin);
  while (probe_->num_in_flight() > 0) {
    probed_ = probe_->next_event();
    probe_->advance(probed_);
    probe_->settle(probed_);
  }
  return owner.last - begin;
}

CollectiveFlows::Fit CollectiveFlows::fit(Ring& ring, std::int64_t bytes, Ps ps) {
  const std::pair<std::int64_t, Ps> key{bytes, ps};
  if (ring.last == key) return ring.last_fit;
  const auto [found, is_new] = ring.fits.try_emplace(key);
  if (is_new) found->second = find_fit(ring, bytes, ps);
  ring.last = key;
  return ring.last_fit = found->second;
}

// The most bytes, up to `bytes`, that every flow can carry so that all end within `ps`.
CollectiveFlows::Fit CollectiveFlows::find_fit(const Ring& ring, std::int64_t bytes, Ps ps) {
  crossed_.clear();
  std::int64_t most = bytes;
  for (const FlowEnds& flow : ring.flows) {
    const auto route = network_.route(flow.from, flow.to);
    crossed_.insert(crossed_.end(), route.begin(), route.end());
    most = std::min(most, network_.most_within(flow.from, flow.to, bytes, ps));
  }
  if (most < 0) return {-1, 0};
  std::sort(crossed_.begin(), crossed_.end());
  if (std::adjacent_find(crossed_.begin(), crossed_.end()) == crossed_.end()) {
    Ps longest = 0;
    for (const FlowEnds& flow : ring.flows)
      longest = std::max(longest, network_.alone(flow.from, flow.to, most));
    return {most, ps - longest};
  }
  // Its own flows share links: what fits is found by halving.
  std::int64_t least = -1;
  if (alone(ring, most) > ps) {
    while (most - least > 1) {
      const std::int64_t middle = least + (most - least) / 2;
      (alone(ring, middle) <= ps ? least : most) = middle;
    }
    most = least;
  }
  return most < 0 ? Fit{-1, 0} : Fit{most, ps - alone(ring, most)};
}

void CollectiveFlows::landed(TransferId, std::uint64_t token, Ps now) {
  Exchange& open = exchanges_[token / 2];
  open.at = std::max(open.at, now + open.extra[token % 2]);
  if (--open.left > 0) return;
  const Exchange done = open;
  free_exchanges_.push_back(token / 2);
  done_(done.node, {done.at - done.begin, done.alone}, done.at, now);
}

}  // namespace llmsim
