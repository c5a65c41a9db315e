#include "step/expanded.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "model/graph/graph_builder.h"

namespace llmsim {

namespace model = astra_sim::model;

// Appends nodes; knows who stands where.
class ExpandedRound::Layout {
 public:
  Layout(const ExpandedRound& owner, Graph& graph)
      : program_(*owner.program_),
        graph_(graph),
        stages_(static_cast<std::uint32_t>(program_.num_stages())),
        members_(static_cast<std::uint32_t>(owner.config_.members)),
        devices_(owner.config_.devices),
        tp_(static_cast<std::uint32_t>(owner.num_ranks()) / (stages_ * members_)),
        scheduler_(owner.config_.topology->num_devices()),
        front_(stages_ * members_ * tp_),
        plans_(program_.operators().size()),
        group_of_(program_.operators().size()) {
    for (const CollectiveSpec& spec : owner.config_.collectives) add_plans(spec);
  }

  void hold() {
    for (std::uint32_t m = 0; m < members_; ++m)
      for (std::uint32_t s = 0; s < stages_; ++s) {
        graph_.held.push_back({next_});
        for (std::uint32_t t = 0; t < tp_; ++t) {
          const std::uint32_t rank = at(m, s, t);
          front_[rank] = {append({-1, narrow(m), narrow(place(m, s)), 0, false})};
          scheduler_.compute(device(rank), 0, {});
        }
        if (s + 1 == stages_) continue;
        for (std::uint32_t t = 0; t < tp_; ++t) {
          append({-1, narrow(m), narrow(place(m, s)), 0, true});
          scheduler_.compute(device(at(m, s, t)), 0, {}, model::Stream::kCopyOut);
        }
      }
  }

  void add(std::size_t index, std::int32_t layer, bool meet, const Lacking& lacking) {
    const Operator& op = program_.operators()[index];
    const auto stage = static_cast<std::uint32_t>(op.stage);
    if (meet) wait_for_all(stage);
    if (op.kind == NodeKind::kStageSend) return hand_over(index, layer, stage);
    const bool together = op.feature == Feature::kGathered;
    const std::uint64_t first = next_;
    for (std::uint32_t m = 0; m < members_; ++m) {
      if ((lacking[m] >> static_cast<unsigned>(op.feature) & 1U) != 0) continue;
      graph_.last[place(m, stage)] = {next_, tp_};
      for (std::uint32_t t = 0; t < tp_; ++t) {
        const std::uint32_t rank = at(m, stage, t);
        if (op.kind == NodeKind::kCollective) {
          const std::uint32_t which = group_of_[index][place_in_stages(m, t)];
          scheduler_.collective(device(rank), plans_[index][which], calls_ + which, 1,
                                front_[rank]);
        } else {
          scheduler_.compute(device(rank), 0, front_[rank]);
        }
        front_[rank] = {append({narrow(index), narrow(m), 0, layer, false})};
      }
      if (op.kind == NodeKind::kCollective && !together)
        go_on_together(m, stage, graph_.last[place(m, stage)]);
    }
    if (op.kind != NodeKind::kCollective) return;
    calls_ += tp_ * members_;
    for (std::uint32_t m = 0; together && !devices_.empty() && m < members_; ++m) {
      graph_.last[place(m, stage)] = {first, next_ - first};
      go_on_together(m, stage, {first, next_ - first});
    }
  }

  std::shared_ptr<const model::ExecutionGraph> build() { return scheduler_.build(); }

 private:
  static std::int32_t narrow(std::size_t x) { return static_cast<std::int32_t>(x); }
  std::uint32_t at(std::uint32_t m, std::uint32_t s, std::uint32_t t) const {
    return t + tp_ * (s + stages_ * m);
  }
  model::DeviceId device(std::uint32_t rank) const {
    return devices_.empty() ? rank : devices_[rank];
  }
  std::size_t place(std::uint32_t m, std::uint32_t s) const { return m * stages_ + s; }
  std::uint64_t append(Origin origin) {
    graph_.origin.push_back(origin);
    return next_++;
  }

  std::uint32_t place_in_stages(std::uint32_t m, std::uint32_t t) const { return m * tp_ + t; }

  // The first of the ranks that rank t of member m does this collective with: what its group is
  // known by.
  std::uint32_t leader(const CollectiveSpec& spec, bool together, std::uint32_t m,
                       std::uint32_t t) const {
    if (spec.everyone) return 0;
    if (together) return t;
    const auto ranks = spec.ranks > 0 ? static_cast<std::uint32_t>(spec.ranks) : tp_;
    const auto stride = static_cast<std::uint32_t>(spec.stride);
    const std::uint32_t block = ranks * stride;
    return place_in_stages(m, t / block * block + t % stride);
  }

