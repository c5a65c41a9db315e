#include "step/executors/expanded.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "model/graph/graph_builder.h"

namespace llmsim {

namespace model = astra_sim::model;

namespace {

// Without links of its own, a unit is a device.
ExpandedConfig config_of(const ExpandedConfig* config, std::int32_t units) {
  if (config != nullptr) return *config;
  const auto devices = static_cast<std::uint32_t>(units);
  ExpandedConfig bare;
  bare.topology = model::Topology::single(model::TopologyKind::kFullyConnected, devices, 1, 0);
  return bare;
}

std::size_t num_ranks(const ExpandedConfig& config) {
  return config.devices.empty() ? config.topology->num_devices() : config.devices.size();
}

}  // namespace

// Makes the engine's nodes of a step. They are on no stream of the engine: each waits for the node
// before it on the stream of its rank.
class ExpandedTiming::Layout {
 public:
  Layout(const ExpandedTiming& owner, const StepGraph& graph, const Absent& absent, Graph& made)
      : owner_(owner),
        program_(*owner.program_),
        has_links_(owner.has_links_),
        config_(owner.config_),
        step_(graph),
        absent_(absent),
        made_(made),
        ranks_(static_cast<std::uint32_t>(num_ranks(config_)) /
               static_cast<std::uint32_t>(graph.units)),
        builder_(config_.topology->num_devices()),
        first_(graph.nodes.size(), 0),
        passed_(graph.nodes.size()),
        front_(at(graph.units * kNumDeviceStreams)),
        specs_(program_.operators().size(), nullptr),
        plans_(program_.operators().size()),
        plan_of_(program_.operators().size()) {
    if (!owner.has_links_) return;
    for (const CollectiveSpec& spec : config_.collectives) {
      specs_.at(at(spec.op)) = &spec;
      add_plans(spec);
    }
  }

  void build() {
    hold();
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(step_.nodes.size()); ++i) {
      if (config_.poll && i % kNodesPerPoll == 0) config_.poll();
      add(i);
    }
    keep_ends();
    made_.graph = builder_.build();
    made_.amounts.resize(made_.origin.size());
  }

 private:
  static constexpr std::int32_t kNodesPerPoll = 4096;

  const Operator* op_of(const StepNode& node) const {
    const bool asked = has_links_ && node.role == NodeRole::kOperator;
    return asked ? &program_.operators()[at(node.op)] : nullptr;
  }
  model::DeviceId device(std::int32_t unit, std::uint32_t rank) const {
    const std::uint32_t number = rank + ranks_ * static_cast<std::uint32_t>(unit);
    return config_.devices.empty() ? number : config_.devices[number];
  }
  std::uint64_t compute(model::DeviceId device, const Nodes& parents, Origin origin) {
    builder_.compute(device, 0, parents, model::Stream::kNone);
    return append(origin);
  }
  std::uint64_t append(Origin origin) {
    made_.origin.push_back(origin);
    return next_++;
  }

  // Nodes that last until a stream is free, a slot is filled, or the step is given to its devices
  // or its host.
  void hold() {
    using Kind = Origin::Kind;
    for (std::size_t i = 0; i < step_.nodes.size(); ++i) {
      const NodeRole role = step_.nodes[i].role;
      const bool held = role == NodeRole::kBegin || role == NodeRole::kPrepare;
      if (held && !given_.contains(role))
        given_[role] = compute(0, {}, {Kind::kGiven, static_cast<std::int32_t>(i)});
    }
    std::vector<bool> used(front_.size(), false);
    for (const StepNode& node : step_.nodes)
      if (node.stream != kNoStream) used[at(node.stream)] = true;
    for (std::int32_t stream = 0; stream < static_cast<std::int32_t>(front_.size()); ++stream) {
      if (!used[at(stream)]) continue;
      const std::uint64_t held =
          compute(device(stream / kNumDeviceStreams, 0), {}, {Kind::kStream, stream});
      front_[at(stream)].assign(ranks_, {held});
    }
    for (std::int32_t slot = 0; slot < step_.slots; ++slot)
      slots_.push_back(compute(0, {}, {Kind::kSlot, slot}));
  }

  // The first of the ranks that rank t of member m does this collective with: what its group is
  // known by.
  std::uint32_t leader(const CollectiveSpec& spec, bool together, std::uint32_t m,
                       std::uint32_t t) const {
    if (spec.everyone) return 0;
    if (together) return t;
    const auto ranks = spec.ranks > 0 ? static_cast<std::uint32_t>(spec.ranks) : ranks_;
    const auto stride = static_cast<std::uint32_t>(spec.stride);
    const std::uint32_t block = ranks * stride;
    return m * ranks_ + t / block * block + t % stride;
  }

