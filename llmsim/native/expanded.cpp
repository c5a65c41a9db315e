#include "expanded.h"

#include <algorithm>
#include <stdexcept>

#include "model/graph_builder.h"

namespace llmsim {

namespace model = astra_sim::model;

ExpandedEvaluator::ExpandedEvaluator(std::shared_ptr<const Program> program, const ExpandedConfig& config)
    : Evaluator(std::move(program)),
      bytes_per_unit_(program_->operators().size(), 0),
      engine_(config.topology, {config.network, 0}) {
  build(config);
}

void ExpandedEvaluator::build(const ExpandedConfig& config) {
  const std::uint32_t ranks = config.topology->num_devices();
  const auto& operators = program_->operators();
  model::GraphBuilder builder(ranks);
  std::vector<model::DeviceId> devices(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) devices[rank] = rank;
  const model::GroupId group = builder.add_group(devices);
  std::vector<model::PlanId> plans(operators.size(), 0);
  for (const CollectiveSpec& spec : config.collectives) {
    bytes_per_unit_.at(static_cast<std::size_t>(spec.op)) = spec.bytes_per_unit;
    const Operator& op = operators[static_cast<std::size_t>(spec.op)];
    // A measured collective is keyed by its own duration: the table is the identity.
    const auto table = spec.bytes_per_unit > 0 ? nullptr
                                               : std::make_shared<const model::MeasuredTable>(
                                                     std::vector<model::Bytes>{0, 1}, std::vector<model::Ps>{0, 1});
    const auto algorithm = spec.bytes_per_unit > 0 ? model::Algorithm::ring : model::Algorithm::measured;
    if (op.kind != NodeKind::kCollective) throw std::invalid_argument(op.name + " is not a collective");
    plans[static_cast<std::size_t>(spec.op)] = builder.add_plan({spec.kind, algorithm, group, table});
  }

  std::vector<std::uint64_t> parent(ranks, 0);
  std::uint64_t next = 0;
  model::CallId calls = 0;
  const auto append = [&](std::size_t index) {
    const Operator& op = operators[index];
    for (std::uint32_t rank = 0; rank < ranks; ++rank, ++next) {
      const std::span<const std::uint64_t> parents(&parent[rank], next >= ranks ? 1 : 0);
      if (op.kind == NodeKind::kCollective) {
        builder.collective(rank, plans[index], calls, 1, parents);
      } else {
        builder.compute(rank, 0, parents);
      }
      op_of_node_.push_back(static_cast<std::int32_t>(index));
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) parent[rank] = next - ranks + rank;
    calls += op.kind == NodeKind::kCollective;
  };
  for (std::size_t first = 0; first < operators.size();) {  // operators of one part repeat together, layer by layer
    std::size_t last = first;
    std::int32_t repeat = 0;
    while (last < operators.size() && operators[last].part == operators[first].part)
      repeat = std::max(repeat, operators[last++].repeat);
    for (std::int32_t layer = 0; layer < repeat; ++layer)
      for (std::size_t i = first; i < last; ++i)
        if (layer < operators[i].repeat) append(i);
    first = last;
  }
  graph_ = builder.build();
  amounts_.resize(op_of_node_.size());
}

Evaluator::StepEnd ExpandedEvaluator::end(const Batch& batch, Ps start) {
  const auto& operators = program_->operators();
  const Program::StepPrice folded = program_->evaluate(batch, usage_);  // counts the table rows; its time is not used
  std::vector<std::int64_t> amount(operators.size());
  for (std::size_t i = 0; i < operators.size(); ++i) {
    const Operator& op = operators[i];
    if (op.kind == NodeKind::kAttention) {
      amount[i] = program_->attention_layer_ps(batch);
    } else {
      const std::int64_t units = program_->units(op, batch.features);
      amount[i] = bytes_per_unit_[i] > 0 ? bytes_per_unit_[i] * units : op.ps[static_cast<std::size_t>(units)];
    }
  }
  for (std::size_t node = 0; node < amounts_.size(); ++node)
    amounts_[node] = amount[static_cast<std::size_t>(op_of_node_[node])];
  const auto id = engine_.submit(graph_, start, amounts_);
  const auto done = engine_.advance();
  engine_.release(id);
  return {std::max(start + 1, done->end_ps + program_->host_gap()), folded.communication_ps};
}

}  // namespace llmsim
