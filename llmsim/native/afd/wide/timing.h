// Steps of attention and FFN members whose rows nobody delays, timed class by class.
#pragma once

#include <span>
#include <vector>

#include "afd/wide/graph.h"
#include "step/step_prices.h"

namespace llmsim {

// The same times as FoldedTiming has for the graph of all members, to the picosecond.
class WideTiming {
 public:
  // Of all members of each kind together; all of it outlives this.
  explicit WideTiming(const WideGraphs& graphs);
  // Starts and ends by member. `free`: when their streams are free (StepCarry::free), before the
  // step and then after it.
  void run(const AfdPrices& prices, const StepStart& start, std::span<Ps> free,
           std::span<Ps> starts, std::span<Ps> ends);
  // The ends of a node of the last step, by member of its kind; of a repeated block, of the last
  // layer.
  std::span<const Ps> ends_of(std::int32_t node) const { return times_.of_node(ends_, node); }

 private:
  void pass_layer(const AfdPrices& prices, const StepStart& start, const Block& block);
  void pass_layers(const AfdPrices& prices, const StepStart& start, const Block& block,
                   const WideGraph::BlockShape& shape);
  void pass(const AfdPrices& prices, const StepStart& start, std::int32_t node);
  void note_before(const WideGraph::BlockShape& shape);
  // Whether all streams of the block have moved alike since then, and by how much.
  bool moved_alike(const WideGraph::BlockShape& shape, Ps& moved) const;
  void leap(const Block& block, const WideGraph::BlockShape& shape, Ps rest);

  const WideGraph& graph_;
  const std::vector<MemberClass>& classes_;
  WideTimes times_;
  std::vector<Ps> free_, ends_;  // by stream and by node, wide
  std::vector<Ps> last_;         // by node: the latest of its ends
  std::vector<Ps> before_;       // when the streams of the block at hand were free, a layer ago
};

// Steps as they were if nothing between attention and FFN took time.
class AtOnce {
 public:
  // Without `wanted` nothing is timed.
  AtOnce(const WideGraphs& graphs, bool wanted);
  // The members' ends in a step with these prices after one that left the streams `free`; kNever
  // where nothing travels, or nobody wants to know.
  std::span<const Ps> ends(const AfdPrices& prices, const StepStart& start,
                           std::span<const Ps> free, WideTiming& timing);

 private:
  struct Travelling {
    std::size_t kind, key, members;
  };
  bool wanted_;
  std::vector<Travelling> travelling_;  // prices of what is on its way
  AfdPrices prices_;
  std::vector<Ps> free_, starts_, ends_;
};

}  // namespace llmsim
