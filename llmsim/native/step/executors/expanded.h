// Steps timed by the engine: every rank's nodes, and messages on the links that ranks have.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/loop/engine.h"
#include "step/executors/folded.h"

namespace llmsim {

// How one collective or hand-over of the program runs: messages on the domain's links, or after its
// measured duration.
struct CollectiveSpec {
  std::int32_t op = 0;  // index into the program's operators
  astra_sim::model::CollectiveKind kind = astra_sim::model::CollectiveKind::kAllReduce;
  // Per token or sequence, of the whole vector (a hand-over: of each rank); 0: measured, its table
  // is its duration.
  std::int64_t bytes_per_unit = 0;
  astra_sim::model::AlgorithmChoice algorithm{};
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
  astra_sim::engine::Incast incast{};  // of the fair-share network
  std::function<void()>
      poll{};  // called now and then while a step is computed; what it throws ends the step
};

// Equal to FoldedTiming to the picosecond (invariant 9), and thousands of times slower: `--exact`.
// The engine's graph is made once; each step gives its durations and bytes, and holds streams back
// that are busy. Takes graphs without repeated blocks.
class ExpandedTiming final : public StepTiming {
 public:
  // Without a config a unit is one device, and collectives take the times of their tables.
  ExpandedTiming(std::shared_ptr<const Program> program, std::int32_t units,
                 const ExpandedConfig* config);
  void run(const StepGraph& graph, const StepPrices& prices, const StepStart& start,
           StepCarry& carry, std::span<Ps> starts, std::span<Ps> ends) override;
  std::span<const Ps> node_ends() const override { return ends_; }
  bool moves(const StepNode& node) const override {
    const bool operates = node.role == NodeRole::kOperator && node.op >= 0;
    return operates && at(node.op) < messages_.size() && messages_[at(node.op)];
  }

 private:
  class Layout;
  // What the amount of the engine's node is.
  struct Origin {
    enum class Kind : std::uint8_t { kNode, kStream, kSlot, kGiven } kind = Kind::kNode;
    std::int32_t index = 0;  // node, stream or slot of the step; of kGiven, a node that it holds
    std::int64_t bytes_per_unit = 0;
  };
  using Nodes = std::vector<std::uint64_t>;  // of the engine
  struct Graph {
    std::shared_ptr<const astra_sim::model::ExecutionGraph> graph;
    std::vector<Origin> origin;          // by node of the engine
    std::vector<Nodes> stream_ends;      // by stream: empty where no node ran
    std::map<std::int32_t, Nodes> ends;  // of nodes whose end is asked for
    std::vector<std::int64_t> amounts;   // scratch
  };
  // A member without sequences (a dummy) does not run what works on sequences, nor one without
  // prompts or decodes what works on those, so that each combination has a graph of its own.
  using Absent = std::vector<bool>;  // by price
  Graph& graph_of(const StepGraph& graph, const StepPrices& prices);

  std::shared_ptr<const Program> program_;  // of all members; without links, not asked
  ExpandedConfig config_;
  bool has_links_;
  // By operator: whether its bytes are messages that others may meet; empty: nobody meets.
  std::vector<bool> messages_;
  std::map<std::pair<const StepGraph*, Absent>, Graph> graphs_;
  Absent absent_;         // scratch
  std::vector<Ps> ends_;  // of the last step, by node, where they are asked for
  astra_sim::engine::Engine engine_;
};

// Steps of a program that keeps nothing elsewhere, every rank's operators run by the engine.
std::unique_ptr<GraphExecutor> expanded_executor(StepPricer pricer, const ExpandedConfig* config);

// A drafter's passes, every rank's operators run by the engine.
class ExpandedPasses final : public PassTimer {
 public:
  // The drafter has a config for its first pass, and for the others.
  explicit ExpandedPasses(const Drafter& drafter);
  Ps took(const Batch& pass, bool first) override;

 private:
  class Passes final : public StepSink {
   public:
    Passes(std::shared_ptr<const Program> program, const ExpandedConfig* config);
    Ps took(const Batch& pass, Ps& now);
    void timed(std::size_t, const StepTimes& times, Ps) override { times_ = times; }

   private:
    GroupCosts costs_;
    std::unique_ptr<GraphExecutor> executor_;
    StepTimes times_;
  };

  Passes first_, next_;
  Ps now_ = 0;  // one pass after the other, whenever they really run
};

}  // namespace llmsim