  // Each group has a plan: operators between the members one for each rank of a stage, those inside
  // a stage one for each set of its ranks that work together.
  void add_plans(const CollectiveSpec& spec) {
    const std::size_t index = at(spec.op);
    const Operator& op = program_.operators()[index];
    if (op.kind == NodeKind::kStageSend) return;
    if (op.kind != NodeKind::kCollective)
      throw std::invalid_argument(op.name + " is not a collective");
    // A measured collective is keyed by its own duration: the table is the identity.
    const bool measured = spec.bytes_per_unit == 0;
    std::shared_ptr<const model::MeasuredTable> table;
    if (measured)
      table = std::make_shared<const model::MeasuredTable>(std::vector<model::Bytes>{0, 1},
                                                           std::vector<model::Ps>{0, 1});
    const auto algorithm = measured ? model::Algorithm::kMeasured : spec.algorithm.algorithm;
    model::CollectiveShape shape;
    if (!measured) shape = model::shape_of(spec.algorithm, config_.topology);
    const auto members = static_cast<std::uint32_t>(step_.members.size());
    const bool together = op.feature == Feature::kGathered;
    std::map<std::uint32_t, std::vector<model::DeviceId>> groups;
    for (std::uint32_t m = 0; m < members; ++m)
      for (std::uint32_t t = 0; t < ranks_; ++t) {
        const std::int32_t unit = static_cast<std::int32_t>(m) * step_.stages + op.stage;
        groups[leader(spec, together, m, t)].push_back(device(unit, t));
      }
    std::map<std::uint32_t, std::uint32_t> number;
    for (const auto& [first, devices] : groups) {
      number[first] = static_cast<std::uint32_t>(plans_[index].size());
      plans_[index].push_back(
          builder_.add_plan({spec.kind, algorithm, builder_.add_group(devices), table, shape}));
    }
    for (std::uint32_t m = 0; m < members; ++m)
      for (std::uint32_t t = 0; t < ranks_; ++t)
        plan_of_[index].push_back(number[leader(spec, together, m, t)]);
  }

  bool is_collective(const StepNode& node) const {
    const Operator* op = op_of(node);
    return op != nullptr && op->kind == NodeKind::kCollective && specs_[at(node.op)] != nullptr;
  }

  // The engine's nodes that stand for a node's end, as rank t sees it. Given their devices, ranks
  // go on together after a collective or a hand-over.
  Nodes ends_of(std::int32_t index, std::uint32_t t) const {
    if (!passed_[at(index)].empty()) return passed_[at(index)][t];
    const StepNode& node = step_.nodes[at(index)];
    const Operator* op = op_of(node);
    const bool sends = op != nullptr && op->kind == NodeKind::kStageSend;
    if (config_.devices.empty() || !(sends || is_collective(node))) return {first_[at(index)] + t};
    const bool together = !sends && op->feature == Feature::kGathered;
    const auto members = static_cast<std::int32_t>(step_.members.size());
    const std::int32_t first = together ? index - node.member : index;
    Nodes all(ranks_ * static_cast<std::size_t>(together ? members : 1));
    std::iota(all.begin(), all.end(), first_[at(first)]);
    return all;
  }

  // What rank t's part of a node waits for.
  Nodes parents_of(std::int32_t index, std::uint32_t t) const {
    const StepNode& node = step_.nodes[at(index)];
    Nodes parents;
    if (node.stream != kNoStream) parents = front_[at(node.stream)][t];
    if (const auto given = given_.find(node.role); given != given_.end())
      parents.push_back(given->second);
    for (const Wait& wait : step_.waits_of(node)) {
      if (wait.from == WaitFor::kStepBefore) {
        parents.push_back(slots_[at(wait.index)]);
        continue;
      }
      const Nodes before = ends_of(wait.index, t);
      parents.insert(parents.end(), before.begin(), before.end());
    }
    std::ranges::sort(parents);
    parents.erase(std::unique(parents.begin(), parents.end()), parents.end());
    return parents;
  }

