#include "expanded.h"

#include <algorithm>
#include <stdexcept>

#include "model/graph_builder.h"

namespace llmsim {

namespace model = astra_sim::model;

// Appends nodes; knows who stands where.
class ExpandedJoint::Layout {
 public:
  Layout(const ExpandedJoint& owner, Graph& graph)
      : program_(*owner.program_),
        graph_(graph),
        stages_(static_cast<std::uint32_t>(program_.num_stages())),
        members_(static_cast<std::uint32_t>(owner.config_.members)),
        tp_(owner.config_.topology->num_devices() / (stages_ * members_)),
        builder_(stages_ * members_ * tp_),
        front_(stages_ * members_ * tp_),
        plans_(program_.operators().size()) {
    for (const CollectiveSpec& spec : owner.config_.collectives) add_plans(spec);
  }

  void hold() {
    for (std::uint32_t m = 0; m < members_; ++m)
      for (std::uint32_t s = 0; s < stages_; ++s) {
        graph_.held.push_back(next_);
        for (std::uint32_t t = 0; t < tp_; ++t) {
          const model::DeviceId device = at(m, s, t);
          front_[device] = {append({-1, narrow(m), narrow(place(m, s)), 0, false})};
          builder_.compute(device, 0, {});
        }
        if (s + 1 == stages_) continue;
        for (std::uint32_t t = 0; t < tp_; ++t) {
          append({-1, narrow(m), narrow(place(m, s)), 0, true});
          builder_.compute(at(m, s, t), 0, {}, model::Stream::copy_out);
        }
      }
  }

  void add(std::size_t index, std::int32_t layer, bool meet, const std::vector<bool>& without_sequences) {
    const Operator& op = program_.operators()[index];
    const auto stage = static_cast<std::uint32_t>(op.stage);
    if (meet) wait_for_all(stage);
    if (op.kind == NodeKind::kHandover) return hand_over(index, layer, stage);
    const bool together = op.feature == Feature::kGathered;
    for (std::uint32_t m = 0; m < members_; ++m) {
      if (op.feature == Feature::kSequences && without_sequences[m]) continue;
      for (std::uint32_t t = 0; t < tp_; ++t) {
        const model::DeviceId device = at(m, stage, t);
        if (op.kind == NodeKind::kCollective) {
          builder_.collective(device, plans_[index][together ? t : m], calls_ + (together ? t : m), 1, front_[device]);
        } else {
          builder_.compute(device, 0, front_[device]);
        }
        front_[device] = {append({narrow(index), narrow(m), 0, layer, false})};
        if (t == 0) graph_.last[place(m, stage)] = front_[device][0];
      }
    }
    if (op.kind == NodeKind::kCollective) calls_ += std::max(tp_, members_);
  }

  std::shared_ptr<const model::ExecutionGraph> build() { return builder_.build(); }

 private:
  static std::int32_t narrow(std::size_t x) { return static_cast<std::int32_t>(x); }
  model::DeviceId at(std::uint32_t m, std::uint32_t s, std::uint32_t t) const { return t + tp_ * (s + stages_ * m); }
  std::size_t place(std::uint32_t m, std::uint32_t s) const { return m * stages_ + s; }
  std::uint64_t append(Origin origin) {
    graph_.origin.push_back(origin);
    return next_++;
  }

  // Operators between the members have a plan for each tensor-parallel rank, those inside a stage one for each member.
  void add_plans(const CollectiveSpec& spec) {
    const auto index = static_cast<std::size_t>(spec.op);
    const Operator& op = program_.operators()[index];
    if (op.kind == NodeKind::kHandover) return;
    if (op.kind != NodeKind::kCollective) throw std::invalid_argument(op.name + " is not a collective");
    const bool together = op.feature == Feature::kGathered;
    // A measured collective is keyed by its own duration: the table is the identity.
    const auto table = spec.bytes_per_unit > 0 ? nullptr
                                               : std::make_shared<const model::MeasuredTable>(
                                                     std::vector<model::Bytes>{0, 1}, std::vector<model::Ps>{0, 1});
    const auto algorithm = spec.bytes_per_unit > 0 ? spec.algorithm : model::Algorithm::measured;
    for (std::uint32_t outer = 0; outer < (together ? tp_ : members_); ++outer) {
      std::vector<model::DeviceId> devices;
      for (std::uint32_t rank = 0; rank < (together ? members_ : tp_); ++rank)
        devices.push_back(together ? at(rank, static_cast<std::uint32_t>(op.stage), outer)
                                   : at(outer, static_cast<std::uint32_t>(op.stage), rank));
      plans_[index].push_back(builder_.add_plan({spec.kind, algorithm, builder_.add_group(devices), table}));
    }
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
    for (std::uint32_t m = 0; m < members_; ++m)
      for (std::uint32_t t = 0; t < tp_; ++t) {
        builder_.transfer(at(m, stage, t), at(m, stage + 1, t), 1, front_[at(m, stage, t)]);
        const std::uint64_t node = append({narrow(index), narrow(m), 0, layer, false});
        front_[at(m, stage + 1, t)].push_back(node);
        if (t == 0) graph_.handed[place(m, stage)] = node;
      }
  }