  // Each group has a plan: operators between the members one for each rank of a stage, those inside
  // a stage one for each set of its ranks that work together.
  void add_plans(const CollectiveSpec& spec) {
    const auto index = static_cast<std::size_t>(spec.op);
    const Operator& op = program_.operators()[index];
    if (op.kind == NodeKind::kStageSend) return;
    if (op.kind != NodeKind::kCollective)
      throw std::invalid_argument(op.name + " is not a collective");
    // A measured collective is keyed by its own duration: the table is the identity.
    const auto table = spec.bytes_per_unit > 0
                           ? nullptr
                           : std::make_shared<const model::MeasuredTable>(
                                 std::vector<model::Bytes>{0, 1}, std::vector<model::Ps>{0, 1});
    const auto algorithm = spec.bytes_per_unit > 0 ? spec.algorithm : model::Algorithm::kMeasured;
    std::map<std::uint32_t, std::vector<model::DeviceId>> groups;
    const bool together = op.feature == Feature::kGathered;
    for (std::uint32_t m = 0; m < members_; ++m)
      for (std::uint32_t t = 0; t < tp_; ++t)
        groups[leader(spec, together, m, t)].push_back(
            device(at(m, static_cast<std::uint32_t>(op.stage), t)));
    std::map<std::uint32_t, std::uint32_t> number;
    for (const auto& [first, devices] : groups) {
      number[first] = static_cast<std::uint32_t>(plans_[index].size());
      plans_[index].push_back(
          scheduler_.add_plan({spec.kind, algorithm, scheduler_.add_group(devices), table}));
    }
    for (std::uint32_t m = 0; m < members_; ++m)
      for (std::uint32_t t = 0; t < tp_; ++t)
        group_of_[index].push_back(number[leader(spec, together, m, t)]);
  }

  // The ranks' next operators wait for all of these nodes.
  void go_on_together(std::uint32_t m, std::uint32_t stage, Graph::Nodes nodes) {
    if (devices_.empty() || nodes.count < 2) return;
    std::vector<std::uint64_t> all(nodes.count);
    std::iota(all.begin(), all.end(), nodes.first);
    for (std::uint32_t t = 0; t < tp_; ++t) front_[at(m, stage, t)] = all;
  }

  void wait_for_all(std::uint32_t stage) {
    for (std::uint32_t t = 0; t < tp_; ++t) {
      std::vector<std::uint64_t> all;
      for (std::uint32_t m = 0; m < members_; ++m)
        all.insert(all.end(), front_[at(m, stage, t)].begin(), front_[at(m, stage, t)].end());
      for (std::uint32_t m = 0; m < members_; ++m) front_[at(m, stage, t)] = all;
    }
  }

  void hand_over(std::size_t index, std::int32_t layer, std::uint32_t stage) {
    for (std::uint32_t m = 0; m < members_; ++m) {
      const Graph::Nodes sent{next_, tp_};
      for (std::uint32_t t = 0; t < tp_; ++t) {
        const std::uint32_t rank = at(m, stage, t);
        scheduler_.transfer(device(rank), device(at(m, stage + 1, t)), 1, front_[rank]);
        append({narrow(index), narrow(m), 0, layer, false});
      }
      for (std::uint32_t t = 0; t < tp_; ++t)
        for (std::uint64_t i = 0; i < tp_; ++i)
          if (i == t || !devices_.empty()) front_[at(m, stage + 1, t)].push_back(sent.first + i);
      graph_.handed[place(m, stage)] = sent;
    }
  }

