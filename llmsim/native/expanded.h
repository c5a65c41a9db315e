// The expanded evaluation of a step: every rank's operators as nodes of a graph that the engine runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "evaluator.h"

namespace llmsim {

// How one collective of the program runs: messages on the group's links, or after its measured duration.
struct CollectiveSpec {
  std::int32_t op = 0;  // index into the program's operators
  astra_sim::model::CollectiveKind kind = astra_sim::model::CollectiveKind::all_reduce;
  std::int64_t bytes_per_unit = 0;  // per token or sequence; 0: measured, the operator's own table is its duration
};

// The group's links and what runs on them.
struct ExpandedConfig {
  std::shared_ptr<const astra_sim::model::Topology> topology;  // one device per rank
  astra_sim::engine::NetworkKind network = astra_sim::engine::NetworkKind::congestion_unaware;
  std::vector<CollectiveSpec> collectives;
};

// Equal to FoldedEvaluator to the picosecond (invariant 9), and thousands of times slower: `--exact`. The graph is
// built once; each step gives its durations and bytes.
class ExpandedEvaluator final : public Evaluator {
 public:
  ExpandedEvaluator(std::shared_ptr<const Program> program, const ExpandedConfig& config);
  StepEnd end(const Batch& batch, Ps start) override;

 private:
  void build(const ExpandedConfig& config);

  std::vector<std::int64_t> bytes_per_unit_;  // by operator; 0: priced by its table
  std::shared_ptr<const astra_sim::model::ExecutionGraph> graph_;
  std::vector<std::int32_t> op_of_node_;
  std::vector<std::int64_t> amounts_;  // scratch, one per node
  astra_sim::engine::Engine engine_;
};

}  // namespace llmsim