  const Program& program_;
  Graph& graph_;
  std::uint32_t stages_, members_, tp_;
  model::GraphBuilder builder_;
  std::vector<std::vector<std::uint64_t>> front_;  // by device: what its next operator waits for
  std::vector<std::vector<model::PlanId>> plans_;  // by operator
  std::uint64_t next_ = 0;
  model::CallId calls_ = 0;
};

ExpandedJoint::ExpandedJoint(std::shared_ptr<const Program> program, const ExpandedConfig& config)
    : program_(std::move(program)),
      config_(config),
      specs_(program_->operators().size()),
      engine_(config.topology, {config.network, 0}) {
  const std::int64_t parts = std::int64_t{program_->num_stages()} * config.members;
  if (parts < 1 || config.topology->num_devices() % parts != 0)
    throw std::invalid_argument("the topology has a number of devices that stages x members does not divide");
  for (const CollectiveSpec& spec : config.collectives) specs_.at(static_cast<std::size_t>(spec.op)) = spec;
}

ExpandedJoint::Graph& ExpandedJoint::graph_of(std::span<const MemberStep> members) {
  without_sequences_.clear();
  for (const MemberStep& member : members) without_sequences_.push_back(member.place.sequences == 0);
  Graph& graph = graphs_[without_sequences_];
  if (!graph.graph) build(graph, without_sequences_);
  return graph;
}

void ExpandedJoint::build(Graph& graph, const std::vector<bool>& without_sequences) const {
  const auto& operators = program_->operators();
  const auto places = without_sequences.size() * static_cast<std::size_t>(program_->num_stages());
  graph.handed.assign(places, 0);
  Layout layout(*this, graph);
  layout.hold();
  graph.last = graph.held;                                  // of a stage without operators
  for (std::size_t first = 0; first < operators.size();) {  // operators of one part repeat together, layer by layer
    std::size_t last = first;
    std::int32_t repeat = 0;
    while (last < operators.size() && operators[last].part == operators[first].part &&
           operators[last].stage == operators[first].stage &&
           (last == first || operators[last].kind != NodeKind::kHandover))
      repeat = std::max(repeat, operators[last++].repeat);
    for (std::int32_t layer = 0; layer < repeat; ++layer) {
      bool apart = true;
      for (std::size_t i = first; i < last; ++i) {
        if (layer >= operators[i].repeat) continue;
        const bool together = operators[i].feature == Feature::kGathered;
        layout.add(i, layer, together && apart, without_sequences);
        apart = !together;
      }
    }
    first = last;
  }
  graph.graph = layout.build();
  graph.amounts.resize(graph.origin.size());
}

std::int64_t ExpandedJoint::amount_of(const Origin& origin, std::span<const MemberStep> members, Ps now,
                                      const Carry& carry) const {
  if (origin.op < 0) {
    const auto& free = origin.link ? carry.link : carry.device;
    return std::max<Ps>(0, free[static_cast<std::size_t>(origin.place)] - now);
  }
  const auto index = static_cast<std::size_t>(origin.op);
  const Operator& op = program_->operators()[index];
  const MemberStep& member = members[static_cast<std::size_t>(origin.member)];
  if (op.kind == NodeKind::kAttention) return member.attention[static_cast<std::size_t>(op.attention)].ps;
  if (op.drawn != nullptr) return member.draws[static_cast<std::size_t>(program_->first_draw(index) + origin.layer)];
  const std::int64_t units = member.place.at(op.feature), bytes = specs_[index].bytes_per_unit * units;
  if (bytes == 0) return op.ps[static_cast<std::size_t>(units)];
  return bytes;
}

void ExpandedJoint::run(std::span<const MemberStep> members, Ps now, Carry& carry, std::span<Ps> starts,
                        std::span<Ps> ends) {
  Graph& graph = graph_of(members);
  for (std::size_t node = 0; node < graph.amounts.size(); ++node)
    graph.amounts[node] = amount_of(graph.origin[node], members, now, carry);
  const Ps begin = engine_.now();
  const auto id = engine_.submit(graph.graph, begin, graph.amounts);
  engine_.advance();
  const model::NodeTimes times = engine_.times(id);
  const auto stages = static_cast<std::size_t>(program_->num_stages());
  for (std::size_t place = 0; place < graph.last.size(); ++place) {
    const Ps end = times.end_ps[graph.last[place]] - begin + now;
    if (place % stages == 0) starts[place / stages] = times.end_ps[graph.held[place]] - begin + now;
    if (place % stages + 1 == stages) {
      ends[place / stages] = end;
    } else {
      carry.link[place] = times.end_ps[graph.handed[place]] - begin + now;
    }
    carry.device[place] = end;
  }
  engine_.release(id);
}

}  // namespace llmsim