  void add(std::int32_t index) {
    const StepNode& node = step_.nodes[at(index)];
    const bool passes = node.role == NodeRole::kMeet || absent_[at(node.price)];
    if (passes) {
      for (std::uint32_t t = 0; t < ranks_; ++t) passed_[at(index)].push_back(parents_of(index, t));
    } else {
      first_[at(index)] = next_;
      for (std::uint32_t t = 0; t < ranks_; ++t) add_rank(index, t);
    }
    if (is_collective(node) && !passes) end_call(node);
    if (node.stream == kNoStream) return;
    last_[node.stream] = index;
    // A collective of all members is complete with the last member's node.
    const bool together = is_collective(node) && op_of(node)->feature == Feature::kGathered;
    const auto members = static_cast<std::int32_t>(step_.members.size());
    if (together && node.member + 1 < members) return;
    for (std::int32_t i = together ? index - members + 1 : index; i <= index; ++i)
      for (std::uint32_t t = 0; t < ranks_; ++t)
        front_[at(step_.nodes[at(i)].stream)][t] = ends_of(i, t);
  }

  void add_rank(std::int32_t index, std::uint32_t t) {
    const StepNode& node = step_.nodes[at(index)];
    const std::int32_t unit = step_.unit_of(node);
    const Nodes parents = parents_of(index, t);
    Origin origin{Origin::Kind::kNode, index};
    const Operator* op = op_of(node);
    const CollectiveSpec* spec = op == nullptr ? nullptr : specs_[at(node.op)];
    if (spec == nullptr) {
      compute(device(unit, t), parents, origin);
      return;
    }
    origin.bytes_per_unit = spec->bytes_per_unit;
    if (op->kind == NodeKind::kStageSend) {
      builder_.transfer(device(unit, t), device(unit + 1, t), 1, parents, model::Stream::kNone);
    } else {
      const std::uint32_t which =
          plan_of_[at(node.op)][static_cast<std::uint32_t>(node.member) * ranks_ + t];
      builder_.collective(device(unit, t), plans_[at(node.op)][which], calls_ + which, 1, parents,
                          model::Stream::kNone);
    }
    append(origin);
  }

  // Nodes of a collective between the members follow each other and are one call.
  void end_call(const StepNode& node) {
    const auto members = static_cast<std::uint32_t>(step_.members.size());
    const bool together = op_of(node)->feature == Feature::kGathered;
    if (!together || static_cast<std::uint32_t>(node.member) + 1 == members)
      calls_ += ranks_ * members;
  }

  void keep_ends() {
    const auto all = [&](std::int32_t index) {
      Nodes ends;
      for (std::uint32_t t = 0; t < ranks_; ++t) {
        const Nodes one = ends_of(index, t);
        ends.insert(ends.end(), one.begin(), one.end());
      }
      return ends;
    };
    made_.stream_ends.resize(front_.size());
    for (const auto& [stream, index] : last_) made_.stream_ends[at(stream)] = all(index);
    for (const StepGraph::Member& member : step_.members) {
      made_.ends[member.begin] = all(member.begin);
      made_.ends[member.end] = all(member.end);
    }
    for (const auto& [node, slot] : step_.kept) made_.ends[node] = all(node);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(step_.nodes.size()); ++i) {
      const StepNode& node = step_.nodes[at(i)];
      const bool asked = follows_others(node) || runs_beside_steps(node) || owner_.moves(node);
      if (asked) made_.ends[i] = all(i);
    }
    for (const auto& layers : caching_nodes(program_, step_))
      for (const auto& [layer, nodes] : layers)
        for (const std::int32_t node : nodes) made_.ends[node] = all(node);
  }

  const ExpandedTiming& owner_;
  const Program& program_;
  const bool has_links_;
  const ExpandedConfig& config_;
  const StepGraph& step_;
  const Absent& absent_;
  Graph& made_;
  std::uint32_t ranks_;  // of a unit
  model::GraphBuilder builder_;
  std::vector<std::uint64_t> first_;        // by node of the step: that of its first rank
  std::vector<std::vector<Nodes>> passed_;  // by node and rank: what stands for one that is not run
  std::vector<std::vector<Nodes>> front_;   // by stream and rank: the end of what ran last
  std::map<std::int32_t, std::int32_t> last_;  // by stream: the node of the step that ran last
  std::vector<std::uint64_t> slots_;
  std::map<NodeRole, std::uint64_t> given_;  // by role: what holds its nodes back
  std::uint64_t next_ = 0;
  std::vector<const CollectiveSpec*> specs_;         // by operator
  std::vector<std::vector<model::PlanId>> plans_;    // by operator
  std::vector<std::vector<std::uint32_t>> plan_of_;  // by operator and rank: which of its plans
  model::CallId calls_ = 0;
};