  const Program& program_;
  Graph& graph_;
  std::uint32_t stages_, members_;
  const std::vector<model::DeviceId>& devices_;
  std::uint32_t tp_;
  model::GraphBuilder scheduler_;
  std::vector<std::vector<std::uint64_t>> front_;     // by device: what its next operator waits for
  std::vector<std::vector<model::PlanId>> plans_;     // by operator
  std::vector<std::vector<std::uint32_t>> group_of_;  // by operator and rank: which of its plans
  std::uint64_t next_ = 0;
  model::CallId calls_ = 0;
};

ExpandedRound::ExpandedRound(std::shared_ptr<const Program> program, const ExpandedConfig& config)
    : program_(std::move(program)),
      config_(config),
      specs_(program_->operators().size()),
      engine_(config.topology, {config.network, 0, {}, {}, config.poll}) {
  const std::int64_t parts = std::int64_t{program_->num_stages()} * config.members;
  if (parts < 1 || static_cast<std::int64_t>(num_ranks()) % parts != 0)
    throw std::invalid_argument(
        "there is a number of devices that stages x members does not divide");
  for (const CollectiveSpec& spec : config.collectives)
    specs_.at(static_cast<std::size_t>(spec.op)) = spec;
}

std::size_t ExpandedRound::num_ranks() const {
  return config_.devices.empty() ? config_.topology->num_devices() : config_.devices.size();
}

ExpandedRound::Graph& ExpandedRound::graph_of(std::span<const MemberStep> members) {
  lacking_.clear();
  for (const MemberStep& member : members) {
    unsigned bits = 0;
    for (const Feature feature : {Feature::kSequences, Feature::kDecodes, Feature::kPrefills})
      if (program_->reads(feature) && member.place.at(feature) == 0)
        bits |= 1U << static_cast<unsigned>(feature);
    lacking_.push_back(static_cast<std::uint8_t>(bits));
  }
  Graph& graph = graphs_[lacking_];
  if (!graph.graph) build(graph, lacking_);
  return graph;
}

void ExpandedRound::build(Graph& graph, const Lacking& lacking) const {
  const auto& operators = program_->operators();
  const auto places = lacking.size() * static_cast<std::size_t>(program_->num_stages());
  graph.handed.assign(places, {});
  Layout layout(*this, graph);
  layout.hold();
  graph.last = graph.held;  // of a stage without operators
  for (std::size_t first = 0;
       first < operators.size();) {  // operators of one part repeat together, layer by layer
    std::size_t last = first;
    std::int32_t repeat = 0;
    while (last < operators.size() && operators[last].part == operators[first].part &&
           operators[last].stage == operators[first].stage &&
           (last == first || operators[last].kind != NodeKind::kStageSend))
      repeat = std::max(repeat, operators[last++].repeat);
    for (std::int32_t layer = 0; layer < repeat; ++layer) {
      if (config_.poll) config_.poll();
      bool apart = true;
      for (std::size_t i = first; i < last; ++i) {
        if (layer >= operators[i].repeat) continue;
        const bool together = operators[i].feature == Feature::kGathered;
        layout.add(i, layer, together && apart, lacking);
        apart = !together;
      }
    }
    first = last;
  }
  graph.graph = layout.build();
  graph.amounts.resize(graph.origin.size());
}

std::int64_t ExpandedRound::amount_of(const Origin& origin, std::span<const MemberStep> members,
                                      Ps now, const Carry& carry) const {
  if (origin.op < 0) {
    const auto& free = origin.link ? carry.link : carry.device;
    return std::max<Ps>(0, free[static_cast<std::size_t>(origin.place)] - now);
  }
  const auto index = static_cast<std::size_t>(origin.op);
  const Operator& op = program_->operators()[index];
  const MemberStep& member = members[static_cast<std::size_t>(origin.member)];
  if (op.kind == NodeKind::kAttention)
    return member.attention[static_cast<std::size_t>(op.attention)].ps;
  if (op.sampled != nullptr)
    return member.draws[static_cast<std::size_t>(program_->first_draw(index) + origin.layer)];
  const std::int64_t units = member.place.at(op.feature),
                     bytes = specs_[index].bytes_per_unit * units;
  if (bytes == 0) return op.ps[static_cast<std::size_t>(units)];
  return bytes;
}

void ExpandedRound::run(std::span<const MemberStep> members, Ps now, Carry& carry,
                        std::span<Ps> starts, std::span<Ps> ends) {
  Graph& graph = graph_of(members);
  for (std::size_t node = 0; node < graph.amounts.size(); ++node)
    graph.amounts[node] = amount_of(graph.origin[node], members, now, carry);
  const Ps begin = engine_.now();
  const auto id = engine_.submit(graph.graph, begin, graph.amounts);
  engine_.advance();
  const model::NodeTimes times = engine_.times(id);
  const auto end_of = [&](Graph::Nodes nodes) {
    return *std::ranges::max_element(times.end_ps.subspan(nodes.first, nodes.count)) - begin + now;
  };
  const auto stages = static_cast<std::size_t>(program_->num_stages());
  for (std::size_t place = 0; place < graph.last.size(); ++place) {
    const Ps end = end_of(graph.last[place]);
    if (place % stages == 0) starts[place / stages] = end_of(graph.held[place]);
    if (place % stages + 1 == stages) {
      ends[place / stages] = end;
    } else {
      carry.link[place] = end_of(graph.handed[place]);
    }
    carry.device[place] = end;
  }
  engine_.release(id);
}

}  // namespace llmsim
