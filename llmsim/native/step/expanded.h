// The expanded timing of a joint iteration: every rank's operators as nodes of a graph that the
// engine runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/loop/engine.h"
#include "step/lockstep_step.h"

namespace llmsim {

// How one collective or hand-over of the program runs: messages on the domain's links, or after its
// measured duration.
struct CollectiveSpec {
  std::int32_t op = 0;  // index into the program's operators
  astra_sim::model::CollectiveKind kind = astra_sim::model::CollectiveKind::kAllReduce;
  // Per token or sequence, of the whole vector (a hand-over: of each rank); 0: measured, its table
  // is its duration.
  std::int64_t bytes_per_unit = 0;
  astra_sim::model::Algorithm algorithm = astra_sim::model::Algorithm::kRing;
  // Among how many ranks of a stage, `stride` apart; 0: all of them, of operators over gathered
  // tokens one of each member, or with `everyone` all of all members.
  std::int32_t ranks = 0, stride = 1;
  bool everyone = false;
  // Rows between members on several nodes, as many on each (`per_node`, those of a node side by
  // side): what leaves a device over each of its ports, times the members; `bytes_per_unit` is that
  // of the near one. 0: on one kind of port.
  std::int32_t per_node = 0;
  std::int64_t far_bytes_per_unit = 0;
};

// The domain's links and what runs on them. Rank t + tp * (stage + stages * member) is
// tensor-parallel rank t of a stage of a member; operators over gathered tokens run between the
// members, all others inside a stage.
struct ExpandedConfig {
  std::shared_ptr<const astra_sim::model::Topology> topology;
  astra_sim::engine::NetworkKind network = astra_sim::engine::NetworkKind::kCongestionUnaware;
  std::vector<CollectiveSpec> collectives;
  std::int32_t members = 1;
  // By rank; empty: all of the topology, in order. Given, ranks go on together after a collective
  // or a hand-over, when the last of them has ended: routes of unequal length do not let them drift
  // apart.
  std::vector<astra_sim::model::DeviceId> devices{};
  std::function<void()>
      poll{};  // called now and then while a step is computed; what it throws ends the step
};

// Equal to FoldedRound to the picosecond (invariant 9), and thousands of times slower: `--exact`.
// The graph is built once; each step gives its durations and bytes, and holds every device back
// until it is free.
class ExpandedRound final : public RoundTiming {
 public:
  ExpandedRound(std::shared_ptr<const Program> program, const ExpandedConfig& config);
  void run(std::span<const MemberStep> members, Ps now, Carry& carry, std::span<Ps> starts,
           std::span<Ps> ends) override;

 private:
  class Layout;
  // What a node's amount is: of `op` for `member`; without an operator, how long its device or link
  // is held.
  struct Origin {
    std::int32_t op, member, place, layer;
    bool link;
  };
  // A member without sequences (a dummy) does not run what works on sequences, nor one without
  // prompts or decodes what works on those, so that each combination has a graph of its own: by
  // member, a bit for each feature that it lacks.
  using Lacking = std::vector<std::uint8_t>;
  struct Graph {
    std::shared_ptr<const astra_sim::model::ExecutionGraph> graph;
    // Nodes first, first + 1, ... : one operator on all ranks that it runs on together.
    struct Nodes {
      std::uint64_t first = 0, count = 1;
    };
    std::vector<Origin> origin;             // by node
    std::vector<Nodes> held, last, handed;  // by place: the hold, the last operator, the hand-over
    std::vector<std::int64_t> amounts;      // scratch, by node
  };
  std::size_t num_ranks() const;
  Graph& graph_of(std::span<const MemberStep> members);
  void build(Graph& graph, const Lacking& lacking) const;
  std::int64_t amount_of(const Origin& origin, std::span<const MemberStep> members, Ps now,
                         const Carry& carry) const;

  std::shared_ptr<const Program> program_;
  ExpandedConfig config_;
  std::vector<CollectiveSpec> specs_;  // by operator
  std::map<Lacking, Graph> graphs_;
  Lacking lacking_;  // scratch
  astra_sim::engine::Engine engine_;
};

}  // namespace llmsim