ExpandedTiming::ExpandedTiming(std::shared_ptr<const Program> program, std::int32_t units,
                               const ExpandedConfig* config)
    : program_(std::move(program)),
      config_(config_of(config, units)),
      has_links_(config != nullptr),
      engine_(config_.topology, {config_.network, 0, {}, {}, config_.poll, config_.incast}) {
  if (units < 1 || num_ranks(config_) % at(units) != 0)
    throw std::invalid_argument(
        "there is a number of devices that stages x members does not divide");
  if (!has_links_ || config_.network == astra_sim::engine::NetworkKind::kCongestionUnaware) return;
  messages_.resize(program_->operators().size(), false);
  for (const CollectiveSpec& spec : config_.collectives)
    messages_.at(at(spec.op)) = spec.bytes_per_unit > 0;
}

ExpandedTiming::Graph& ExpandedTiming::graph_of(const StepGraph& graph, const StepPrices& prices) {
  absent_.assign(graph.prices.size(), false);
  for (std::size_t i = 0; i < graph.prices.size(); ++i) {
    const PriceKey& key = graph.prices[i];
    if (key.role != NodeRole::kOperator || key.op < 0) continue;
    if (!has_links_) continue;  // what works on nothing takes no time
    const Operator& op = program_->operators()[at(key.op)];
    absent_[i] = optional(op.feature) && op.kind != NodeKind::kAttention && prices.units[i] == 0;
  }
  Graph& made = graphs_[{&graph, absent_}];
  if (!made.graph) Layout(*this, graph, absent_, made).build();
  return made;
}

void ExpandedTiming::run(const StepGraph& graph, const StepPrices& prices, const StepStart& start,
                         StepCarry& carry, std::span<Ps> starts, std::span<Ps> ends) {
  using Kind = Origin::Kind;
  Graph& made = graph_of(graph, prices);
  Ps origin = std::min(start.now, start.at);  // what the engine's `begin` stands for
  for (const Origin& one : made.origin) {
    if (one.kind == Kind::kStream) origin = std::min(origin, carry.free[at(one.index)]);
    if (one.kind == Kind::kSlot) origin = std::min(origin, carry.slots[at(one.index)]);
  }
  const auto amount = [&](const Origin& one) -> std::int64_t {
    if (one.kind == Kind::kGiven) return given_at(graph.nodes[at(one.index)], start) - origin;
    if (one.kind == Kind::kStream) return carry.free[at(one.index)] - origin;
    if (one.kind == Kind::kSlot) return carry.slots[at(one.index)] - origin;
    const StepNode& node = graph.nodes[at(one.index)];
    const std::int64_t bytes = one.bytes_per_unit * prices.units[at(node.price)];
    return bytes == 0 ? prices.of(graph, node, 0) : bytes;
  };
  std::ranges::transform(made.origin, made.amounts.begin(), amount);
  const Ps begin = engine_.now();
  const auto id = engine_.submit(made.graph, begin, made.amounts);
  engine_.advance();
  const auto times = engine_.times(id).end_ps;
  const auto end_of = [&](const Nodes& nodes) {
    Ps latest = 0;
    for (const std::uint64_t node : nodes) latest = std::max(latest, times[node]);
    return latest - begin + origin;
  };
  for (std::size_t stream = 0; stream < made.stream_ends.size(); ++stream)
    if (!made.stream_ends[stream].empty()) carry.free[stream] = end_of(made.stream_ends[stream]);
  ends_.resize(graph.nodes.size());
  for (const auto& [node, nodes] : made.ends) ends_[at(node)] = end_of(nodes);
  end_members(graph, ends_, carry, starts, ends);
  engine_.release(id);
}

std::unique_ptr<GraphExecutor> expanded_executor(StepPricer pricer, const ExpandedConfig* config) {
  StepGraphs graphs = full_graphs(pricer);
  const std::int32_t units = graphs.whole.units;
  auto timing = std::make_unique<ExpandedTiming>(pricer.member(0).shared_program(), units, config);
  return std::make_unique<GraphExecutor>(std::move(pricer), std::move(graphs), std::move(timing));
}

ExpandedPasses::ExpandedPasses(const Drafter& drafter)
    : first_(drafter.first_program(), drafter.first_expanded()),
      next_(drafter.next_program(), drafter.next_expanded()) {}

Ps ExpandedPasses::took(const Batch& pass, bool first) {
  return (first ? first_ : next_).took(pass, now_);
}

ExpandedPasses::Passes::Passes(std::shared_ptr<const Program> program, const ExpandedConfig* config)
    : costs_(std::move(program)), executor_(expanded_executor(StepPricer({&costs_}), config)) {}

Ps ExpandedPasses::Passes::took(const Batch& pass, Ps& now) {
  const Batch* one = &pass;
  executor_->begin({&one, 1}, {now, now}, *this);
  now = times_.end;
  return times_.end - times_.start;
}

}  // namespace llmsim
