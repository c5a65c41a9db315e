// Steps of one graph, run from node to node: a node begins as soon as all that it waits for has
// ended, and ends after its price or, where somebody moves it, when that one says so.
//
// The same times as FoldedTiming where nobody moves a node. Work is proportional to the graph's
// nodes and waits, whatever happens at the same time elsewhere.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "step/step_prices.h"

namespace llmsim {

// Moves nodes, and hears of the members' steps.
class StepMover {
 public:
  // A node of a step begins. True: the mover will say when it has ended (StepRuns::ended).
  virtual bool moves(std::int64_t step, std::int32_t node, Ps begin, Ps now) = 0;
  // Once for each member and step, in the order of the member's steps.
  virtual void member_ended(std::int64_t step, std::size_t member, Ps start, Ps end, Ps now) = 0;

 protected:
  ~StepMover() = default;
};

class StepRuns {
 public:
  // The graph has no repeated blocks, and its nodes wait for nodes of their own step alone. Both
  // outlive this. Throws std::invalid_argument for other graphs.
  StepRuns(const StepGraph& graph, StepMover& mover);

  // The next step; returns its number, from 0. What happened before now is made up for.
  std::int64_t begin(const StepPrices& prices, const StepStart& start, Ps now);
  // A node that the mover has moved has ended.
  void ended(std::int64_t step, std::int32_t node, Ps end, Ps now);

  const StepPrices& prices(std::int64_t step) const { return of(step).prices; }
  // When each stream was free before the oldest step that has nodes left; and its number.
  std::span<const Ps> free() const { return free_; }
  std::int64_t oldest() const { return first_; }
  // Forgets all steps. The next one has that number, and finds the streams free at these times.
  void restart(std::int64_t number, std::span<const Ps> free);

 private:
  struct Step {
    StepPrices prices;
    std::vector<Ps> ready, end;         // by node; `end` is kNever until it is known
    std::vector<std::int32_t> missing;  // by node: what it still waits for
    std::size_t left = 0;               // nodes that have not ended
  };
  struct Due {
    std::int64_t step;
    std::int32_t node;
  };

  const Step& of(std::int64_t step) const {
    return steps_[static_cast<std::size_t>(step - first_)];
  }
  Step& of(std::int64_t step) { return steps_[static_cast<std::size_t>(step - first_)]; }
  bool is_open(std::int64_t step) const {
    return step < first_ + static_cast<std::int64_t>(steps_.size());
  }
  void lead_to(std::int64_t step, std::int32_t node, Ps end);
  void run(Ps now);
  void end_node(std::int64_t step, std::int32_t node, Ps end, Ps now);
  void forget();

  const StepGraph& graph_;
  StepMover& mover_;
  std::vector<std::int32_t> first_follower_, followers_;  // by node: those that wait for it
  std::vector<std::int32_t> waits_;                       // by node: how many it waits for
  std::vector<std::int32_t> next_step_;  // by node: the next step's first on its stream; -1
  std::vector<std::int32_t> last_;       // nodes that the next step's wait for
  std::vector<std::int32_t> member_of_;  // by node: the member whose step it ends; -1
  std::deque<Step> steps_;
  std::int64_t first_ = 0;  // number of the oldest
  std::vector<Ps> free_;    // by stream, after the last forgotten step
  // Nodes that may begin, in this order, so that a step comes to its end before the next one goes
  // far.
  std::deque<Due> due_;
};

}  // namespace llmsim
