// Steps timed by max-plus arithmetic: all ranks of a unit do the same at the same time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "step/step_prices.h"

namespace llmsim {

// Times one step of a graph whose nodes nobody outside of it can delay. FoldedTiming and
// ExpandedTiming agree to the picosecond (invariant 9): first come first served on each stream
// leaves no choice.
class StepTiming {
 public:
  virtual ~StepTiming() = default;
  // Starts and ends by member, of a step that nobody outside of the graph holds back. `carry` is
  // what the step before left, then what this one leaves.
  virtual void run(const StepGraph& graph, const StepPrices& prices, const StepStart& start,
                   StepCarry& carry, std::span<Ps> starts, std::span<Ps> ends) = 0;
  // Of each node of the last step; of a repeated block, of the last layer that was not leapt over.
  // Certain are those of attention, of what is kept or runs beside steps, of what the host does,
  // and where members and stages begin and end.
  virtual std::span<const Ps> node_ends() const = 0;
  // Whether others of the graph may be on the links that the node's bytes take; its end is certain
  // then, too.
  virtual bool moves(const StepNode& /*node*/) const { return false; }

 protected:
  // The ends of the members' steps, which keep the streams of their last nodes busy.
  static void end_members(const StepGraph& graph, std::span<const Ps> end, StepCarry& carry,
                          std::span<Ps> starts, std::span<Ps> ends);
};

// Members that record spans of nodes get those of the step of that number: of where they and their
// stages begin, of what the host does, the power limit adds and the timing moves, and `beside`, in
// a graph without repeated blocks, of what runs beside steps.
template <class Pricer>
void note_spans(const Pricer& pricer, std::int64_t number, const StepGraph& graph,
                const StepPrices& prices, const StepTiming& timing, std::span<const Ps> node_ends,
                bool beside) {
  if (pricer.member(0).spans() == nullptr) return;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const StepNode& node = graph.nodes[i];
    const bool moves = timing.moves(node);
    const bool runs_beside = beside && runs_beside_steps(node);
    if (!follows_others(node) && !moves && !runs_beside) continue;
    const Ps end = node_ends[i], start = moves ? kNever : end - prices.of(graph, node, 0);
    pricer.member(at(node.member)).spans()->add(number, graph, node, kAllRanks, start, end);
  }
}

// By member, when the kernels of its step had been launched; without launches, when it began.
void launches_of(const StepGraph& graph, std::span<const Ps> node_ends, std::span<const Ps> starts,
                 std::vector<Ps>& launched);

// Max-plus arithmetic over the nodes, in order. Layers of a repeated block are leapt over as soon
// as one has moved all its streams alike (docs/explanation/execution.md, A6).
class FoldedTiming final : public StepTiming {
 public:
  void run(const StepGraph& graph, const StepPrices& prices, const StepStart& start,
           StepCarry& carry, std::span<Ps> starts, std::span<Ps> ends) override;
  std::span<const Ps> node_ends() const override { return end_; }

 private:
  struct Step {
    const StepGraph& graph;
    const StepPrices& prices;
    const StepStart& start;
    StepCarry& carry;
  };
  void pass_layer(const Step& step, const Block& block, std::int32_t layer);
  void pass_layers(const Step& step, const Block& block);

  std::vector<Ps> end_;
  std::vector<std::int32_t> streams_;   // of the block at hand
  std::vector<bool> listed_;            // by stream: whether it is among them
  std::vector<std::int32_t> drawn_;     // its nodes on the first of them with sampled times
  std::vector<Ps> before_;              // when they were free, a layer ago
  std::vector<std::int32_t> crossing_;  // its nodes on no stream that the next layer waits for
};

// The graphs of a layout.
struct StepGraphs {
  StepGraph whole;
  StepGraph halves;  // two halves of the batch alternate; no nodes: they never do
};
// With every operator of every layer.
StepGraphs full_graphs(const StepPricer& pricer);
// Of the same times in fewer nodes.
StepGraphs folded_graphs(const StepPricer& pricer);
// The same with each execution of attention as a node of its own.
StepGraphs layered_graphs(const StepPricer& pricer);

// Times steps, whole or in halves, whichever ends first (OffloadConfig::interleaving).
class StepTimer {
 public:
  StepTimer(StepGraphs graphs, std::unique_ptr<StepTiming> timing);

  // The step that the pricer has begun. `carry` is that of the graph chosen, afterwards.
  struct Timed {
    const StepGraph& graph;
    const StepPrices& prices;
    std::span<const Ps> starts, ends, launched;  // by member
    std::span<const Ps> node_ends;               // where they are kept
  };
  // From now on these graphs; the ends of their nodes are kept.
  void keep_node_ends(StepGraphs graphs);
  Timed run(StepPricer& pricer, bool may_split, const StepStart& start, StepCarry& carry);
  const StepGraphs& graphs() const { return graphs_; }
  const StepTiming& timing() const { return *timing_; }

 private:
  struct Way {
    StepPrices prices;
    std::vector<Ps> starts, ends, launched, node_ends;
  };
  static Timed timed(const StepGraph& graph, const Way& way) {
    return {graph, way.prices, way.starts, way.ends, way.launched, way.node_ends};
  }
  void run(const StepPricer& pricer, const StepGraph& graph, Way& way, const StepStart& start,
           StepCarry& carry);

  StepGraphs graphs_;
  std::unique_ptr<StepTiming> timing_;
  Way whole_, halves_;
  bool keeps_node_ends_ = false;
};

// Runs steps whose times are known when they begin.
class GraphExecutor final : public StepExecutor {
 public:
  // The timing's graphs are those of the pricer.
  GraphExecutor(StepPricer pricer, StepGraphs graphs, std::unique_ptr<StepTiming> timing)
      : pricer_(std::move(pricer)),
        timer_(std::move(graphs), std::move(timing)),
        carry_(timer_.graphs().whole) {}
  void start(SharedNetwork* /*network*/, Ps now) override {
    started_ = now;
    carry_ = StepCarry(timer_.graphs().whole, now);
  }
  void begin(std::span<const Batch* const> batches, const StepStart& start,
             StepSink& sink) override;
  bool report_layers() override;

 private:
  void report(std::size_t member, const StepTimer::Timed& timed, Ps now, StepSink& sink) const;

  StepPricer pricer_;
  StepTimer timer_;
  StepCarry carry_;
  Ps started_ = 0;
  std::int64_t steps_ = 0;                   // so far
  LayerNodes whole_layers_, halves_layers_;  // empty: nobody hears of them
};

}  // namespace llmsim
