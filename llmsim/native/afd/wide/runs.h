// Steps of attention and FFN members, run from node to node: a node begins as soon as all that it
// waits for has ended, and ends after its price or, where somebody moves it, when that one says so.
//
// The same times as WideTiming where nobody moves a node. Nodes that may be moved are of members
// that are a class of their own.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "afd/wide/graph.h"
#include "step/step_prices.h"

namespace llmsim {

// Moves nodes, and hears of the members' steps.
class StepMover {
 public:
  // A node of a step begins that would end at `alone`. Returns when it ends; kNever: the mover will
  // say so (WideRuns::ended).
  virtual Ps end_of(std::int64_t step, std::int32_t node, Ps begin, Ps alone, Ps now) = 0;
  // Once for each member and step, in the order of the member's steps.
  virtual void member_ended(std::int64_t step, std::size_t member, Ps start, Ps end, Ps now) = 0;
  // The last of a step's nodes that it has moved; -1: none.
  virtual std::int32_t last_moved(std::int64_t step) const = 0;

 protected:
  ~StepMover() = default;
};

// A graph, the classes of its members, and where its times are.
struct WideCut {
  WideCut(const WideGraph& all, std::vector<MemberClass> of_members)
      : graph(&all), classes(std::move(of_members)), times(all, classes), asks(all.nodes.size()) {}
  WideCut(const WideCut&) = delete;  // the times know where the classes are
  WideCut& operator=(const WideCut&) = delete;

  const WideGraph* graph;
  std::vector<MemberClass> classes;
  WideTimes times;
  std::vector<bool> asks;  // by node: whether the mover is asked

  // Of a node with a class of one member.
  std::int64_t bytes(const AfdPrices& prices, const MemberKinds& kinds, std::int32_t node) const {
    const WideGraph::Node& wide = graph->nodes[at(node)];
    const MemberClass& mine = classes[at(wide.cls)];
    return prices.kinds[mine.kind]
        .bytes[at(wide.key) * kinds.members(mine.kind).size() + at(mine.places[0])];
  }
};

class WideRuns {
 public:
  explicit WideRuns(StepMover& mover) : mover_(mover) {}

  // Forgets all steps. The next one has that number, is of these classes, and finds the streams
  // (StepCarry::free) free at these times. The cut and its graph outlive all steps.
  void restart(std::int64_t number, const WideCut& cut, const MemberKinds& kinds,
               std::span<const Ps> free);
  // The next step. What happened before now is made up for.
  void begin(std::shared_ptr<const AfdPrices> prices, const StepStart& start, Ps now);
  // A node that the mover has moved has ended.
  void ended(std::int64_t step, std::int32_t node, Ps end, Ps now);
  // The same where no other node of the steps up to this one is moved: they run to their ends.
  void run_out(std::int64_t step, std::int32_t node, Ps end, Ps now);

  bool started() const { return graph_ != nullptr; }
  const WideGraph& graph() const { return *graph_; }
  const std::vector<MemberClass>& classes() const { return cut_->classes; }
  std::int64_t bytes(std::int64_t step, std::int32_t node) const {
    return cut_->bytes(*of(step).prices, *kinds_, node);
  }
  // The ends of a node, by member of its class; of one that has ended.
  std::span<const Ps> ends_of(std::int64_t step, std::int32_t node) const;
  // The number of the oldest step that has nodes left; and when the streams were free before it.
  std::int64_t oldest() const { return first_; }
  void copy_free(std::span<Ps> free) const { cut_->times.scatter(free_, free); }

 private:
  struct Step {
    std::shared_ptr<const AfdPrices> prices;
    std::vector<Ps> ready;              // by node: when all of other classes has ended
    std::vector<Ps> ends;               // by node and member of its class
    std::vector<Ps> last;               // by node: the latest of them; kNever until it is known
    std::vector<std::int32_t> missing;  // by node: what it still waits for
    std::size_t left = 0;               // nodes that have not ended
  };
  struct Follower {
    std::int32_t node;
    bool own;  // of the same class
  };
  struct Due {
    std::int64_t step;
    std::int32_t node;
  };

  void link();
  const Step& of(std::int64_t step) const {
    return steps_[static_cast<std::size_t>(step - first_)];
  }
  Step& of(std::int64_t step) { return steps_[static_cast<std::size_t>(step - first_)]; }
  bool is_open(std::int64_t step) const {
    return step >= first_ && step < first_ + static_cast<std::int64_t>(steps_.size());
  }
  // When the node's streams are free for it, by member.
  std::span<const Ps> stream_before(std::int64_t step, std::int32_t node) const;
  void lead_to(std::int64_t step, const Follower& follower, Ps end);
  void lead_to_next_step(std::int64_t step, std::int32_t node, Ps end);
  void run(Ps now);
  void run_out_oldest(Ps now);
  void run_out_node(std::int64_t step, std::int32_t node, Ps now);
  // Whether all nodes of a layer ended so much later than those of the layer before.
  bool moved_alike(const Step& step, const WideGraph::Layers& layers, std::int32_t first,
                   Ps& moved) const;
  // The layers from `first` on, each of which ends so much later than the one before.
  void leap(std::int64_t step, const WideGraph::Layers& layers, std::int32_t first, Ps moved,
            Ps now);
  bool time(std::int64_t step, std::int32_t node, Ps ready, Ps now);
  void end_node(std::int64_t step, std::int32_t node, Ps now);
  Ps note_end(Step& step, std::int32_t node);
  std::span<const Ps> starts_of(const Step& step, std::int32_t cls) const;
  void tell_ended(std::int64_t step, std::int32_t node, Ps now);
  void forget() {
    while (!steps_.empty() && steps_.front().left == 0) forget_oldest();
  }
  void forget_oldest();

  StepMover& mover_;
  const WideGraph* graph_ = nullptr;  // the cut's, which outlives it
  const MemberKinds* kinds_ = nullptr;
  const WideCut* cut_ = nullptr;
  // Of the graph, by node.
  std::vector<std::int32_t> first_follower_, waits_;
  std::vector<Follower> followers_;
  std::vector<std::int32_t> before_, next_step_;  // on its stream; -1
  std::vector<std::int32_t> ended_class_;         // the class whose step it ends; -1
  std::vector<std::int32_t> given_;               // nodes that wait for more than nodes
  std::vector<std::int32_t> last_of_stream_;      // by stream; -1
  std::deque<Step> steps_;
  std::vector<Step> spare_;  // whose memory is used again
  std::int64_t first_ = 0;   // number of the oldest
  std::vector<Ps> free_;     // by stream, wide, after the last forgotten step
  // Nodes that may begin, in this order, so that a step comes to its end before the next one goes
  // far.
  std::vector<Due> due_;
  std::size_t next_due_ = 0;
};

}  // namespace llmsim
