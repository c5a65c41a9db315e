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
      specs_(program.operators().size(), nullptr) {
  if (tp_ == 0 || links_.places.size() != at(tp_ * members * stages_))
    throw std::invalid_argument("every device of a domain on shared links needs a place");
  for (const CollectiveSpec& spec : links_.collectives) specs_.at(at(spec.op)) = &spec;
}

bool CollectiveFlows::start(const StepNode& node, std::int64_t units, Ps ps, Ps at, Ps now) {
  const Operator& op = program_.operators()[llmsim::at(node.op)];
  const CollectiveSpec& spec = *specs_[llmsim::at(node.op)];
  if (op.feature == Feature::kGathered) {
    flows_between(spec, units, op.stage);
    return begin({node, op.stage}, ps, at, now);
  }
  const bool sends = op.kind == NodeKind::kStageSend;
  if (sends) {
    Part& part = only_part(Shape::kRing, units * spec.bytes_per_unit);
    for (std::int32_t rank = 0; rank < tp_; ++rank)
      part.flows.push_back(
          {device(node.member, op.stage, rank), device(node.member, op.stage + 1, rank)});
  } else {
    if (ps <= 0) return false;
    Part& part = only_part(Shape::kRing, bytes_of(spec, units, tp_));
    for (std::int32_t rank = 0; rank < tp_; ++rank)
      part.flows.push_back(
          {device(node.member, op.stage, rank), device(node.member, op.stage, (rank + 1) % tp_)});
  }
  return begin({node, op.stage, node.member, 0, !sends}, ps, at, now);
}

// The flows of a collective between the members.
void CollectiveFlows::flows_between(const CollectiveSpec& spec, std::int64_t units,
                                    std::int32_t stage) {
  if (spec.per_node > 0) return rows_of(spec, units, stage);
  // A ring over all ranks of all members goes from member to member once; the rest of it is on
  // their own links.
  Part& part = only_part(spec.everyone ? Shape::kEveryone : Shape::kRing,
                         bytes_of(spec, units, members_ * (spec.everyone ? tp_ : 1)));
  for (std::int32_t m = 0; m < members_; ++m) {
    const std::int32_t next = (m + 1) % members_;
    for (std::int32_t rank = 0; rank < tp_ && !spec.everyone; ++rank)
      part.flows.push_back({device(m, stage, rank), device(next, stage, rank)});
    if (spec.everyone) part.flows.push_back({device(m, stage, tp_ - 1), device(next, stage, 0)});
  }
}

// What leaves a device goes to its neighbour in the node and to its like in the next node: that
// loads its two ports, and those of the others, as much as rows to all do.
void CollectiveFlows::rows_of(const CollectiveSpec& spec, std::int64_t units, std::int32_t stage) {
  const std::int32_t each = spec.per_node;
  num_parts_ = 0;
  for (const Shape shape : {Shape::kNear, Shape::kFar}) {
    const bool near = shape == Shape::kNear;
    if (near ? each == 1 : each == members_) continue;
    const std::int64_t per_unit = near ? spec.bytes_per_unit : spec.far_bytes_per_unit;
    Part& part = parts_[num_parts_++];
    part.shape = shape;
    part.bytes = ceil_div(units * per_unit, members_);
    part.flows.clear();
    for (std::int32_t m = 0; m < members_; ++m) {
      const std::int32_t neighbour = m / each * each + (m + 1) % each;
      const std::int32_t next = near ? neighbour : (m + each) % members_;
      for (std::int32_t rank = 0; rank < tp_; ++rank)
        part.flows.push_back({device(m, stage, rank), device(next, stage, rank)});
    }
  }
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

// From when all of them start until the last byte is there, nobody else moving.
Ps CollectiveFlows::alone(std::span<const Flow> flows, std::int64_t bytes) {
  if (!probe_) probe_ = std::make_unique<SharedNetwork>(network_.config());
  Alone owner;
  const Ps begin = probed_;
  for (const Flow& flow : flows)
    probe_->transfer(flow.from, flow.to, bytes, begin, owner, 0, Purpose::kOther);
  probe_->settle(begin);
  while (probe_->num_in_flight() > 0) {
    probed_ = probe_->next_event();
    probe_->advance(probed_);
    probe_->settle(probed_);
  }
  return owner.last - begin;
}

// The most bytes, up to `bytes`, that every flow can carry so that all end within `ps`.
const CollectiveFlows::Fit& CollectiveFlows::fit(const Exchange& exchange, const Part& part,
                                                 Ps ps) {
  const std::int64_t bytes = part.bytes;
  const std::vector<Flow>& flows = part.flows;
  const auto [found, is_new] =
      fits_.try_emplace({exchange.stage, exchange.member, exchange.inside, part.shape, bytes, ps});
  Fit& fit = found->second;
  if (!is_new) return fit;
  crossed_.clear();
  std::int64_t most = bytes;
  for (const Flow& flow : flows) {
    const auto route = network_.route(flow.from, flow.to);
    crossed_.insert(crossed_.end(), route.begin(), route.end());
    most = std::min(most, network_.most_within(flow.from, flow.to, bytes, ps));
  }
  fit = {-1, 0};
  if (most < 0) return fit;
  std::sort(crossed_.begin(), crossed_.end());
  if (std::adjacent_find(crossed_.begin(), crossed_.end()) == crossed_.end()) {
    Ps longest = 0;
    for (const Flow& flow : flows)
      longest = std::max(longest, network_.alone(flow.from, flow.to, most));
    return fit = {most, ps - longest};
  }
  // Its own flows share links: what fits is found by halving.
  std::int64_t least = -1;
  if (alone(flows, most) > ps) {
    while (most - least > 1) {
      const std::int64_t middle = least + (most - least) / 2;
      (alone(flows, middle) <= ps ? least : most) = middle;
    }
    most = least;
  }
  return fit = most < 0 ? Fit{-1, 0} : Fit{most, ps - alone(flows, most)};
}

CollectiveFlows::Part& CollectiveFlows::only_part(Shape shape, std::int64_t bytes) {
  num_parts_ = 1;
  parts_[0].shape = shape;
  parts_[0].bytes = bytes;
  parts_[0].flows.clear();
  return parts_[0];
}

bool CollectiveFlows::begin(Exchange exchange, Ps ps, Ps at, Ps now) {
  std::array<std::int64_t, 2> bytes{-1, -1};
  for (std::size_t i = 0; i < num_parts_; ++i) {
    const Fit& fitted = fit(exchange, parts_[i], ps);
    bytes[i] = fitted.bytes;
    exchange.extra[i] = fitted.extra;
    if (fitted.bytes >= 0) exchange.left += static_cast<std::int32_t>(parts_[i].flows.size());
  }
  if (exchange.left == 0) return false;
  exchange.begin = at;
  exchange.alone = ps;
  std::size_t id = exchanges_.size();
  if (free_exchanges_.empty()) {
    exchanges_.push_back(exchange);
  } else {
    id = free_exchanges_.back();
    free_exchanges_.pop_back();
    exchanges_[id] = exchange;
  }
  for (std::size_t i = 0; i < num_parts_; ++i)
    for (const Flow& flow : parts_[i].flows)
      if (bytes[i] >= 0)
        network_.transfer_at(flow.from, flow.to, bytes[i], at, now, *this, 2 * id + i,
                             Purpose::kCollective);
  return true;
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
